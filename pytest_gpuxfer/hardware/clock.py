"""Time, real or simulated; deadlines are checked against it and nothing else."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time in nanoseconds."""

    def now_ns(self) -> int: ...

    def sleep_ns(self, duration_ns: int) -> None: ...


class SystemClock:
    """The host's monotonic clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_ns(self, duration_ns: int) -> None:
        time.sleep(duration_ns / 1e9)
