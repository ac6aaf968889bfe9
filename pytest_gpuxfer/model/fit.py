"""How the time of a transfer grows with its size: a start-up time and an asymptotic rate. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pytest_gpuxfer.model.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class TransferTime:
    """time = start-up + size / rate, fitted to measured sizes."""

    startup_ns: float
    ns_per_byte: float
    worst_part_off: float  # the largest distance from a measured time, as a part of that time
    least_bytes: int
    most_bytes: int

    @property
    def rate_bytes_per_s(self) -> float:
        """What ever larger transfers come near to."""
        return NS_PER_S / self.ns_per_byte

    def predict_ns(self, size_bytes: int) -> float:
        """Nanoseconds that a transfer of this size takes."""
        return self.startup_ns + size_bytes * self.ns_per_byte

    def through(self, size_bytes: int, time_ns: float) -> TransferTime | None:
        """The same start-up time with the rate that one measurement shows; None if it is shorter.

        How well it fits is not known better than before.
        """
        if time_ns <= self.startup_ns:
            return None
        per_byte = (time_ns - self.startup_ns) / size_bytes
        least, most = min(self.least_bytes, size_bytes), max(self.least_bytes, size_bytes)
        return replace(self, ns_per_byte=per_byte, least_bytes=least, most_bytes=most)


def fit_transfer_time(points: Iterable[tuple[int, float]]) -> TransferTime | None:
    """The best fit of (bytes, nanoseconds); None for fewer than two sizes or times that shrink.

    Least squares of the *relative* distances: sizes span six orders of magnitude, and absolute
    ones would leave the start-up time to the noise of the largest.
    """
    measured = sorted(points)
    if len({size for size, _ in measured}) < 2:
        return None
    # Weighted by 1/time^2, the normal equations of t = a + b * s.
    weights = [1 / (time * time) for _, time in measured]
    w = math.fsum(weights)
    w_s = math.fsum(k * s for k, (s, _) in zip(weights, measured, strict=True))
    w_ss = math.fsum(k * s * s for k, (s, _) in zip(weights, measured, strict=True))
    w_t = math.fsum(k * t for k, (_, t) in zip(weights, measured, strict=True))
    w_st = math.fsum(k * s * t for k, (s, t) in zip(weights, measured, strict=True))
    determinant = w * w_ss - w_s * w_s
    if determinant <= 0:
        return None
    startup = (w_ss * w_t - w_s * w_st) / determinant
    per_byte = (w * w_st - w_s * w_t) / determinant
    if startup < 0:  # no transfer starts before it is asked for
        startup, per_byte = 0.0, w_st / w_ss
    if per_byte <= 0:
        return None
    off = max(abs(startup + per_byte * size - time) / time for size, time in measured)
    return TransferTime(startup, per_byte, off, measured[0][0], measured[-1][0])
