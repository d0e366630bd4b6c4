"""The run as one JSON file, the audit's own findings included; Locust's CSV files end before them."""

import json
from pathlib import Path
from typing import Any

from locust.stats import RequestStats, StatsEntry, sort_stats

from loadtest.ledger import Totals


def write(path: Path, run: str, totals: Totals, stats: RequestStats) -> None:
    """Totals of the jobs, times of each kind of request in ms, and every failed check."""
    failures = [
        {"method": error.method, "name": error.name, "error": str(error.error), "occurrences": error.occurrences}
        for error in stats.errors.values()
    ]
    found = {"run": run} | totals.as_dict() | {"failures": failures, "total": _line(stats.total)}
    path.parent.mkdir(parents=True, exist_ok=True)
    requests = [_line(entry) for entry in sort_stats(stats.entries)]
    path.write_text(json.dumps(found | {"requests": requests}, indent=1) + "\n", "utf-8")


def _line(entry: StatsEntry) -> dict[str, Any]:
    line: dict[str, Any] = {"method": entry.method, "name": entry.name}
    line |= {"requests": entry.num_requests, "failures": entry.num_failures}
    if entry.num_requests == entry.num_none_requests:
        return line
    times = {f"p{part * 100:g}_ms": entry.get_response_time_percentile(part) for part in (0.5, 0.95, 0.99)}
    return line | times | {"longest_ms": round(entry.max_response_time, 1)}
