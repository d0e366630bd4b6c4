"""Whether Redis still has the data that it had: one that comes back empty must not pass for one that never had any."""

import secrets
import time

from app import keys
from app.connect import Client, translated
from app.errors import DataLost

#: A good answer is believed for so long, seconds.
_FRESH_S = 1.0


class Epoch:
    """A random name that the first user of a store writes into it. Who has seen it notices when it is gone."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: str | None = None
        self._checked_at = float("-inf")

    def adopt(self) -> str:
        """The store's name; an empty store gets one."""
        with translated():
            self._client.set(keys.EPOCH, secrets.token_hex(16), nx=True)
            return str(self._client.get(keys.EPOCH).decode())

    def stored(self) -> str | None:
        with translated():
            found = self._client.get(keys.EPOCH)
        return found.decode() if found else None

    def check(self) -> None:
        """Raises DataLost, from then on at each call, when the store is not the one of the first call."""
        if time.monotonic() - self._checked_at < _FRESH_S:
            return
        # Without a lock, so that callers do not queue up for a server that hangs; all of them adopt the same name.
        if self._known is None:
            self._known = self.adopt()
        if self.stored() != self._known:
            raise DataLost(
                "Redis has lost its data: what was accepted before is gone. Bring the data back, or restart the API to "
                "begin anew"
            )
        self._checked_at = time.monotonic()
