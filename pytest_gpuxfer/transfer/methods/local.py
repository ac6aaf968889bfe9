"""`local_copy` and `load_latency`: within a GPU, and dependent loads wherever memory is."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from pytest_gpuxfer.hardware.driver import (
    CHAIN_LINE_BYTES,
    ChaseChain,
    Comparison,
    Memory,
    WriteChain,
)
from pytest_gpuxfer.model.cell import Check, Engine
from pytest_gpuxfer.model.measurement import PathKind
from pytest_gpuxfer.model.pattern import POISON_WORD, Pattern
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import Flow, Route, Shape, plain_flow, write
from pytest_gpuxfer.transfer.methods.device_copy import UnifiedCopy
from pytest_gpuxfer.transfer.methods.host_link import HostToDevice
from pytest_gpuxfer.transfer.waiting import wait_idle

_SIZE_BYTES: Final = 512 * MIB
_CHAIN_BYTES: Final = 2 * MIB  # 16384 lines: more than a GPU's first cache, within its TLB's reach
_LOADED_CHAIN_BYTES: Final = MIB // 2  # soon done: while the copies still run
_FEWEST_HOPS: Final = 4096
_UNDER_LOAD: Final = "under-load"
# For so many hops, of 512 MiB: 16 ms over 18 NVLinks of 26.6 GB/s, and the loads take half that.
_BULK_COPIES: Final = 12


class LocalCopy:
    """A copy engine within one GPU; the bytes copied are counted once."""

    name: ClassVar[str] = "local_copy"
    uses_peer_access: ClassVar[bool] = False
    path: ClassVar[PathKind | None] = PathKind.LOCAL
    direct: ClassVar[bool] = False

    def checks(self) -> tuple[Check, ...]:
        return (Check(self.name),)

    def shape(self, check: Check) -> tuple[Shape, ...]:  # noqa: ARG002
        return (Shape.WITHIN,)

    def default_size_bytes(self, check: Check) -> int:  # noqa: ARG002
        return _SIZE_BYTES

    def lacks(self, check: Check, route: Route, arena: Arena) -> str | None:  # noqa: ARG002
        return None

    def flow(self, check: Check, route: Route, arena: Arena, size_bytes: int) -> Flow:  # noqa: ARG002
        gpu = route.source
        assert gpu is not None
        source = arena.device(gpu, "source 0", size_bytes)
        destination = arena.device(gpu, "destination 0", size_bytes)
        return plain_flow(
            arena, route, gpu, destination,
            load=lambda pattern: write(arena, source, gpu, pattern),
            enqueue=lambda held, stream: arena.driver.copy(destination, held, stream),
        )  # fmt: skip


class LoadLatency:
    """One thread of a GPU follows a permuted chain: of a peer's memory, or of the host's (pinned).

    Each load waits for the one before. It moves no data; what is checked is that the thread came
    round to where the chain begins.
    """

    name: ClassVar[str] = "load_latency"
    uses_peer_access: ClassVar[bool] = True
    path: ClassVar[PathKind | None] = None
    direct: ClassVar[bool] = False

    def checks(self) -> tuple[Check, ...]:
        plain = Check(self.name, Engine.SM)
        of_host = replace(plain, memory="mapped")
        loaded = (replace(check, pattern=_UNDER_LOAD) for check in (plain, of_host))
        return (plain, of_host, *loaded)

    def shape(self, check: Check) -> tuple[Shape, ...]:
        return (Shape.FROM_HOST,) if check.memory == "mapped" else (Shape.PAIR,)

    def default_size_bytes(self, check: Check) -> int:
        return _LOADED_CHAIN_BYTES if check.pattern == _UNDER_LOAD else _CHAIN_BYTES

    def lacks(self, check: Check, route: Route, arena: Arena) -> str | None:  # noqa: ARG002
        return None

    def flow(self, check: Check, route: Route, arena: Arena, size_bytes: int) -> Flow:
        flow = self._chase(route, arena, size_bytes)
        if check.pattern != _UNDER_LOAD:
            return flow
        return _beside_copies(flow, arena, -(-flow.steps // _FEWEST_HOPS) * _BULK_COPIES)

    def _chase(self, route: Route, arena: Arena, size_bytes: int) -> Flow:
        # The thread runs on the source of a pair, and on the GPU that reads the host.
        gpu = route.destination if route.source is None else route.source
        owner = None if route.source is None else route.destination
        assert gpu is not None
        memory = (
            arena.host("chain", size_bytes)
            if owner is None
            else arena.device(owner, "chain", size_bytes)
        )
        stream = arena.stream(gpu)
        lines = size_bytes // CHAIN_LINE_BYTES
        hops = lines * -(-_FEWEST_HOPS // lines)  # once round, or so often
        arrived = arena.device(gpu, "arrived", 16)

        def load(pattern: Pattern) -> Memory:
            del pattern
            writer = gpu if owner is None else owner
            arena.driver.launch(WriteChain(memory), arena.stream(writer))
            wait_idle(arena, writer)
            return memory

        def poison() -> None:
            write(arena, arrived, gpu, POISON_WORD)

        def came_round(pattern: Pattern) -> Comparison:
            del pattern
            (offset,) = arena.driver.read_words(arrived, 1)
            return Comparison(0) if offset == 0 else Comparison(1, 0, 0, 0, offset)

        return Flow(
            route=route,
            timed_gpu=gpu,
            stream=stream,
            moved_bytes=8 * hops,
            steps=hops,
            checked_bytes=8,
            load=load,
            enqueue=lambda held: arena.driver.launch(ChaseChain(held, hops, arrived), stream),
            poison=poison,
            compare=came_round,
        )


def _beside_copies(flow: Flow, arena: Arena, copies: int) -> Flow:
    """The same while copies fill the link; they must outlast it, so no gate may hold it back.

    They are enqueued with the poison, before the loads' start event: no time of theirs counts; and
    `once` a sample, with the loads.
    """
    route = replace(flow.route, slot=1)
    if route.is_pair:
        copy = UnifiedCopy().flow(Check(UnifiedCopy.name), route, arena, _SIZE_BYTES)
    else:
        copy = HostToDevice().flow(Check(HostToDevice.name), route, arena, _SIZE_BYTES // 4)
    source = copy.load(Pattern(0))

    def poison() -> None:
        flow.poison()
        for _ in range(copies):
            copy.enqueue(source)

    def compare(pattern: Pattern) -> Comparison:
        wait_idle(arena, copy.timed_gpu, copy.stream)
        return flow.compare(pattern)

    def doubt() -> str | None:
        ended = arena.driver.stream_idle(copy.stream)
        return "the copies beside them ended before the loads did" if ended else None

    return replace(flow, poison=poison, compare=compare, doubt=doubt, gate=False, once=True)
