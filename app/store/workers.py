"""The registry of running workers, kept alive by their heartbeats, and which of them are to take nothing new."""

from collections.abc import Iterable
from dataclasses import dataclass

from app import keys
from app.connect import Client, translated
from app.store.scripts import Scripts

#: A worker that has not been heard of for this long is forgotten, ms.
FORGET_MS = 60_000


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One process of the stack. `state`: starting, ready, busy, stopping or drained (waits, and takes nothing).

    `instance`: a name that outlives the process; several processes may share one.
    """

    name: str
    role: str
    pid: int
    host: str
    device: str
    state: str
    heartbeat_age_s: float = 0.0
    instance: str = ""


def of_role(role: str) -> str:
    """The name under which all workers of a role are drained."""
    return f"role:{role}"


class WorkerRegistry:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._scripts = Scripts(client)

    def beat(self, info: WorkerInfo) -> bool:
        """Say that the worker lives; returns whether it is to take nothing new."""
        fields = ("pid", info.pid, "host", info.host, "device", info.device, "state", info.state)
        with translated():
            drained = self._scripts.run(
                "beat",
                keys=[keys.WORKERS, keys.worker(info.name), keys.DRAINED],
                args=[info.name, FORGET_MS, info.instance, info.role, *fields],
            )
        return bool(drained)

    def drain(self, names: Iterable[str]) -> None:
        """Have workers of these names (of a process, an instance, or `of_role`) take nothing new, now and later."""
        with translated():
            self._client.sadd(keys.DRAINED, *names)

    def undrain(self, names: Iterable[str]) -> int:
        """Let them work again; returns how many of the names were drained."""
        with translated():
            return int(self._client.srem(keys.DRAINED, *names))

    def drained(self) -> list[str]:
        with translated():
            return sorted(name.decode() for name in self._client.smembers(keys.DRAINED))

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
                        name.decode(),
                        text["role"],
                        int(text["pid"]),
                        text["host"],
                        text["device"],
                        text["state"],
                        age,
                        text.get("instance", ""),
                    )
                )
        return found
