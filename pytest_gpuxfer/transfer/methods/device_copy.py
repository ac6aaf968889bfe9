"""`peer_copy`, `unified_copy`, `kernel_copy`, `small_copy_latency`: from one GPU to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Final

from pytest_gpuxfer.hardware.driver import DeviceKind, Feature, KernelCopy, Memory, Stream
from pytest_gpuxfer.model.cell import Check, Engine, Initiator
from pytest_gpuxfer.model.measurement import PathKind
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import Flow, Route, Shape, plain_flow, write

_SIZE_BYTES: Final = 512 * MIB
# A staged copy is ten times slower and no more exact for being larger.
_STAGED_SIZE_BYTES: Final = 64 * MIB
_MANY_FLOWS_BYTES: Final = 128 * MIB
_SIZES_BYTES: Final = {"bidirectional": 256 * MIB, "round-trip": 128 * MIB}
_LATENCY_BYTES: Final = 16
_MANY_FLOWS: Final = ("all-to-one", "one-to-all", "ring", "all-to-all")
_NEEDED: Final = {
    DeviceKind.POOL: Feature.MEMORY_POOLS,
    DeviceKind.VMM: Feature.VIRTUAL_MEMORY,
}

Enqueue = Callable[[Memory, Memory, Stream], None]


class _DeviceCopy:
    name: ClassVar[str]
    uses_peer_access: ClassVar[bool] = True
    path: ClassVar[PathKind | None] = None
    direct: ClassVar[bool] = True

    def shape(self, check: Check) -> tuple[Shape, ...]:  # noqa: ARG002
        return (Shape.PAIR,)

    def default_size_bytes(self, check: Check) -> int:
        if not check.access:
            return _STAGED_SIZE_BYTES
        if check.pattern in _MANY_FLOWS:
            return _MANY_FLOWS_BYTES
        return _SIZES_BYTES.get(check.pattern or "", _SIZE_BYTES)

    def lacks(self, check: Check, route: Route, arena: Arena) -> str | None:
        needed = _NEEDED.get(_kind(check))
        gpus = (route.source, route.destination)
        if needed is None:
            return None
        without = [f"gpu{g}" for g in gpus if g is not None and not arena.supports(g, needed)]
        return f"{', '.join(without)}: no {needed}" if without else None

    def flow(self, check: Check, route: Route, arena: Arena, size_bytes: int) -> Flow:
        source_gpu, destination_gpu = route.source, route.destination
        assert source_gpu is not None
        assert destination_gpu is not None
        kind = _kind(check)
        source = arena.device(source_gpu, f"source {route.slot}", size_bytes, kind)
        destination = arena.device(destination_gpu, f"destination {route.slot}", size_bytes, kind)
        if kind is not DeviceKind.MALLOC:
            arena.let(source, destination_gpu, allowed=check.access)
            arena.let(destination, source_gpu, allowed=check.access)
        # Write: the source's engine pushes; read: the destination's pulls.
        timed = destination_gpu if check.initiator is Initiator.READ else source_gpu
        move = self._enqueue(arena, check, route)
        if check.pattern == "round-trip":
            return _there_and_back(arena, route, source, destination, move)
        flow = plain_flow(
            arena,
            route,
            timed,
            destination,
            load=lambda pattern: write(arena, source, source_gpu, pattern),
            enqueue=lambda held, stream: move(destination, held, stream),
        )
        return replace(flow, direct=True)

    def _enqueue(self, arena: Arena, check: Check, route: Route) -> Enqueue:  # noqa: ARG002
        return arena.driver.copy


def _there_and_back(
    arena: Arena, route: Route, source: Memory, turn: Memory, move: Enqueue
) -> Flow:
    """To the other GPU and back, one after the other: each byte is counted both ways."""
    gpu = route.source
    assert gpu is not None
    back = arena.device(gpu, "destination 0", source.size_bytes)

    def enqueue(held: Memory, stream: Stream) -> None:
        move(turn, held, stream)
        move(back, turn, stream)

    flow = plain_flow(
        arena,
        replace(route, destination=gpu),
        gpu,
        back,
        load=lambda pattern: write(arena, source, gpu, pattern),
        enqueue=enqueue,
    )
    return replace(
        flow, route=route, moved_bytes=2 * source.size_bytes, both_ways=True, direct=True
    )


def _kind(check: Check) -> DeviceKind:
    return DeviceKind(check.memory or DeviceKind.MALLOC)


class PeerCopy(_DeviceCopy):
    """cuMemcpyPeerAsync: both GPUs are named."""

    name = "peer_copy"

    def checks(self) -> tuple[Check, ...]:
        return (
            *(
                Check(self.name, initiator=initiator, access=access)
                for access in (False, True)
                for initiator in Initiator
            ),
            Check(self.name, initiator=Initiator.WRITE, pattern="round-trip"),
        )

    def _enqueue(self, arena: Arena, check: Check, route: Route) -> Enqueue:  # noqa: ARG002
        return arena.driver.copy_peer


class UnifiedCopy(_DeviceCopy):
    """cuMemcpyAsync on unified addresses (cudaMemcpyDefault): the driver infers the GPUs.

    It carries the patterns of many flows and the kinds of memory for copy engines.
    """

    name = "unified_copy"

    def checks(self) -> tuple[Check, ...]:
        plain = Check(self.name, initiator=Initiator.WRITE)
        pulled = replace(plain, initiator=Initiator.READ)
        return (
            *(
                replace(check, access=access)
                for access in (False, True)
                for check in (plain, pulled)
            ),
            *(
                replace(plain, memory=kind, access=access)
                for access in (False, True)
                for kind in (DeviceKind.POOL, DeviceKind.VMM)
            ),
            replace(plain, pattern="bidirectional"),
            replace(pulled, pattern="bidirectional"),
            *(
                replace(check, pattern=pattern)
                for pattern in ("all-to-one", "one-to-all")
                for check in (plain, pulled)
            ),
            *(replace(plain, pattern=p) for p in ("ring", "disjoint-pairs", "all-to-all")),
        )


class KernelCopy16(_DeviceCopy):
    """A kernel loads and stores 16 bytes at a time: what collectives do."""

    name = "kernel_copy"

    def checks(self) -> tuple[Check, ...]:
        plain = Check(self.name, Engine.SM, Initiator.WRITE)
        pulled = replace(plain, initiator=Initiator.READ)
        patterns = (None, "bidirectional", "all-to-one", "one-to-all")
        return (
            *(replace(check, pattern=pattern) for pattern in patterns for check in (plain, pulled)),
            *(replace(plain, memory=kind) for kind in (DeviceKind.POOL, DeviceKind.VMM)),
        )

    def _enqueue(self, arena: Arena, check: Check, route: Route) -> Enqueue:
        # Kernels that one GPU runs at once share it: the first would starve the others.
        pulls = check.initiator is Initiator.READ
        sharers = route.same_destination if pulls else route.same_source
        return lambda destination, source, stream: arena.driver.launch(
            KernelCopy(destination, source, sharers), stream
        )


class SmallCopyLatency(_DeviceCopy):
    """How long a copy of 16 bytes takes when many follow each other: staging shows in it."""

    name = "small_copy_latency"

    def checks(self) -> tuple[Check, ...]:
        return (Check(self.name, access=False), Check(self.name))

    def default_size_bytes(self, check: Check) -> int:  # noqa: ARG002
        return _LATENCY_BYTES
