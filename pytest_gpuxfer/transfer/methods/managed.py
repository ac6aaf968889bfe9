"""`managed`: pages of managed memory move by prefetch, or because a kernel touches them."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from pytest_gpuxfer.hardware.driver import Feature, KernelCopy, Memory, Stream
from pytest_gpuxfer.model.cell import Check, Engine, Initiator
from pytest_gpuxfer.model.measurement import PathKind
from pytest_gpuxfer.model.pattern import Pattern
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import Flow, Route, Shape, plain_flow, write

_SIZE_BYTES: Final = 128 * MIB  # well below what any GPU has free


class Managed:
    """Read: a GPU gets pages of the host; write: it gives them back; between GPUs: by prefetch.

    Engine `ce` is cuMemPrefetchAsync, `sm` is demand faults of a kernel. Moving uses up the source,
    so each operation has pages written afresh where they come from, and is never gated.
    """

    name: ClassVar[str] = "managed"
    uses_peer_access: ClassVar[bool] = False
    path: ClassVar[PathKind | None] = None
    direct: ClassVar[bool] = False

    def checks(self) -> tuple[Check, ...]:
        read = Check(self.name, initiator=Initiator.READ)
        return (
            read,
            replace(read, initiator=Initiator.WRITE),
            replace(read, initiator=None),
            replace(read, engine=Engine.SM),
        )

    def shape(self, check: Check) -> tuple[Shape, ...]:
        shapes = {Initiator.READ: Shape.FROM_HOST, Initiator.WRITE: Shape.TO_HOST, None: Shape.PAIR}
        return (shapes[check.initiator],)

    def default_size_bytes(self, check: Check) -> int:  # noqa: ARG002
        return _SIZE_BYTES

    def lacks(self, check: Check, route: Route, arena: Arena) -> str | None:  # noqa: ARG002
        needed = Feature.CONCURRENT_MANAGED_ACCESS
        gpus = {gpu for gpu in (route.source, route.destination) if gpu is not None}
        without = [f"gpu{gpu}" for gpu in sorted(gpus) if not arena.supports(gpu, needed)]
        return f"{', '.join(without)}: no {needed}" if without else None

    def flow(self, check: Check, route: Route, arena: Arena, size_bytes: int) -> Flow:
        gpu = route.destination if route.source is None else route.source
        assert gpu is not None
        memory = arena.managed(size_bytes)
        source = memory.used_by(arena.ordinal(route.source))
        destination = memory.used_by(arena.ordinal(route.destination))

        def load(pattern: Pattern) -> Memory:
            return write(arena, source, route.source, pattern)

        if check.engine is Engine.SM:
            seen = arena.device(gpu, "destination 0", size_bytes)
            return _unrepeated(
                plain_flow(
                    arena, route, gpu, seen, load,
                    enqueue=lambda held, stream: arena.driver.launch(
                        KernelCopy(seen, held.used_by(arena.ordinal(gpu))), stream
                    ),
                )
            )  # fmt: skip
        target = None if route.destination is None else arena.context(route.destination)

        def enqueue(held: Memory, stream: Stream) -> None:
            arena.driver.prefetch(held, target, stream)

        flow = plain_flow(arena, route, gpu, destination, load, enqueue)
        # The destination is the source's own pages: poison would be what is moved.
        return _unrepeated(replace(flow, poison=lambda: None))


def _unrepeated(flow: Flow) -> Flow:
    return replace(flow, gate=False, once=True)
