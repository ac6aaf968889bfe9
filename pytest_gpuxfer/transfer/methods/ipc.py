"""`ipc_copy`: into memory that another process owns, as inference servers and collectives do."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from pytest_gpuxfer.hardware.driver import DeviceKind, Feature
from pytest_gpuxfer.model.cell import Check, Initiator
from pytest_gpuxfer.model.measurement import PathKind
from pytest_gpuxfer.model.pattern import POISON_WORD
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import Flow, Route, Shape, write

_SIZE_BYTES: Final = 256 * MIB


class IpcCopy:
    """A copy engine of the source GPU pushes into memory that a process on the other GPU shares.

    `malloc` is shared by legacy IPC handle, `vmm` by file descriptor; `hidden` is a process that
    may see no GPU but its own (CUDA_VISIBLE_DEVICES). The owner checks its data itself.
    """

    name: ClassVar[str] = "ipc_copy"
    uses_peer_access: ClassVar[bool] = True
    path: ClassVar[PathKind | None] = None
    direct: ClassVar[bool] = True

    def checks(self) -> tuple[Check, ...]:
        plain = Check(self.name, initiator=Initiator.WRITE)
        return tuple(
            replace(plain, memory=kind, pattern=pattern)
            for kind in (None, "vmm")
            for pattern in (None, "hidden")
        )

    def shape(self, check: Check) -> tuple[Shape, ...]:  # noqa: ARG002
        return (Shape.PAIR,)

    def default_size_bytes(self, check: Check) -> int:  # noqa: ARG002
        return _SIZE_BYTES

    def lacks(self, check: Check, route: Route, arena: Arena) -> str | None:
        gpu = route.destination
        assert gpu is not None
        needed = Feature.FILE_DESCRIPTORS
        if check.memory != "vmm" or arena.supports(gpu, needed):
            return None
        return f"gpu{gpu}: no {needed}"

    def flow(self, check: Check, route: Route, arena: Arena, size_bytes: int) -> Flow:
        source_gpu, owner_gpu = route.source, route.destination
        assert source_gpu is not None
        assert owner_gpu is not None
        kind = DeviceKind(check.memory or DeviceKind.MALLOC)
        lent = arena.lent(owner_gpu, source_gpu, kind, size_bytes, hidden=check.pattern == "hidden")
        source = arena.device(source_gpu, "source 0", size_bytes)
        stream = arena.stream(source_gpu)
        return Flow(
            route=route,
            timed_gpu=source_gpu,
            stream=stream,
            moved_bytes=size_bytes,
            checked_bytes=size_bytes,
            load=lambda pattern: write(arena, source, source_gpu, pattern),
            enqueue=lambda held: arena.driver.copy(lent.memory, held, stream),
            poison=lambda: lent.owner.fill(POISON_WORD, size_bytes),
            compare=lambda pattern: lent.owner.compare(pattern, size_bytes),
            direct=True,
        )
