"""`host_to_device` and `device_to_host`: a copy engine moves bytes over the GPU's host link."""

from __future__ import annotations

from typing import ClassVar, Final

from pytest_gpuxfer.hardware.driver import Fill, Memory
from pytest_gpuxfer.model.cell import Cell, Check
from pytest_gpuxfer.model.pattern import Pattern
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import Transfer
from pytest_gpuxfer.transfer.waiting import wait_idle

# Within 0.1% of 512 MiB on PCIe Gen5 x16, at half the pinned memory.
_SIZE_BYTES: Final = 256 * MIB


class HostToDevice:
    """From pinned host memory to a GPU's memory."""

    name: ClassVar[str] = "host_to_device"
    between_gpus: ClassVar[bool] = False
    uses_peer_access: ClassVar[bool] = False

    def checks(self) -> tuple[Check, ...]:
        return (Check(self.name),)

    def default_size_bytes(self, check: Check) -> int:  # noqa: ARG002
        return _SIZE_BYTES

    def prepare(self, cell: Cell, arena: Arena, size_bytes: int) -> Transfer:
        (gpu,) = cell.place.gpus
        destination = arena.device(gpu, "destination", size_bytes)
        stream = arena.stream(gpu)
        return Transfer(
            size_bytes=size_bytes,
            timed_gpu=gpu,
            destination=destination,
            destination_gpu=gpu,
            load=lambda pattern: arena.host_window(pattern, size_bytes),
            enqueue=lambda held: arena.driver.copy(destination, held, stream),
        )


class DeviceToHost:
    """From a GPU's memory to pinned host memory."""

    name: ClassVar[str] = "device_to_host"
    between_gpus: ClassVar[bool] = False
    uses_peer_access: ClassVar[bool] = False

    def checks(self) -> tuple[Check, ...]:
        return (Check(self.name),)

    def default_size_bytes(self, check: Check) -> int:  # noqa: ARG002
        return _SIZE_BYTES

    def prepare(self, cell: Cell, arena: Arena, size_bytes: int) -> Transfer:
        (gpu,) = cell.place.gpus
        source = arena.device(gpu, "source", size_bytes)
        destination = arena.host("destination", size_bytes)
        stream = arena.stream(gpu)

        def load(pattern: Pattern) -> Memory:
            arena.driver.fill(Fill(source, pattern), stream)
            wait_idle(arena, gpu)
            return source

        return Transfer(
            size_bytes=size_bytes,
            timed_gpu=gpu,
            destination=destination,
            destination_gpu=None,
            load=load,
            enqueue=lambda held: arena.driver.copy(destination, held, stream),
        )
