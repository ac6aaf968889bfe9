"""`peer_copy` and `unified_copy`: a copy engine moves bytes from one GPU's memory to another's."""

from __future__ import annotations

from itertools import product
from typing import ClassVar, Final

from pytest_gpuxfer.hardware.driver import Fill, Memory
from pytest_gpuxfer.model.cell import Cell, Check, Initiator
from pytest_gpuxfer.model.pattern import Pattern
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import Transfer
from pytest_gpuxfer.transfer.waiting import wait_idle

_SIZE_BYTES: Final = 512 * MIB
# A staged copy is ten times slower and no more exact for being larger.
_STAGED_SIZE_BYTES: Final = 64 * MIB


class _DeviceCopy:
    name: ClassVar[str]
    between_gpus: ClassVar[bool] = True
    uses_peer_access: ClassVar[bool] = True

    def checks(self) -> tuple[Check, ...]:
        return tuple(
            Check(self.name, initiator=initiator, access=access)
            for access, initiator in product((False, True), Initiator)
        )

    def default_size_bytes(self, check: Check) -> int:
        return _SIZE_BYTES if check.access else _STAGED_SIZE_BYTES

    def prepare(self, cell: Cell, arena: Arena, size_bytes: int) -> Transfer:
        source_gpu, destination_gpu = cell.place.gpus
        # Write: the source's copy engine pushes; read: the destination's pulls.
        timed = destination_gpu if cell.check.initiator is Initiator.READ else source_gpu
        source = arena.device(source_gpu, "source", size_bytes)
        destination = arena.device(destination_gpu, "destination", size_bytes)
        stream = arena.stream(timed)
        copy = arena.driver.copy_peer if self.name == "peer_copy" else arena.driver.copy

        def load(pattern: Pattern) -> Memory:
            arena.driver.fill(Fill(source, pattern), arena.stream(source_gpu))
            wait_idle(arena, source_gpu)
            return source

        return Transfer(
            size_bytes=size_bytes,
            timed_gpu=timed,
            destination=destination,
            destination_gpu=destination_gpu,
            load=load,
            enqueue=lambda held: copy(destination, held, stream),
            direct_pair=(source_gpu, destination_gpu),
        )


class PeerCopy(_DeviceCopy):
    """cuMemcpyPeerAsync: both GPUs are named."""

    name = "peer_copy"


class UnifiedCopy(_DeviceCopy):
    """cuMemcpyAsync on unified addresses (cudaMemcpyDefault): the driver infers the GPUs."""

    name = "unified_copy"
