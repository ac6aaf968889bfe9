"""What a way to move bytes must tell, so that the bench can time, check and prove it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, Protocol

from pytest_gpuxfer.hardware.driver import Comparison, Fill, Memory, Stream
from pytest_gpuxfer.model.cell import Check, Place
from pytest_gpuxfer.model.measurement import PathKind
from pytest_gpuxfer.model.pattern import POISON_WORD, Pattern
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.waiting import wait_idle

HOST: Final = None  # where a GPU index could stand: host memory


@dataclass(frozen=True, slots=True)
class Route:
    """One way from a source to a destination: GPU indices, or HOST.

    Of the flows that run at once `slot` tells those of one GPU apart, and `same_source` and
    `same_destination` are how many, this one included, begin or end where this one does.
    """

    source: int | None
    destination: int | None
    slot: int = 0
    same_source: int = 1
    same_destination: int = 1

    @property
    def is_pair(self) -> bool:
        return self.source is not None and self.destination is not None

    @property
    def place(self) -> Place:
        """Where this one alone is measured: at its pair, or at its one GPU."""
        gpus = (gpu for gpu in (self.source, self.destination) if gpu is not HOST)
        return Place(tuple(dict.fromkeys(gpus)))

    def __str__(self) -> str:
        names = ("host" if gpu is None else f"gpu{gpu}" for gpu in (self.source, self.destination))
        return "-".join(names)


@dataclass(frozen=True, slots=True)
class Flow:
    """One prepared route, enqueued again and again on a stream of `timed_gpu`.

    `load` makes the source hold a pattern, `enqueue` starts one operation that moves `moved_bytes`,
    `poison` and `compare` are the destination's owner at work.
    """

    route: Route
    timed_gpu: int
    stream: Stream
    moved_bytes: int
    checked_bytes: int
    load: Callable[[Pattern], Memory]
    enqueue: Callable[[Memory], None]
    poison: Callable[[], None]
    compare: Callable[[Pattern], Comparison]
    direct: bool = False  # between two GPUs, where the driver picks the path: counters tell
    steps: int = 1  # what one operation does one after the other; its time is divided by them
    both_ways: bool = False  # half of the bytes return to the source
    gate: bool = True  # False: enqueuing waits for the bytes, so no gate may stand before it
    once: bool = False  # an operation uses up its source: load again before each
    # Why the sample just taken may look better than the truth, or None.
    doubt: Callable[[], str | None] = lambda: None


class Shape(StrEnum):
    """Between what a method moves bytes, which decides where it is measured."""

    PAIR = "pair"  # from one GPU to another
    FROM_HOST = "from host"
    TO_HOST = "to host"
    WITHIN = "within"  # inside one GPU


class Method(Protocol):
    """A way to move bytes: one class a method, in a file of this folder."""

    name: ClassVar[str]
    uses_peer_access: ClassVar[bool]  # it is switched on, or off for `no-access`, before
    path: ClassVar[PathKind | None]  # what it takes by construction; None: nothing fixed
    direct: ClassVar[bool]  # between two GPUs, where the driver picks the path

    def checks(self) -> tuple[Check, ...]:
        """Every variant that the suites measure."""
        ...

    def shape(self, check: Check) -> tuple[Shape, ...]: ...

    def default_size_bytes(self, check: Check) -> int: ...

    def flow(self, check: Check, route: Route, arena: Arena, size_bytes: int) -> Flow:
        """Buffers and a stream for one route of `check`."""
        ...

    def lacks(self, check: Check, route: Route, arena: Arena) -> str | None:
        """Why this machine cannot do it at all, or None: "gpu0 has no memory pools"."""
        ...


def write(arena: Arena, memory: Memory, owner_gpu: int | None, content: Pattern | int) -> Memory:
    """Fill memory by its owner and wait: that GPU, or the CPU."""
    if owner_gpu is None:
        arena.driver.fill_host(memory, content)
    else:
        arena.driver.launch(Fill(memory, content), arena.stream(owner_gpu))
        wait_idle(arena, owner_gpu)
    return memory


def plain_flow(
    arena: Arena,
    route: Route,
    timed_gpu: int,
    destination: Memory,
    load: Callable[[Pattern], Memory],
    enqueue: Callable[[Memory, Stream], None],
) -> Flow:
    """One operation moves all of the source to `destination`, which its owner poisons and checks.

    `enqueue` gets the source that `load` returned, and the flow's stream.
    """
    stream = arena.stream(timed_gpu, route.slot)

    def poison() -> None:
        write(arena, destination, route.destination, POISON_WORD)

    return Flow(
        route=route,
        timed_gpu=timed_gpu,
        stream=stream,
        moved_bytes=destination.size_bytes,
        checked_bytes=destination.size_bytes,
        load=load,
        enqueue=lambda source: enqueue(source, stream),
        poison=poison,
        compare=lambda pattern: arena.driver.compare(destination, pattern),
    )
