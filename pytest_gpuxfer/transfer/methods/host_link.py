"""`host_to_device`, `device_to_host`, `zero_copy`: over the GPU's link to host memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, Final

from pytest_gpuxfer.hardware.driver import HostKind, KernelCopy, Memory, Stream
from pytest_gpuxfer.model.cell import Check, Engine, Initiator
from pytest_gpuxfer.model.measurement import PathKind
from pytest_gpuxfer.model.pattern import Pattern
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import HOST, Flow, Route, Shape, plain_flow, write
from pytest_gpuxfer.transfer.methods.host_relay import Legs, Move, relay_flow

# Within 0.1% of 512 MiB on PCIe Gen5 x16, at half the pinned memory.
_SIZE_BYTES: Final = 256 * MIB
_MANY_FLOWS_BYTES: Final = 64 * MIB
_KINDS: Final = (HostKind.PAGEABLE, HostKind.REGISTERED, HostKind.SHARED)
_ALL_GPUS: Final = ("host-to-all", "all-to-host", "host-and-all")


class _HostLink(ABC):
    name: ClassVar[str]
    uses_peer_access: ClassVar[bool] = False
    path: ClassVar[PathKind | None] = PathKind.HOST_LINK
    direct: ClassVar[bool] = False

    def default_size_bytes(self, check: Check) -> int:
        return _MANY_FLOWS_BYTES if check.pattern in _ALL_GPUS else _SIZE_BYTES

    def lacks(self, check: Check, route: Route, arena: Arena) -> str | None:  # noqa: ARG002
        return None

    def flow(self, check: Check, route: Route, arena: Arena, size_bytes: int) -> Flow:
        kind = HostKind(check.memory or HostKind.PINNED)
        if route.source is HOST:
            flow = self._from_host(route, arena, size_bytes, kind, check)
        else:
            flow = self._to_host(route, arena, size_bytes, kind, check)
        # A copy of pageable memory is made by the CPU while it is enqueued.
        return replace(flow, gate=kind is not HostKind.PAGEABLE)

    def _from_host(
        self, route: Route, arena: Arena, size_bytes: int, kind: HostKind, check: Check
    ) -> Flow:
        gpu = route.destination
        assert gpu is not None
        destination = arena.device(gpu, f"destination {route.slot}", size_bytes)
        node = arena.node_for(gpu, far=check.far)

        def load(pattern: Pattern) -> Memory:
            return arena.host_window(pattern, size_bytes, kind, node)

        return plain_flow(
            arena, route, gpu, destination, load,
            enqueue=lambda held, stream: self._move(arena, check, destination, held, stream),
        )  # fmt: skip

    def _to_host(
        self, route: Route, arena: Arena, size_bytes: int, kind: HostKind, check: Check
    ) -> Flow:
        gpu = route.source
        assert gpu is not None
        source = arena.device(gpu, f"source {route.slot}", size_bytes)
        # Each GPU of many has a destination of its own: none may hide what another wrote.
        role = f"destination gpu{gpu}" if check.pattern in _ALL_GPUS else "destination"
        destination = arena.host(role, size_bytes, kind, arena.node_for(gpu, far=check.far))
        return plain_flow(
            arena, route, gpu, destination,
            load=lambda pattern: write(arena, source, gpu, pattern),
            enqueue=lambda held, stream: self._move(arena, check, destination, held, stream),
        )  # fmt: skip

    @abstractmethod
    def _move(
        self, arena: Arena, check: Check, destination: Memory, source: Memory, stream: Stream
    ) -> None:
        """Enqueue one copy."""


class _EngineCopy(_HostLink):
    def _move(
        self, arena: Arena, check: Check, destination: Memory, source: Memory, stream: Stream
    ) -> None:
        del check
        arena.driver.copy(destination, source, stream)


class HostToDevice(_EngineCopy):
    """A copy engine moves host memory of every kind to a GPU's memory."""

    name = "host_to_device"

    def checks(self) -> tuple[Check, ...]:
        plain = Check(self.name)
        return (
            plain,
            *(replace(plain, memory=kind) for kind in _KINDS),
            *(replace(plain, pattern=p) for p in ("bidirectional", "host-to-all", "host-and-all")),
            replace(plain, pattern="far-node"),
        )

    def shape(self, check: Check) -> tuple[Shape, ...]:  # noqa: ARG002
        return (Shape.FROM_HOST,)


class DeviceToHost(_EngineCopy):
    """A copy engine moves a GPU's memory to host memory of every kind."""

    name = "device_to_host"

    def checks(self) -> tuple[Check, ...]:
        plain = Check(self.name)
        return (
            plain,
            *(replace(plain, memory=kind) for kind in _KINDS),
            *(replace(plain, pattern=pattern) for pattern in ("all-to-host", "far-node")),
        )

    def shape(self, check: Check) -> tuple[Shape, ...]:  # noqa: ARG002
        return (Shape.TO_HOST,)


class ZeroCopy(_HostLink):
    """A kernel works on mapped host memory, 16 bytes at a time, coalesced.

    Read: it loads from the host; write: it stores to the host; between two GPUs: one stores, the
    other loads.
    """

    name = "zero_copy"

    def checks(self) -> tuple[Check, ...]:
        read = Check(self.name, Engine.SM, Initiator.READ)
        write_ = replace(read, initiator=Initiator.WRITE)
        return (
            read,
            write_,
            replace(read, initiator=None),
            *(replace(read, pattern=p) for p in ("bidirectional", "host-to-all", "host-and-all")),
            replace(write_, pattern="all-to-host"),
        )

    def shape(self, check: Check) -> tuple[Shape, ...]:
        shapes = {Initiator.READ: Shape.FROM_HOST, Initiator.WRITE: Shape.TO_HOST, None: Shape.PAIR}
        return (shapes[check.initiator],)

    def flow(self, check: Check, route: Route, arena: Arena, size_bytes: int) -> Flow:
        if route.is_pair:
            return relay_flow(route, arena, size_bytes, Legs(*(self._leg(arena),) * 2))
        return super().flow(check, route, arena, size_bytes)

    def _leg(self, arena: Arena) -> Move:
        return lambda destination, source, stream: arena.driver.launch(
            KernelCopy(destination, source), stream
        )

    def _move(
        self, arena: Arena, check: Check, destination: Memory, source: Memory, stream: Stream
    ) -> None:
        # In both directions at once two kernels share the GPU.
        sharers = 2 if check.pattern in ("bidirectional", "host-and-all") else 1
        arena.driver.launch(KernelCopy(destination, source, sharers), stream)
