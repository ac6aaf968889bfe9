"""Copies by copy engines, by the driver, and what the CPU does to memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from pytest_gpuxfer.hardware.driver import Comparison, Context, DeviceKind, Feature, Memory, Stream
from pytest_gpuxfer.hardware.simulated.allocations import Allocations
from pytest_gpuxfer.hardware.simulated.defects import Damage, Trouble
from pytest_gpuxfer.hardware.simulated.engine import Operation, Queue
from pytest_gpuxfer.hardware.simulated.errors import fail
from pytest_gpuxfer.hardware.simulated.memory import Allocation, Managed, WordMap
from pytest_gpuxfer.hardware.simulated.process import ContextState
from pytest_gpuxfer.hardware.simulated.trouble import befall_call, endless
from pytest_gpuxfer.hardware.simulated.wiring import HOST_RATE_BYTES_PER_S, Route
from pytest_gpuxfer.model.pattern import WORD_BYTES, Pattern
from pytest_gpuxfer.model.units import MIB, NS_PER_S

_COMPARE_STARTUP_NS: Final = 20_000.0
# The driver stages piece by piece, in the caller's time, with so much on its way.
# Measured on H200: 14 us for 1 MiB, 240 us for 64 MiB, both long before the copy was done.
_PIECE_BYTES: Final = 16 * MIB
_AHEAD_BYTES: Final = 64 * MIB
_STAGING_NS: Final = 10_000.0
_STAGING_NS_PER_BYTE: Final = 3_500.0 / MIB

_Place = tuple[WordMap, int]  # and a word of it


class Copies(Allocations):
    """The Driver's calls that move bytes without a kernel of ours, and look at them."""

    def copy(self, destination: Memory, source: Memory, stream: Stream) -> None:
        self._copy("cuMemcpyAsync", destination, source, stream)

    def copy_peer(self, destination: Memory, source: Memory, stream: Stream) -> None:
        call = "cuMemcpyPeerAsync"
        if destination.ordinal is None or source.ordinal is None:
            fail(call, 1, "it copies between GPUs")
        self._copy(call, destination, source, stream)

    def prefetch(self, memory: Memory, target: Context | None, stream: Stream) -> None:
        call = "cuMemPrefetchAsync"
        state = self._enter(call, stream.context, stream.handle)
        allocation, start = self._locate(call, memory)
        if not isinstance(allocation.kind, Managed):
            fail(call, 1, "it is not managed")
        if not self.supports(state.ordinal, Feature.CONCURRENT_MANAGED_ACCESS):
            fail(call, 101)
        goal = None if target is None else self._state(call, target).ordinal
        self._bring(allocation, start, memory.size_bytes, goal, stream, by_faults=False)

    def fill_host(self, memory: Memory, content: Pattern | int) -> None:
        allocation, start = self._touch("fill_host", memory)
        self._node.spend(memory.size_bytes / HOST_RATE_BYTES_PER_S * NS_PER_S)
        allocation.words.fill(start, memory.size_bytes // WORD_BYTES, content)

    def read_words(self, memory: Memory, count: int) -> tuple[int, ...]:
        allocation, start = self._touch("cuMemcpyDtoH", memory.window(0, count * WORD_BYTES))
        self._node.spend(_COMPARE_STARTUP_NS)
        return tuple(allocation.words.word(start + index) for index in range(count))

    def compare(self, memory: Memory, content: Pattern) -> Comparison:
        allocation, start = self._touch("cuLaunchKernel", memory)
        duration_ns = memory.size_bytes / HOST_RATE_BYTES_PER_S * NS_PER_S
        if memory.ordinal is not None:
            local = self._node.wiring.kernel_read(memory.ordinal, memory.ordinal, 0)
            duration_ns = _COMPARE_STARTUP_NS + local.duration_ns(memory.size_bytes)
        self._node.spend(duration_ns)
        return allocation.words.compare(start, memory.size_bytes // WORD_BYTES, content)

    def _touch(self, call: str, memory: Memory) -> tuple[Allocation, int]:
        """Memory as its owner gets at it; only a device's owner has a context to ask."""
        if memory.ordinal is not None:
            owner = self._contexts.get(memory.ordinal)
            self._enter(call, Context(memory.ordinal, owner))
        allocation, start = self._locate(call, memory)
        self._bring_now(allocation, start, memory.size_bytes, memory.ordinal)
        return allocation, start

    def _copy(self, call: str, destination: Memory, source: Memory, stream: Stream) -> None:
        issuer = self._enter(call, stream.context, stream.handle).ordinal
        size_bytes = source.size_bytes
        if destination.size_bytes < size_bytes:
            fail(call, 1, "the destination is smaller than the source")
        origin, origin_start = self._locate(call, source)
        target, target_start = self._locate(call, destination.window(0, size_bytes))
        places = self._place(target, target_start), self._place(origin, origin_start)
        route = self._route(call, issuer, (target, origin), places)
        ends = (target.words, target_start), (origin.words, origin_start)
        arrive = partial(self._arrive, route, *ends, size_bytes // WORD_BYTES)
        if self._befallen(route, stream):
            return
        if route.staged:
            self._stage(route, size_bytes, stream, arrive)
            return
        self._run(route, size_bytes, stream, arrive)
        if target.is_pageable or origin.is_pageable:
            self._node.timeline.run_until(stream.handle)

    def _befallen(self, route: Route, stream: Stream) -> bool:
        """Whether a copy met trouble instead of being enqueued. The driver's staging meets none."""
        troubles = self._node.defects.troubles.get(route.gpus)
        if not troubles or route.staged:
            return False
        befall_call(troubles)
        if Trouble.STICKY_ERROR in troubles:
            state: ContextState = stream.context.handle
            self._enqueue(stream, Operation(route.gpus, partial(self._fault, state)))
        elif Trouble.COPY_HANGS in troubles:
            self._enqueue(stream, endless(route.gpus))
        else:
            return False
        return True

    def _arrive(self, route: Route, target: _Place, origin: _Place, words: int, _: float) -> None:
        """What a copy leaves at its end."""
        (written, start), (read, read_start) = target, origin
        if Damage.DROPPED in route.damage:
            return
        written.copy(start, read, read_start, words)
        if Damage.STALE in route.damage:
            self._node.spoiler.delay(route.gpus, written, start, words)
        self._node.spoiler.spoil(route.damage, written, start, words)

    def _stage(
        self, route: Route, size_bytes: int, stream: Stream, arrive: Callable[[float], None]
    ) -> None:
        self._node.spend(_STAGING_NS)
        whole_ns = self._node.duration_ns(route, size_bytes)
        queue: Queue = stream.handle

        def end(piece_bytes: int, _: float) -> None:
            queue.staged_bytes -= piece_bytes
            self._node.count(route, piece_bytes)

        for at in range(0, size_bytes, _PIECE_BYTES):
            piece_bytes = min(_PIECE_BYTES, size_bytes - at)
            self._node.timeline.run_until(queue, _AHEAD_BYTES - piece_bytes)
            self._node.spend(piece_bytes * _STAGING_NS_PER_BYTE)
            queue.staged_bytes += piece_bytes
            duration_ns, effect = whole_ns * piece_bytes / size_bytes, partial(end, piece_bytes)
            operation = Operation(route.gpus, effect, duration_ns, route.traffic())
            self._node.timeline.enqueue(queue, operation)
        self._enqueue(stream, Operation(route.gpus, arrive))

    def _route(
        self,
        call: str,
        issuer: int,
        allocations: tuple[Allocation, Allocation],
        places: tuple[int | None, int | None],
    ) -> Route:
        """The way from the second to the first of each."""
        wiring, (destination, source) = self._node.wiring, places
        if source is None or destination is None:
            gpu = destination if source is None else source
            if gpu is None:
                fail(call, 1, "a simulated machine copies nothing from host to host")
            host = allocations[1] if source is None else allocations[0]
            return wiring.host_copy(
                gpu,
                to_device=source is None,
                pageable=host.is_pageable,
                numa_node=host.numa_node,
            )
        if destination == source:
            return wiring.local_copy(source)
        mapped = self._mapped(*allocations, destination, source)
        if not mapped and any(held.kind is not DeviceKind.MALLOC for held in allocations):
            # An H200's driver stages what contexts lack, and refuses what pools and VMM lack.
            fail(call, 1, "no access was granted to this memory")
        return wiring.peer_copy(source, destination, issuer, mapped=mapped)

    def _mapped(
        self, target: Allocation, origin: Allocation, destination: int, source: int
    ) -> bool:
        """A copy engine needs the mapping of one side only, whichever that is.

        Where memory of a pool is among them, its own access counts, not a context's.
        """
        plain = target.kind is origin.kind is DeviceKind.MALLOC
        return any(
            self._may_use(gpu, held)
            for gpu, held in ((destination, origin), (source, target))
            if plain or held.kind is not DeviceKind.MALLOC
        )
