"""Prior tokens: the plan of one picture, as it is stored and handed from AR to DiT."""

import sys
from array import array
from dataclasses import dataclass

from app.domain.sizes import Grid


@dataclass(frozen=True, slots=True)
class PriorTokens:
    """The large grid's codebook ids, row by row. Ids fit in 16 bits: 2 KB at 1024x1024, 8 KB at 2048x2048."""

    grid: Grid
    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.ids) != self.grid.tokens:
            raise ValueError(
                f"a {self.grid.height}x{self.grid.width} grid takes {self.grid.tokens} ids, got {len(self.ids)}"
            )

    def distinct_share(self) -> float:
        """Distinct ids per cell. A plan that has collapsed repeats a handful of ids over the whole grid."""
        return len(set(self.ids)) / len(self.ids)

    def pack(self) -> bytes:
        """Little-endian uint16, for the image record."""
        words = array("H", self.ids)
        if sys.byteorder == "big":
            words.byteswap()
        return words.tobytes()

    @classmethod
    def unpack(cls, grid: Grid, packed: bytes) -> "PriorTokens":
        words = array("H")
        words.frombytes(packed)
        if sys.byteorder == "big":
            words.byteswap()
        return cls(grid=grid, ids=tuple(words))


@dataclass(frozen=True, slots=True)
class Plan:
    """What AR hands to DiT: the target's prior tokens, and for an edit the VQ ids of each condition image."""

    prior: PriorTokens
    condition: tuple[PriorTokens, ...] = ()


def pack_all(priors: tuple[PriorTokens, ...]) -> bytes:
    """Several grids in one record field: for each its height, width and ids, as little-endian uint16."""
    return b"".join(PriorTokens(Grid(1, 2), (p.grid.height, p.grid.width)).pack() + p.pack() for p in priors)


def unpack_all(packed: bytes) -> tuple[PriorTokens, ...]:
    found = []
    while packed:
        grid = Grid(*PriorTokens.unpack(Grid(1, 2), packed[:4]).ids)
        end = 4 + 2 * grid.tokens
        found.append(PriorTokens.unpack(grid, packed[4:end]))
        packed = packed[end:]
    return tuple(found)
