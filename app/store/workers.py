"""The registry of running workers, kept alive by their heartbeats."""

from dataclasses import dataclass

from app import keys
from app.connect import Client, translated
from app.store.scripts import Scripts

#: A worker that has not been heard of for this long is forgotten, ms.
FORGET_MS = 60_000


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One process of the stack. `state`: starting, ready, busy or stopping."""

    name: str
    role: str
    pid: int
    host: str
    device: str
    state: str
    heartbeat_age_s: float = 0.0


class WorkerRegistry:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._scripts = Scripts(client)

    def beat(self, info: WorkerInfo) -> None:
        fields = ("role", info.role, "pid", info.pid, "host", info.host, "device", info.device, "state", info.state)
        with translated():
            self._scripts.run("beat", keys=[keys.WORKERS, keys.worker(info.name)], args=[info.name, FORGET_MS, *fields])

    def leave(self, name: str) -> None:
        with translated():
            self._client.zrem(keys.WORKERS, name)
            self._client.delete(keys.worker(name))

    def list(self) -> list[WorkerInfo]:
        """Every worker heard of within the last minute, oldest heartbeat first."""
        with translated():
            seconds, microseconds = self._client.time()
            now = seconds * 1000 + microseconds // 1000
            beats = self._client.zrange(keys.WORKERS, 0, -1, withscores=True)
            pipe = self._client.pipeline(transaction=False)
            for name, _ in beats:
                pipe.hgetall(keys.worker(name.decode()))
            records = pipe.execute()
        found = []
        for (name, beat), record in zip(beats, records, strict=True):
            if record and now - beat < FORGET_MS:
                text = {key.decode(): value.decode() for key, value in record.items()}
                age = round(max(0.0, now - beat) / 1000, 3)
                found.append(
                    WorkerInfo(
                        name.decode(), text["role"], int(text["pid"]), text["host"], text["device"], text["state"], age
                    )
                )
        return found
