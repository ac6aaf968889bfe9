"""CUDA as a simulated machine answers it, for one process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_gpuxfer.hardware.driver import (
    Context,
    DeviceInfo,
    DriverVersion,
    Event,
    Gate,
    Memory,
    PeerProcess,
    SharedHandle,
    Stream,
)
from pytest_gpuxfer.hardware.simulated.engine import Hold, Mark, Operation, Queue
from pytest_gpuxfer.hardware.simulated.errors import fail
from pytest_gpuxfer.hardware.simulated.kernels import Kernels
from pytest_gpuxfer.hardware.simulated.memory import Allocation, Imported
from pytest_gpuxfer.hardware.simulated.peer_process import SimulatedPeer
from pytest_gpuxfer.hardware.simulated.process import CALL_NS, ContextState
from pytest_gpuxfer.model.measurement import Access

_PROCESS_NS: Final = 5e8  # to start one, with a context


def _nothing(_: float) -> None:
    """What a wait does to the machine."""


@dataclass(slots=True, eq=False)
class _EventState:
    mark: Mark | None = None  # the latest recording


@dataclass(slots=True, eq=False)
class _GateState:
    hold: Hold | None = None  # the latest closing


class SimulatedDriver(Kernels):
    """Implements Driver over a Node. A real driver's checks and answers, at a machine's pace."""

    has_addresses: Final = False

    def version(self) -> DriverVersion:
        return DriverVersion(self._node.machine.cuda, "simulated")

    def devices(self) -> Sequence[DeviceInfo]:
        if self._node.defects.fabric_not_ready:
            fail("cuInit", 802)
        machine = self._node.machine
        return [
            DeviceInfo(
                ordinal, uuid, machine.gpus[ordinal].pci_address, kind.name, int(kind.memory)
            )
            for ordinal, uuid in enumerate(self._node.uuids)
            if (kind := machine.kind_of(ordinal))
        ]

    # Contexts

    def retain_context(self, ordinal: int) -> Context:
        call = "cuDevicePrimaryCtxRetain"
        self._node.spend(CALL_NS)
        self._check_device(call, ordinal)
        if self._node.defects.driver_gone:
            fail(call, 100)
        state = self._contexts.get(ordinal)
        if state is None:
            state = self._contexts[ordinal] = ContextState(ordinal)
            self._live.add(state)
        state.retains += 1
        return Context(ordinal, state)

    def release_context(self, context: Context) -> None:
        """The last release ends the context: its memory and mappings go, and its fault."""
        self._node.spend(CALL_NS)
        state = self._state("cuDevicePrimaryCtxRelease", context)
        state.retains -= 1
        if state.retains:
            return
        self._node.timeline.drop(state)
        for memory in tuple(state.memories):
            self._free(state, memory)
        self._live.discard(state)
        del self._contexts[state.ordinal]

    # Streams, events and gates

    def create_stream(self, context: Context) -> Stream:
        state = self._enter("cuStreamCreate", context)
        return Stream(context, self._born(Queue(state)))

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
        mark = event.handle.mark = Mark(state.ordinal)
        self._node.timeline.enqueue(stream.handle, Operation((state.ordinal,), mark.happen))

    def wait_event(self, event: Event, stream: Stream) -> None:
        state = self._enter("cuStreamWaitEvent", stream.context, stream.handle, event.handle)
        mark: Mark | None = event.handle.mark
        handed_over = mark is not None and mark.gpu != state.ordinal
        handover_ns = self._node.machine.handover if handed_over else 0.0
        wait = Operation((state.ordinal,), _nothing, after=mark, handover_ns=handover_ns)
        self._node.timeline.enqueue(stream.handle, wait)

    def elapsed_ns(self, start: Event, end: Event) -> float:
        call = "cuEventElapsedTime"
        self._enter(call, start.context, start.handle, end.handle)
        first, last = start.handle.mark, end.handle.mark
        if first is None or last is None:
            fail(call, 400, "an event was never recorded")
        if math.inf in (first.time_ns, last.time_ns):
            fail(call, 600)
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

    def host_view(self, memory: Memory) -> memoryview:
        raise TypeError(f"a simulated machine's memory has no address behind {memory.address:#x}")

    # Peer access

    def can_access_peer(self, ordinal: int, peer: int) -> bool:
        self._node.spend(CALL_NS)
        self._check_device("cuDeviceCanAccessPeer", ordinal, peer)
        return self._node.wiring.access_offered(ordinal, peer)

    def enable_peer_access(self, context: Context, peer: Context) -> Access:
        call = "cuCtxEnablePeerAccess"
        if context.handle not in self._live or peer.handle not in self._live:
            return Access.WRONG_CONTEXT
        state = self._enter(call, context)
        if state.ordinal == peer.ordinal:
            fail(call, 101)
        if peer.ordinal in state.peers:
            return Access.ALREADY_ENABLED
        pair = (state.ordinal, peer.ordinal)
        denied = pair in self._node.defects.unsupported_pairs
        if denied or not self._node.wiring.access_offered(*pair):
            return Access.UNSUPPORTED
        if len(state.peers) >= self._node.machine.max_peers:
            return Access.TOO_MANY_PEERS
        state.peers.add(peer.ordinal)
        return Access.ENABLED

    def disable_peer_access(self, context: Context, peer: Context) -> None:
        state = self._enter("cuCtxDisablePeerAccess", context)
        if peer.ordinal not in state.peers:
            fail("cuCtxDisablePeerAccess", 705)
        state.peers.remove(peer.ordinal)

    def native_atomics(self, ordinal: int, peer: int) -> bool:
        offered = self.can_access_peer(ordinal, peer)
        return offered and self._node.wiring.has_atomics(ordinal, peer)

    # Another process

    def start_peer(self, ordinal: int, *, hide_others: bool) -> PeerProcess:
        self._check_device("cuDevicePrimaryCtxRetain", ordinal)
        self._node.spend(_PROCESS_NS)
        return SimulatedPeer(SimulatedDriver(self._node), ordinal, hide_others=hide_others)

    def import_memory(self, context: Context, shared: SharedHandle) -> Memory:
        call = "cuIpcOpenMemHandle"
        gpu = self._enter(call, context).ordinal
        if gpu != shared.ordinal and not self._node.wiring.access_offered(gpu, shared.ordinal):
            fail(call, 217)
        allocation: Allocation = self._space.map(shared.handle)
        allocation.granted.add(gpu)
        return allocation.memory

    def release_import(self, context: Context, memory: Memory) -> None:
        self._enter("cuIpcCloseMemHandle", context)
        self._free_unowned("cuIpcCloseMemHandle", memory, Imported)

    def allocation_of(self, memory: Memory) -> Allocation:
        """What another process maps of ours."""
        return self._locate("cuIpcGetMemHandle", memory)[0]

    def finish(self, stream: Stream) -> None:
        """Wait until all work of a stream is done."""
        self._node.timeline.run_until(stream.handle)

    def pass_time(self, duration_ns: float) -> None:
        """What happens outside of the driver takes its time, too."""
        self._node.spend(duration_ns)
