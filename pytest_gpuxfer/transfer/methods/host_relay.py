"""`host_relay`: our own way through the CPU's memory, device to host and then host to device."""

from __future__ import annotations

from typing import ClassVar, Final

from pytest_gpuxfer.hardware.driver import Fill, Memory
from pytest_gpuxfer.model.cell import Cell, Check
from pytest_gpuxfer.model.pattern import Pattern
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import Transfer
from pytest_gpuxfer.transfer.waiting import wait_idle

_SIZE_BYTES: Final = 128 * MIB  # as in the table that people compare with


class HostRelay:
    """Through one pinned buffer, whole, one leg after the other; needs no peer access."""

    name: ClassVar[str] = "host_relay"
    between_gpus: ClassVar[bool] = True
    uses_peer_access: ClassVar[bool] = False

    def checks(self) -> tuple[Check, ...]:
        return (Check(self.name),)

    def default_size_bytes(self, check: Check) -> int:  # noqa: ARG002
        return _SIZE_BYTES

    def prepare(self, cell: Cell, arena: Arena, size_bytes: int) -> Transfer:
        source_gpu, destination_gpu = cell.place.gpus
        driver = arena.driver
        source = arena.device(source_gpu, "source", size_bytes)
        destination = arena.device(destination_gpu, "destination", size_bytes)
        relay = arena.host("relay", size_bytes)
        out_stream, in_stream = arena.stream(source_gpu), arena.stream(destination_gpu)
        landed, arrived = arena.event(source_gpu, "landed"), arena.event(destination_gpu, "arrived")

        def load(pattern: Pattern) -> Memory:
            driver.fill(Fill(source, pattern), out_stream)
            wait_idle(arena, source_gpu)
            return source

        def enqueue(held: Memory) -> None:
            driver.copy(relay, held, out_stream)
            driver.record_event(landed, out_stream)
            driver.wait_event(landed, in_stream)
            driver.copy(destination, relay, in_stream)
            driver.record_event(arrived, in_stream)
            driver.wait_event(arrived, out_stream)

        return Transfer(
            size_bytes=size_bytes,
            timed_gpu=source_gpu,
            destination=destination,
            destination_gpu=destination_gpu,
            load=load,
            enqueue=enqueue,
        )
