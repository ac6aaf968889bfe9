"""`host_relay`: our own way through the CPU's memory, device to host and then host to device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from pytest_gpuxfer.hardware.driver import HostKind, Memory, Stream
from pytest_gpuxfer.model.cell import Check
from pytest_gpuxfer.model.measurement import PathKind
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import Flow, Route, Shape, plain_flow, write

_SIZE_BYTES: Final = 128 * MIB  # as in the table that people compare with
_CHUNK_BYTES: Final = 8 * MIB  # 98% of a large copy's rate on PCIe Gen5 x16
_CHUNKS_AHEAD: Final = 4

Move = Callable[[Memory, Memory, Stream], None]


@dataclass(frozen=True, slots=True)
class Legs:
    """How bytes leave the source GPU for host memory, and how they enter the other."""

    out: Move
    into: Move


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A part of the source, its place in the relay buffer, and its place at the destination."""

    source: Memory
    relay: Memory
    destination: Memory
    lane: int  # chunks of one lane use the same relay memory, one after the other


def relay_flow(
    route: Route,
    arena: Arena,
    size_bytes: int,
    legs: Legs,
    *,
    kind: HostKind = HostKind.PINNED,
    lanes: int = 1,
) -> Flow:
    """Through one host buffer: whole with one lane, else in chunks so that the legs overlap."""
    source_gpu, destination_gpu = route.source, route.destination
    assert source_gpu is not None
    assert destination_gpu is not None
    chunk_bytes = size_bytes if lanes == 1 else min(_CHUNK_BYTES, size_bytes)
    source = arena.device(source_gpu, "source 0", size_bytes)
    destination = arena.device(destination_gpu, "destination 0", size_bytes)
    relay = arena.host("relay", chunk_bytes * lanes, kind)
    inward = arena.stream(destination_gpu)
    chunks = tuple(_chunks(source, relay, destination, chunk_bytes, lanes))
    driver = arena.driver

    def enqueue(held: Memory, outward: Stream) -> None:
        del held  # the chunks are windows on it
        for number, chunk in enumerate(chunks):
            landed = arena.event(source_gpu, f"landed {chunk.lane}")
            arrived = arena.event(destination_gpu, f"arrived {chunk.lane}")
            if number >= lanes:
                driver.wait_event(arrived, outward)  # until its relay memory is free again
            legs.out(chunk.relay, chunk.source, outward)
            driver.record_event(landed, outward)
            driver.wait_event(landed, inward)
            legs.into(chunk.destination, chunk.relay, inward)
            driver.record_event(arrived, inward)
        driver.wait_event(arena.event(destination_gpu, f"arrived {chunks[-1].lane}"), outward)

    flow = plain_flow(
        arena,
        route,
        source_gpu,
        destination,
        load=lambda pattern: write(arena, source, source_gpu, pattern),
        enqueue=enqueue,
    )
    return replace(flow, gate=kind is not HostKind.PAGEABLE)


def _chunks(
    source: Memory, relay: Memory, destination: Memory, chunk_bytes: int, lanes: int
) -> Iterator[_Chunk]:
    for number, offset in enumerate(range(0, source.size_bytes, chunk_bytes)):
        size = min(chunk_bytes, source.size_bytes - offset)
        lane = number % lanes
        yield _Chunk(
            source.window(offset, size),
            relay.window(lane * chunk_bytes, size),
            destination.window(offset, size),
            lane,
        )


class HostRelay:
    """Through host memory of each kind, one leg after the other; needs no peer access.

    Pipelined, the copy into the second GPU runs while the next chunk leaves the first.
    """

    name: ClassVar[str] = "host_relay"
    uses_peer_access: ClassVar[bool] = False
    path: ClassVar[PathKind | None] = PathKind.HOST_LINK
    direct: ClassVar[bool] = False

    def checks(self) -> tuple[Check, ...]:
        plain = Check(self.name)
        kinds = (HostKind.PAGEABLE, HostKind.REGISTERED, HostKind.SHARED)
        return (
            plain,
            *(replace(plain, memory=kind) for kind in kinds),
            replace(plain, pattern="pipelined"),
        )

    def shape(self, check: Check) -> tuple[Shape, ...]:  # noqa: ARG002
        return (Shape.PAIR,)

    def default_size_bytes(self, check: Check) -> int:  # noqa: ARG002
        return _SIZE_BYTES

    def lacks(self, check: Check, route: Route, arena: Arena) -> str | None:  # noqa: ARG002
        return None

    def flow(self, check: Check, route: Route, arena: Arena, size_bytes: int) -> Flow:
        copy = arena.driver.copy
        return relay_flow(
            route,
            arena,
            size_bytes,
            Legs(copy, copy),
            kind=HostKind(check.memory or HostKind.PINNED),
            lanes=_CHUNKS_AHEAD if check.pattern == "pipelined" else 1,
        )
