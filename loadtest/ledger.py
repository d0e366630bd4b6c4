"""What the service has accepted from this load test, and what became of it."""

from dataclasses import asdict, dataclass, field

from loadtest.orders import Order


@dataclass(slots=True)
class Entry:
    """One accepted job. `status`: its last one, None while it is not known to have ended. `checked`: nothing is left
    to look at. `webhooks`: its events come to our receiver."""

    order: Order
    webhooks: bool = False
    status: str | None = None
    checked: bool = False
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Totals:
    """Jobs and images. `lost`: accepted, and not known to have ended. `unchecked`: ended, not looked at in full."""

    accepted: int
    images: int
    ended: dict[str, int]
    deleted: int
    lost: list[str]
    unchecked: list[str]
    pictures: int
    judged: int
    webhooks: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        ways = ", ".join(f"{count} {status}" for status, count in sorted(self.ended.items())) or "none"
        return (
            f"{self.accepted} jobs with {self.images} images accepted; ended: {ways}; {len(self.lost)} lost; "
            f"{self.pictures} pictures checked, {self.judged} of them judged by their prompt; {self.webhooks} webhooks"
        )


@dataclass(slots=True)
class Ledger:
    entries: dict[str, Entry] = field(default_factory=dict)
    pictures: int = 0
    judged: int = 0
    webhooks: int = 0

    def accept(self, job_id: str, order: Order, *, webhooks: bool = False) -> Entry:
        """Note an accepted job; a repeat of the same order is the same job."""
        return self.entries.setdefault(job_id, Entry(order, webhooks))

    def totals(self) -> Totals:
        entries = self.entries
        ended: dict[str, int] = {}
        for entry in entries.values():
            if entry.status:
                ended[entry.status] = ended.get(entry.status, 0) + 1
        return Totals(
            accepted=len(entries),
            images=sum(entry.order.n for entry in entries.values()),
            ended=ended,
            deleted=sum(entry.deleted for entry in entries.values()),
            lost=[job_id for job_id, entry in entries.items() if not entry.status],
            unchecked=[job_id for job_id, entry in entries.items() if entry.status and not entry.checked],
            pictures=self.pictures,
            judged=self.judged,
            webhooks=self.webhooks,
        )
