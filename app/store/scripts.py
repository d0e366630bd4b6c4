"""Loads the named Lua scripts. The state table travels in front of them, so that Python and Lua share one."""

from importlib.resources import files
from typing import Any

from app import keys
from app.connect import Client
from app.domain.job import ANYBODY
from app.domain.messages import ImageRef
from app.domain.states import TABLE

#: Scripts that move one image share the KEYS and the helpers of prelude.lua.
IMAGE_SCRIPTS = ("claim", "hand_over", "renew", "commit", "give_back", "cancel", "sweep")
#: Scripts that count what a key uses share the function of bucket.lua.
QUOTA_SCRIPTS = ("submit", "take")
OTHER_SCRIPTS = ("retire", "outbox_take", "outbox_begin", "outbox_settle", "outbox_add", "rotate", "beat", "tally")


#: Keys take turns in AR: so many images of each are hinted at a time. More fill a batch in fewer steps, and let a
#: newcomer wait behind more of each other key's.
TURN = 4
#: Dead letters that are kept, the newest.
MOST_DEAD = 10_000


def _source(name: str) -> str:
    return files("app.store").joinpath("scripts", f"{name}.lua").read_text("utf-8")


def _table() -> str:
    cells = ", ".join(f"['{state}>{move}'] = '{target}'" for (state, move), target in TABLE.items())
    return f"local TABLE = {{{cells}}}\n"


def _turns() -> str:
    return f"local TURN, ANYBODY, MOST_DEAD = {TURN}, '{ANYBODY}', {MOST_DEAD}\n"


class Scripts:
    """Runs a script by its name; a server that forgot it (restart, SCRIPT FLUSH) is taught again by the client."""

    def __init__(self, client: Client) -> None:
        prelude = _table() + _turns() + _source("prelude")
        quotas = _turns() + _source("bucket")
        self._scripts = {name: client.register_script(prelude + _source(name)) for name in IMAGE_SCRIPTS}
        self._scripts |= {name: client.register_script(quotas + _source(name)) for name in QUOTA_SCRIPTS}
        self._scripts |= {name: client.register_script(_source(name)) for name in OTHER_SCRIPTS}

    def run(self, name: str, *, keys: list[str], args: list[Any]) -> Any:  # noqa: ANN401 - each script's own reply
        return self._scripts[name](keys=keys, args=args)

    def on_image(self, name: str, ref: ImageRef, *args: str | float | bytes, client: Client | None = None) -> Any:  # noqa: ANN401
        """`client`: a pipeline that runs it later, in place of the store's own client."""
        image_keys = [
            keys.image(ref.job_id, ref.index),
            keys.job(ref.job_id),
            keys.DUE,
            keys.events(ref.job_id),
            keys.OUTBOX,
            keys.AR_REALTIME,
            keys.AR_BATCH,
            keys.DIT_LIST,
            keys.STATS,
            keys.WAITING_REALTIME,
            keys.WAITING_BATCH,
            keys.WAITING_DIT,
            keys.COUNTS,
            keys.PACE,
            keys.EXPIRY,
            keys.CHANGES,
            keys.ACTIVE,
            keys.LINES,
            keys.TURNS,
            keys.DEAD,
            keys.AR_RETURNED,
        ]
        return self._scripts[name](keys=image_keys, args=[str(ref), *args], client=client)
