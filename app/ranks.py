"""A group of processes that share one model, a device each: tensor parallel for AR, sequence parallel for DiT.

Rank 0 leads: it starts the others, alone talks to Redis and object storage, and sends them orders down a pipe each. A
follower waits for orders on its pipe and never inside a collective, which would spin and, on an NPU, time out. The
tensors of a step travel by collectives.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import structlog
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from app import devices
from app.errors import Misconfigured

log = structlog.get_logger(__name__)

_HOST = "127.0.0.1"
#: A rank that is alive but does not come to a collective is given up after this long. Compiling or capturing a graph,
#: which ranks do not finish at the same time, must fit in.
_TIMEOUT = timedelta(minutes=10)


class Ranks:
    """What every rank of a group can do. Calls must come in the same order on all ranks."""

    def __init__(self, rank: int, size: int, device: torch.device, store: TCPStore) -> None:
        self.rank = rank
        self.size = size
        self._device = device
        backend = devices.row(device)
        # A processor's collectives are slow and free to be exact; a device's are fast and its own.
        self._exchange = backend.visible is None
        for name, value in backend.group.items():
            os.environ.setdefault(name, value)
        if not self._exchange:
            torch.get_device_module(device).set_device(device)  # a collective before that guesses the device
        dist.init_process_group(backend.collective, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)

    def summed(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors, the same bits on each.

        On a CPU also the same for every shape: gloo's own sum adds in an order that depends on where in the tensor a
        number lies, so that a row's bits would depend on its neighbours.
        """
        if not self._exchange:
            dist.all_reduce(partial)
            return partial
        parts = self.gathered(partial)
        total = parts[0] + parts[1]
        for part in parts[2:]:
            total += part
        return total

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, one shape, in order: [size, *shape]."""
        part = part.contiguous()
        parts = part.new_empty((self.size * part.shape[0], *part.shape[1:]))
        if not self._exchange:
            dist.all_gather_single(parts, part)
            return parts.view(self.size, *part.shape)
        # All at once to all: half the time of gloo's own gather, which passes small tensors from thread to thread.
        parts = parts.view(self.size, *part.shape)
        parts[self.rank] = part
        others = [rank for rank in range(self.size) if rank != self.rank]
        works = [dist.irecv(parts[rank], rank) for rank in others] + [dist.isend(part, rank) for rank in others]
        for work in works:
            assert work is not None  # noqa: S101 - only a process outside the group has none
            work.wait()
        return parts

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers."""
        return int(self.gathered(torch.tensor([number], dtype=torch.int32, device=self._device)).min())


class Leader(Ranks):
    """Rank 0. When a follower ends, so does this process at once: what it held is recovered as a dead worker's."""

    def __init__(
        self, size: int, device: torch.device, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the followers as `python -m app.cli *command --rank R --rendezvous PORT`, and wait for them.

        `environment`: variables they have beside this process's own.
        """
        store = rendezvous(size)
        self._closing = False
        self._followers = [_start(command, rank, store.port, device, environment or {}) for rank in range(1, size)]
        for rank, follower in enumerate(self._followers, start=1):
            threading.Thread(target=self._watch, args=(rank, follower), name=f"rank-{rank}", daemon=True).start()
        super().__init__(0, size, device, store)

    def tell(self, order: Mapping[str, Any]) -> None:
        """Send an order, JSON types only, to all followers."""
        line = json.dumps(order, separators=(",", ":")).encode() + b"\n"
        for follower in self._followers:
            assert follower.stdin is not None  # noqa: S101 - it was opened with a pipe
            try:
                follower.stdin.write(line)
                follower.stdin.flush()
            except BrokenPipeError:
                _end(self._followers.index(follower) + 1, follower.wait())

    def close(self) -> None:
        """Let the followers end in good order."""
        self._closing = True
        for follower in self._followers:
            assert follower.stdin is not None  # noqa: S101 - it was opened with a pipe
            follower.stdin.close()
        for follower in self._followers:
            try:
                follower.wait(10)
            except subprocess.TimeoutExpired:
                follower.kill()
                follower.wait()
        dist.destroy_process_group()

    def _watch(self, rank: int, follower: subprocess.Popen[bytes]) -> None:
        status = follower.wait()
        if not self._closing:
            _end(rank, status)


class Follower(Ranks):
    """A rank above 0: does as it is told until its leader closes the pipe or dies."""

    def __init__(self, rank: int, size: int, device: torch.device, port: int) -> None:
        super().__init__(rank, size, device, TCPStore(_HOST, port, size, is_master=False, timeout=_TIMEOUT))

    def orders(self) -> Iterator[dict[str, Any]]:
        """Orders in the order they were given. Ends with the leader."""
        for line in sys.stdin.buffer:
            yield json.loads(line)


def rendezvous(size: int) -> TCPStore:
    """Where so many ranks of this host find each other, on a port that only this host reaches."""
    listener = socket.create_server((_HOST, 0))  # the store's own would listen on every interface, to everybody
    port = listener.getsockname()[1]
    return TCPStore(
        _HOST,
        port,
        size,
        is_master=True,
        wait_for_workers=False,
        timeout=_TIMEOUT,
        master_listen_fd=listener.detach(),  # the store's from now on
    )


def _start(
    command: Sequence[str], rank: int, port: int, device: torch.device, extra: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    environment = os.environ | extra
    visible = devices.row(device).visible
    if visible is not None:
        # Each sees its own device alone, as number 0; the leader takes the first of those it was given.
        given = [part.strip() for part in os.environ.get(visible, "").split(",") if part.strip()]
        if given and rank >= len(given):
            raise Misconfigured(f"rank {rank} of a group needs a device of its own, and {visible} shows {len(given)}")
        environment[visible] = given[rank] if given else str(rank)
    # Ended when this process dies, also where it hangs on its device.
    tether = [sys.executable, "-m", "app.launcher.tether", str(os.getpid()), "KILL"]
    place = ["--rank", str(rank), "--rendezvous", str(port)]
    return subprocess.Popen(
        [*tether, sys.executable, "-m", "app.cli", *command, *place],
        env=environment,
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is the leader's to handle
    )


def _end(rank: int, status: int) -> NoReturn:
    """End this process, whose main thread may hang in a collective with the dead rank."""
    # Its own status where it could not run as configured, so that it is not restarted for nothing. It has said why,
    # and that stays the last line.
    if status != os.EX_CONFIG:
        log.critical("rank_died", rank=rank, status=status)
    sys.stdout.flush()
    os._exit(status if status > 0 else 1)
