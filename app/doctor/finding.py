"""One line of the report."""

from dataclasses import dataclass
from typing import Literal

#: note: something is absent that this host may do without.
Status = Literal["ok", "note", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and for the operator what to do about it."""

    name: str
    status: Status
    detail: str
    todo: str = ""
