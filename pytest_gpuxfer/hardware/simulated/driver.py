"""CUDA as a simulated machine answers it, for one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NoReturn, TypeVar

from pytest_gpuxfer.hardware.driver import (
    Comparison,
    Context,
    DeviceInfo,
    DriverError,
    DriverVersion,
    Event,
    Fill,
    Gate,
    Memory,
    Stream,
)
from pytest_gpuxfer.hardware.simulated.engine import Hold, Mark, Operation, Queue
from pytest_gpuxfer.hardware.simulated.memory import AddressError, AddressSpace, WordMap
from pytest_gpuxfer.hardware.simulated.node import Node
from pytest_gpuxfer.hardware.simulated.wiring import HOST_RATE_BYTES_PER_S, Route
from pytest_gpuxfer.model.measurement import Access
from pytest_gpuxfer.model.pattern import WORD_BYTES, Pattern
from pytest_gpuxfer.model.units import KIB, NS_PER_S

_CALL_NS: Final = 2_000.0
_COMPARE_STARTUP_NS: Final = 20_000.0
_UNBLOCKED_BYTES: Final = 64 * KIB  # staged copies up to here leave the caller at once

_ERRORS: Final = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    101: "CUDA_ERROR_INVALID_DEVICE",
    201: "CUDA_ERROR_INVALID_CONTEXT",
    400: "CUDA_ERROR_INVALID_HANDLE",
    600: "CUDA_ERROR_NOT_READY",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    705: "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
}


_Handle = TypeVar("_Handle")


def _fail(call: str, code: int, explanation: str = "") -> NoReturn:
    raise DriverError(call, code, _ERRORS[code], explanation)


def _nothing(_: float) -> None:
    """What a wait does to the machine."""


@dataclass(slots=True, eq=False)
class _ContextState:
    """A primary context; `fault` is the code that every call of it answers from then on."""

    ordinal: int
    retains: int = 0
    peers: set[int] = field(default_factory=set)
    memories: set[Memory] = field(default_factory=set)
    fault: int | None = None


@dataclass(slots=True, eq=False)
class _EventState:
    mark: Mark | None = None  # the latest recording


@dataclass(slots=True, eq=False)
class _GateState:
    hold: Hold | None = None  # the latest closing


class SimulatedDriver:
    """Implements Driver over a Node. A real driver's checks and answers, at a machine's pace."""

    has_addresses: Final = False

    def __init__(self, node: Node) -> None:
        self._node = node
        self._space = AddressSpace()
        self._contexts: dict[int, _ContextState] = {}
        self._live: set[object] = set()  # contexts, queues, events and gates not yet destroyed
        self._used_bytes = [0] * len(node.machine.gpus)

    def version(self) -> DriverVersion:
        return DriverVersion(self._node.machine.cuda, "simulated")

    def devices(self) -> Sequence[DeviceInfo]:
        gpu = self._node.machine.gpu
        return [
            DeviceInfo(ordinal, uuid, slot.pci_address, gpu.name, int(gpu.memory))
            for ordinal, (uuid, slot) in enumerate(
                zip(self._node.uuids, self._node.machine.gpus, strict=True)
            )
        ]

    # Contexts and memory

    def retain_context(self, ordinal: int) -> Context:
        self._node.spend(_CALL_NS)
        self._check_device("cuDevicePrimaryCtxRetain", ordinal)
        state = self._contexts.get(ordinal)
        if state is None:
            state = self._contexts[ordinal] = _ContextState(ordinal)
            self._live.add(state)
        state.retains += 1
        return Context(ordinal, state)

    def release_context(self, context: Context) -> None:
        """The last release ends the context: its memory and mappings go, and its fault."""
        self._node.spend(_CALL_NS)
        state = self._state("cuDevicePrimaryCtxRelease", context)
        state.retains -= 1
        if state.retains:
            return
        self._node.timeline.drop(state.ordinal)
        for memory in tuple(state.memories):
            self._free(state, memory)
        self._live.discard(state)
        del self._contexts[state.ordinal]

    def free_memory_bytes(self, context: Context) -> int:
        state = self._enter("cuMemGetInfo", context)
        return int(self._node.machine.gpu.memory) - self._used_bytes[state.ordinal]

    def allocate_device(self, context: Context, size_bytes: int) -> Memory:
        call = "cuMemAlloc"
        state = self._enter(call, context)
        if size_bytes <= 0:
            _fail(call, 1)
        if self._used_bytes[state.ordinal] + size_bytes > self._node.machine.gpu.memory:
            _fail(call, 2)
        memory = self._space.allocate(size_bytes, state.ordinal)
        state.memories.add(memory)
        self._used_bytes[state.ordinal] += size_bytes
        return memory

    def free_device(self, context: Context, memory: Memory) -> None:
        state = self._enter("cuMemFree", context)
        if memory not in state.memories:
            _fail("cuMemFree", 1, "it is not allocated")
        self._free(state, memory)

    def allocate_host(self, context: Context, size_bytes: int) -> Memory:
        self._enter("cuMemHostAlloc", context)
        if size_bytes <= 0:
            _fail("cuMemHostAlloc", 1)
        return self._space.allocate(size_bytes, None)

    def free_host(self, context: Context, memory: Memory) -> None:
        self._enter("cuMemFreeHost", context)
        try:
            self._space.free(memory)
        except AddressError as error:
            _fail("cuMemFreeHost", 1, str(error))

    # Streams, events and gates

    def create_stream(self, context: Context) -> Stream:
        state = self._enter("cuStreamCreate", context)
        return Stream(context, self._born(Queue(state.ordinal)))

    def destroy_stream(self, stream: Stream) -> None:
        self._enter("cuStreamDestroy", stream.context, stream.handle)
        self._live.discard(stream.handle)

    def stream_idle(self, stream: Stream) -> bool:
        self._enter("cuStreamQuery", stream.context, stream.handle)
        return not stream.handle.operations

    def create_event(self, context: Context) -> Event:
        self._enter("cuEventCreate", context)
        return Event(context, self._born(_EventState()))

    def destroy_event(self, event: Event) -> None:
        self._enter("cuEventDestroy", event.context, event.handle)
        self._live.discard(event.handle)

    def record_event(self, event: Event, stream: Stream) -> None:
        state = self._enter("cuEventRecord", stream.context, stream.handle, event.handle)
        mark = event.handle.mark = Mark()
        self._node.timeline.enqueue(stream.handle, Operation((state.ordinal,), mark.happen))

    def wait_event(self, event: Event, stream: Stream) -> None:
        state = self._enter("cuStreamWaitEvent", stream.context, stream.handle, event.handle)
        wait = Operation((state.ordinal,), _nothing, after=event.handle.mark)
        self._node.timeline.enqueue(stream.handle, wait)

    def elapsed_ns(self, start: Event, end: Event) -> float:
        call = "cuEventElapsedTime"
        self._enter(call, start.context, start.handle, end.handle)
        first, last = start.handle.mark, end.handle.mark
        if first is None or last is None:
            _fail(call, 400, "an event was never recorded")
        if math.inf in (first.time_ns, last.time_ns):
            _fail(call, 600)
        elapsed: float = last.time_ns - first.time_ns
        return elapsed

    def create_gate(self, context: Context) -> Gate:
        self._enter("cuMemHostAlloc", context)
        return Gate(context, self._born(_GateState()))

    def destroy_gate(self, gate: Gate) -> None:
        self._enter("cuMemFreeHost", gate.context, gate.handle)
        self._live.discard(gate.handle)

    def close_gate(self, gate: Gate, stream: Stream, limit_ns: int) -> None:
        state = self._enter("cuLaunchKernel", stream.context, stream.handle, gate.handle)
        hold = gate.handle.hold = Hold(limit_ns)
        operation = Operation((state.ordinal,), effect=hold.finish, hold=hold)
        self._node.timeline.enqueue(stream.handle, operation)

    def open_gate(self, gate: Gate) -> None:
        self._enter("gate", gate.context, gate.handle)
        if gate.handle.hold is not None:
            gate.handle.hold.opened_ns = self._node.clock.time_ns

    def gate_expired(self, gate: Gate) -> bool:
        self._enter("gate", gate.context, gate.handle)
        return gate.handle.hold is not None and gate.handle.hold.expired

    # Moving bytes

    def copy(self, destination: Memory, source: Memory, stream: Stream) -> None:
        self._copy("cuMemcpyAsync", destination, source, stream)

    def copy_peer(self, destination: Memory, source: Memory, stream: Stream) -> None:
        call = "cuMemcpyPeerAsync"
        if destination.ordinal is None or source.ordinal is None:
            _fail(call, 1, "it copies between GPUs")
        self._copy(call, destination, source, stream)

    def fill(self, kernel: Fill, stream: Stream) -> None:
        call, memory = "cuLaunchKernel", kernel.memory
        state = self._enter(call, stream.context, stream.handle)
        words, start = self._locate(call, memory)
        route = self._node.wiring.fill(state.ordinal, memory.ordinal)
        if memory.ordinal not in (None, state.ordinal, *state.peers):
            operation = Operation(route.gpus, effect=partial(self._fault, state))
            self._node.timeline.enqueue(stream.handle, operation)
            return

        def store(_: float) -> None:
            words.fill(start, memory.size_bytes // WORD_BYTES, kernel.content)
            self._node.count(route, memory.size_bytes)

        self._run(route, memory.size_bytes, stream, store)

    def fill_host(self, memory: Memory, content: Pattern | int) -> None:
        self._node.spend(memory.size_bytes / HOST_RATE_BYTES_PER_S * NS_PER_S)
        words, start = self._locate("fill_host", memory)
        words.fill(start, memory.size_bytes // WORD_BYTES, content)

    def compare(self, memory: Memory, content: Pattern) -> Comparison:
        call, duration_ns = "memcmp", memory.size_bytes / HOST_RATE_BYTES_PER_S * NS_PER_S
        if memory.ordinal is not None:
            call, owner = "cuLaunchKernel", self._contexts.get(memory.ordinal)
            self._enter(call, Context(memory.ordinal, owner))
            local = self._node.wiring.fill(memory.ordinal, memory.ordinal)
            duration_ns = _COMPARE_STARTUP_NS + local.duration_ns(memory.size_bytes)
        self._node.spend(duration_ns)
        words, start = self._locate(call, memory)
        return words.compare(start, memory.size_bytes // WORD_BYTES, content)

    def host_view(self, memory: Memory) -> memoryview:
        raise TypeError(f"a simulated machine's memory has no address behind {memory.address:#x}")

    # Peer access

    def can_access_peer(self, ordinal: int, peer: int) -> bool:
        self._node.spend(_CALL_NS)
        self._check_device("cuDeviceCanAccessPeer", ordinal, peer)
        return self._node.wiring.access_offered(ordinal, peer)

    def enable_peer_access(self, context: Context, peer: Context) -> Access:
        call = "cuCtxEnablePeerAccess"
        if context.handle not in self._live or peer.handle not in self._live:
            return Access.WRONG_CONTEXT
        state = self._enter(call, context)
        if state.ordinal == peer.ordinal:
            _fail(call, 101)
        if peer.ordinal in state.peers:
            return Access.ALREADY_ENABLED
        if not self._node.wiring.access_offered(state.ordinal, peer.ordinal):
            return Access.UNSUPPORTED
        if len(state.peers) >= self._node.machine.max_peers:
            return Access.TOO_MANY_PEERS
        state.peers.add(peer.ordinal)
        return Access.ENABLED

    def disable_peer_access(self, context: Context, peer: Context) -> None:
        state = self._enter("cuCtxDisablePeerAccess", context)
        if peer.ordinal not in state.peers:
            _fail("cuCtxDisablePeerAccess", 705)
        state.peers.remove(peer.ordinal)

    # What the calls have in common

    def _enter(self, call: str, context: Context, *handles: object) -> _ContextState:
        """Begin a call: it takes its time, and refuses what is gone or faulted."""
        self._node.spend(_CALL_NS)
        state = self._state(call, context)
        if state.fault is not None:
            _fail(call, state.fault)
        if not self._live.issuperset(handles):
            _fail(call, 400)
        return state

    def _state(self, call: str, context: Context) -> _ContextState:
        state: _ContextState = context.handle
        if state not in self._live:
            _fail(call, 201)
        return state

    def _check_device(self, call: str, *ordinals: int) -> None:
        if not all(0 <= ordinal < len(self._node.uuids) for ordinal in ordinals):
            _fail(call, 101)

    def _locate(self, call: str, memory: Memory) -> tuple[WordMap, int]:
        try:
            return self._space.locate(memory)
        except AddressError as error:
            _fail(call, 1, str(error))

    def _born(self, handle: _Handle) -> _Handle:
        self._live.add(handle)
        return handle

    def _free(self, state: _ContextState, memory: Memory) -> None:
        self._space.free(memory)
        state.memories.remove(memory)
        self._used_bytes[state.ordinal] -= memory.size_bytes

    def _fault(self, state: _ContextState, _: float) -> None:
        """An illegal address ends the context: no call of it succeeds any more."""
        state.fault = 700
        self._node.timeline.drop(state.ordinal)

    def _run(
        self, route: Route, size_bytes: int, stream: Stream, effect: Callable[[float], None]
    ) -> None:
        duration_ns = self._node.duration_ns(route, size_bytes)
        operation = Operation(route.gpus, effect, duration_ns, route.lanes)
        self._node.timeline.enqueue(stream.handle, operation)

    def _copy(self, call: str, destination: Memory, source: Memory, stream: Stream) -> None:
        state = self._enter(call, stream.context, stream.handle)
        size_bytes = source.size_bytes
        if destination.size_bytes < size_bytes:
            _fail(call, 1, "the destination is smaller than the source")
        if destination.ordinal is None and source.ordinal is None:
            _fail(call, 1, "a simulated machine copies nothing from host to host")
        origin, origin_start = self._locate(call, source)
        target, target_start = self._locate(call, destination.window(0, size_bytes))
        route = self._route(state, destination.ordinal, source.ordinal)

        def arrive(_: float) -> None:
            words = size_bytes // WORD_BYTES
            target.copy(target_start, origin, origin_start, words)
            if route.flips_bits and words:
                at = target_start + self._node.random.randrange(words)
                flipped = target.word(at) ^ 1 << self._node.random.randrange(64)
                target.fill(at, 1, flipped)
            self._node.count(route, size_bytes)

        self._run(route, size_bytes, stream, arrive)
        if route.staged and size_bytes > _UNBLOCKED_BYTES:
            # The driver copies piece by piece in the caller's time.
            self._node.timeline.run_until_idle(stream.handle)

    def _route(self, state: _ContextState, destination: int | None, source: int | None) -> Route:
        wiring = self._node.wiring
        if source is None or destination is None:
            gpu = destination if source is None else source
            assert gpu is not None
            return wiring.host_copy(gpu, to_device=source is None)
        if destination == source:
            return wiring.local_copy(source)
        # A copy engine needs the mapping of one side only, whichever that is.
        mapped = self._maps(source, destination) or self._maps(destination, source)
        return wiring.peer_copy(source, destination, state.ordinal, mapped=mapped)

    def _maps(self, ordinal: int, peer: int) -> bool:
        state = self._contexts.get(ordinal)
        return state is not None and peer in state.peers
