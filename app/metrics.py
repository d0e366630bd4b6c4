"""Prometheus metrics. Totals live in Redis with the records, so every API process of every host reports the same."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_COUNTERS = {
    "jobs_accepted": "Jobs accepted",
    "jobs_completed": "Jobs ended, in any way",
    "images_accepted": "Images accepted",
    "images_planned": "Images whose prior tokens were stored",
    "images_succeeded": "Images committed",
    "images_failed": "Images failed for good",
    "images_canceled": "Images canceled",
    "retries": "Attempts that were put back",
    "webhooks_delivered": "Webhook events delivered",
    "webhooks_retry": "Webhook attempts to be repeated",
    "webhooks_given_up": "Webhook events given up",
}
_SECONDS = {"ar_ms": "Seconds in AR stages", "dit_ms": "Seconds in DiT stages"}
_GAUGES = {
    "ar_hints": "Entries on the AR stream",
    "dit_hints": "Messages on the DiT queue",
    "images_active": "Images that have not ended",
    "webhooks_waiting": "Webhook events not delivered yet",
    "trash": "Removed jobs whose objects have not been removed",
}


class _Collector:
    def __init__(self, stats: dict[str, int], workers: dict[str, int]) -> None:
        self._stats = stats
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"planpaint_{name}", text, value=stats.get(name, 0))
        for name, text in _SECONDS.items():
            yield CounterMetricFamily(
                f"planpaint_{name.removesuffix('_ms')}_seconds", text, value=stats.get(name, 0) / 1000
            )
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"planpaint_{name}", text, value=stats.get(name, 0))
        family = GaugeMetricFamily("planpaint_workers", "Workers heard of in the last minute", labels=["role"])
        for role, count in sorted(self._workers.items()):
            family.add_metric([role], count)
        yield family


def render(stats: dict[str, int], workers: dict[str, int]) -> bytes:
    """The text exposition. `stats`: JobStore.stats(); `workers`: how many are alive, by role."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(stats, workers))
    return generate_latest(registry)
