"""Every wait has a deadline."""

from __future__ import annotations

from typing import Final

from pytest_gpuxfer.hardware.driver import Stream
from pytest_gpuxfer.model.units import NS_PER_S
from pytest_gpuxfer.transfer.arena import Arena

DEADLINE_NS: Final = int(20 * NS_PER_S)  # the slowest sample of the suites takes some 4 s
_FIRST_NAP_NS: Final = 20_000
_LONGEST_NAP_NS: Final = 1_000_000


class HangError(Exception):
    """Work on a GPU that did not end by its deadline."""

    def __init__(self, gpu: int) -> None:
        super().__init__(f"work on gpu{gpu} had not ended after {DEADLINE_NS / NS_PER_S:.0f} s")
        self.gpu = gpu


def wait_idle(arena: Arena, gpu: int, stream: Stream | None = None) -> None:
    """Until all that was enqueued on a stream of the GPU has ended; its first one if none is named.

    Raises HangError, DriverError.
    """
    stream = stream or arena.stream(gpu)
    clock = arena.clock
    deadline = clock.now_ns() + DEADLINE_NS
    nap = _FIRST_NAP_NS
    while not arena.driver.stream_idle(stream):
        if clock.now_ns() > deadline:
            raise HangError(gpu)
        clock.sleep_ns(nap)
        nap = min(nap * 2, _LONGEST_NAP_NS)
