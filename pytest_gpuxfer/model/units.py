"""The one home of units: names to numbers and back.

Inside the program sizes are `*_bytes` (int), rates `*_bytes_per_s` (float), times `*_ns` (float).
GB is 10^9 bytes, GiB is 2^30; both are accepted, and what is printed says which.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30
GB: Final = 10**9

NS_PER_US: Final = 1_000.0
NS_PER_MS: Final = 1_000_000.0
NS_PER_S: Final = 1_000_000_000.0

SIZE_UNITS: Final[Mapping[str, int]] = {
    "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "kB": 10**3, "MB": 10**6, "GB": GB,
}  # fmt: skip
RATE_UNITS: Final[Mapping[str, int]] = {
    f"{unit}/s": scale for unit, scale in {**SIZE_UNITS, "TB": 10**12}.items() if unit != "B"
}
DURATION_UNITS: Final[Mapping[str, float]] = {
    "ns": 1.0, "us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S, "min": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}  # fmt: skip

# Plain decimals alone: `1e3`, `0x10`, `nan` and `inf` are what a reader trips over.
_QUANTITY: Final = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z/]*)\s*", re.ASCII)


class UnitError(ValueError):
    """A quantity that cannot be read; the message is one line for the person who wrote it."""


def _parse(text: str, units: Mapping[str, float], what: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UnitError(f"{text!r} is no {what}; write it like {example!r}")
    unit = match["unit"]
    if unit not in units:
        problem = f"unit {unit!r} is not known" if unit else "the unit is missing"
        raise UnitError(f"{text!r} is no {what}: {problem}; use one of {', '.join(units)}")
    value = float(match["number"]) * units[unit]
    if not math.isfinite(value):
        raise UnitError(f"{text!r} is no {what}: the number is too large")
    return value


def parse_size(text: str) -> int:
    """Bytes of a size like "512 MiB". Raises UnitError, also for parts of a byte."""
    value = _parse(text, SIZE_UNITS, "size", "512 MiB")
    if value != int(value):
        raise UnitError(f"{text!r} is no size: it is not a whole number of bytes")
    return int(value)


def parse_rate(text: str) -> float:
    """Bytes per second of a rate like "240 GB/s". Raises UnitError."""
    return _parse(text, RATE_UNITS, "rate", "240 GB/s")


def parse_duration(text: str) -> float:
    """Nanoseconds of a duration like "6 us". Raises UnitError."""
    return _parse(text, DURATION_UNITS, "duration", "6 us")


def format_size(size_bytes: int, *, separator: str = " ") -> str:
    """A size in the largest binary unit that divides it: 512 MiB; in an id, with no separator."""
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= scale and size_bytes % scale == 0:
            return f"{size_bytes // scale}{separator}{unit}"
    return f"{size_bytes}{separator}B"


def format_rate(rate_bytes_per_s: float) -> str:
    """A rate in GB/s (10^9 bytes a second), to four digits: 396.4 GB/s, 8.99 GB/s."""
    rate = rate_bytes_per_s / GB
    digits = 1 if rate >= 100 else 2
    return f"{rate:.{digits}f} GB/s"


def format_bytes(amount_bytes: int) -> str:
    """An amount of traffic in decimal units, as link counters and rates have it: 9.66 GB."""
    for unit, scale in (("GB", GB), ("MB", 10**6), ("kB", 10**3)):
        if abs(amount_bytes) >= scale:
            return f"{amount_bytes / scale:.2f} {unit}"
    return f"{amount_bytes} B"


def format_duration(elapsed_ns: float) -> str:
    """A time in the unit that fits: 2.27 us, 1.35 ms."""
    for unit, scale in (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", NS_PER_US)):
        if elapsed_ns >= scale:
            return f"{elapsed_ns / scale:.2f} {unit}"
    return f"{elapsed_ns:.0f} ns"


def rate_of(moved_bytes: int, elapsed_ns: float) -> float:
    """Bytes per second; `elapsed_ns` must be positive."""
    return moved_bytes / elapsed_ns * NS_PER_S
