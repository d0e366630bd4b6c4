"""Something that must hold and does not."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """`check`: the row of the table that found it. `subject`: the job, image, key or object that it is about."""

    check: str
    subject: str
    detail: str

    @property
    def place(self) -> tuple[str, str]:
        """What makes two looks find the same thing; numbers in the detail may move meanwhile."""
        return self.check, self.subject
