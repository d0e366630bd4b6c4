"""How sure a part of so many is."""

#: Of the normal distribution, for 95 %.
_Z = 1.959964


def wilson(right: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a part by Wilson's score, 0 to 1; raises ValueError for a part of nothing."""
    if not 0 <= right <= of or of == 0:
        raise ValueError(f"{right} of {of} is no part")
    part, square = right / of, _Z**2
    middle = (part + square / (2 * of)) / (1 + square / of)
    around = _Z * (part * (1 - part) / of + square / (4 * of * of)) ** 0.5 / (1 + square / of)
    return max(0.0, middle - around), min(1.0, middle + around)
