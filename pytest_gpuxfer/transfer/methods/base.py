"""What a way to move bytes must tell, so that the bench can time, check and prove it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar, Protocol

from pytest_gpuxfer.hardware.driver import Memory
from pytest_gpuxfer.model.cell import Cell, Check, Place
from pytest_gpuxfer.model.pattern import Pattern
from pytest_gpuxfer.transfer.arena import Arena


@dataclass(frozen=True, slots=True)
class Transfer:
    """One prepared way from a source to a destination, enqueued on streams of the arena.

    `load` makes the source hold a pattern and returns it; `enqueue` starts one operation that
    moves all of it. Both are for buffers of `size_bytes`; the timed stream is `timed_gpu`'s.
    """

    size_bytes: int
    timed_gpu: int
    destination: Memory
    destination_gpu: int | None  # its owner; None: the CPU
    load: Callable[[Pattern], Memory]
    enqueue: Callable[[Memory], None]
    direct_pair: tuple[int, int] | None = None  # the two GPUs, where the driver picks the path


class Method(Protocol):
    """A way to move bytes: one class a method, in a file of this folder."""

    name: ClassVar[str]
    between_gpus: ClassVar[bool]  # its places are ordered pairs; else single GPUs
    uses_peer_access: ClassVar[bool]  # it is switched on, or off for `no-access`, before

    def checks(self) -> tuple[Check, ...]:
        """Every variant that the suites measure."""
        ...

    def default_size_bytes(self, check: Check) -> int: ...

    def prepare(self, cell: Cell, arena: Arena, size_bytes: int) -> Transfer:
        """Buffers and streams for `cell`, at `size_bytes` (the probe's is smaller)."""
        ...


def places(method: Method, gpu_count: int) -> Iterator[Place]:
    """Where a method is measured on a machine of `gpu_count` GPUs."""
    if method.between_gpus:
        return (Place.pair(*pair) for pair in permutations(range(gpu_count), 2))
    return (Place.gpu(index) for index in range(gpu_count))
