"""Free ports of the loopback interface."""

import socket

#: SeaweedFS opens a gRPC port at its HTTP port plus this.
GRPC_OFFSET = 10_000


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError:
        return False
    return True


def free_ports(count: int, *, with_grpc: bool = False, preferred: list[int] | None = None) -> list[int]:
    """Ports that nobody listens on: the preferred ones where they are free, else fresh ones.

    with_grpc: also require port + 10000 to be free, which keeps them below 55000.
    """
    chosen: list[int] = []
    for port in preferred or []:
        if len(chosen) < count and port not in chosen and _usable(port, with_grpc):
            chosen.append(port)
    while len(chosen) < count:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        taken = chosen + ([c + GRPC_OFFSET for c in chosen] if with_grpc else [])
        if port not in taken and port + GRPC_OFFSET not in chosen and _usable(port, with_grpc):
            chosen.append(port)
    return chosen


def _usable(port: int, with_grpc: bool) -> bool:
    if not with_grpc:
        return is_free(port)
    return port + GRPC_OFFSET < 65_000 and is_free(port) and is_free(port + GRPC_OFFSET)
