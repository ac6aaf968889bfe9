"""One process on a simulated machine: its contexts, handles and memory, and what each call checks.

The driver is made of parts, one for each kind of call; all of them stand on this one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pytest_gpuxfer.hardware.driver import Context, DeviceKind, HostKind, Memory, Stream
from pytest_gpuxfer.hardware.simulated.engine import Operation, Queue
from pytest_gpuxfer.hardware.simulated.errors import fail
from pytest_gpuxfer.hardware.simulated.memory import (
    AddressError,
    AddressSpace,
    Allocation,
    Managed,
)
from pytest_gpuxfer.hardware.simulated.node import Node
from pytest_gpuxfer.hardware.simulated.wiring import Route
from pytest_gpuxfer.model.pattern import WORD_BYTES

CALL_NS: Final = 2_000.0

_Handle = TypeVar("_Handle")


@dataclass(slots=True, eq=False)
class ContextState:
    """A primary context; `fault` is the code that every call of it answers from then on."""

    ordinal: int
    retains: int = 0
    peers: set[int] = field(default_factory=set)
    memories: set[Memory] = field(default_factory=set)
    fault: int | None = None


class Process:
    """What all calls of a process have in common."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._space = AddressSpace()
        self._contexts: dict[int, ContextState] = {}
        self._live: set[object] = set()  # contexts, queues, events and gates not yet destroyed

    def _enter(self, call: str, context: Context, *handles: object) -> ContextState:
        """Begin a call: it takes its time, and refuses what is gone or faulted."""
        self._node.spend(CALL_NS)
        state = self._state(call, context)
        if state.fault is not None:
            fail(call, state.fault)
        if not self._live.issuperset(handles):
            fail(call, 400)
        return state

    def _state(self, call: str, context: Context) -> ContextState:
        state: ContextState = context.handle
        if state not in self._live:
            fail(call, 201)
        return state

    def _check_device(self, call: str, *ordinals: int) -> None:
        if not all(0 <= ordinal < len(self._node.uuids) for ordinal in ordinals):
            fail(call, 101)

    def _locate(self, call: str, memory: Memory) -> tuple[Allocation, int]:
        try:
            return self._space.locate(memory)
        except AddressError as error:
            fail(call, 1, str(error))

    def _born(self, handle: _Handle) -> _Handle:
        self._live.add(handle)
        return handle

    def _free(self, state: ContextState, memory: Memory) -> None:
        self._space.free(memory)
        state.memories.remove(memory)
        self._node.used_bytes[state.ordinal] -= memory.size_bytes

    def _may_use(self, ordinal: int, allocation: Allocation) -> bool:
        """Whether kernels and copies of a GPU reach memory by its address."""
        owner = allocation.memory.ordinal
        if isinstance(allocation.kind, Managed):
            return True
        if owner is None:
            return allocation.kind is not HostKind.PAGEABLE
        if owner == ordinal or ordinal in allocation.granted:
            return True
        state = self._contexts.get(ordinal)
        return allocation.kind is DeviceKind.MALLOC and state is not None and owner in state.peers

    def _place(self, allocation: Allocation, start: int) -> int | None:
        """The GPU in which memory is right now, or the host (None)."""
        if isinstance(allocation.kind, Managed):
            return allocation.kind.place(start)
        return allocation.memory.ordinal

    def _run(
        self, route: Route, size_bytes: int, stream: Stream, effect: Callable[[float], None]
    ) -> None:
        """Enqueue a transfer; its bytes are counted when it ends."""

        def end(moment_ns: float) -> None:
            effect(moment_ns)
            self._node.count(route, size_bytes)

        duration_ns = self._node.duration_ns(route, size_bytes)
        operation = Operation(route.gpus, end, duration_ns, route.traffic())
        self._enqueue(stream, operation)

    def _enqueue(self, stream: Stream, operation: Operation) -> None:
        queue: Queue = stream.handle
        self._node.timeline.enqueue(queue, operation)

    def _bring(
        self, allocation: Allocation, start: int, size_bytes: int, target: int | None,
        stream: Stream, *, by_faults: bool,
    ) -> None:  # fmt: skip
        """Enqueue the migration of managed memory; it counts as there from now on."""
        if not isinstance(allocation.kind, Managed):
            return
        wiring = self._node.wiring
        moved = allocation.kind.migrate(start, size_bytes // WORD_BYTES, target)
        for source, amount in moved.items():
            if by_faults:
                route = wiring.page_faults(source, target)
            else:
                route = wiring.prefetch(source, target, amount)
            self._run(route, amount, stream, lambda _: None)

    def _bring_now(
        self, allocation: Allocation, start: int, size_bytes: int, target: int | None
    ) -> None:
        """Migrate managed memory to who touches it, in the caller's time."""
        if not isinstance(allocation.kind, Managed):
            return
        moved = allocation.kind.migrate(start, size_bytes // WORD_BYTES, target)
        for source, amount in moved.items():
            route = self._node.wiring.page_faults(source, target)
            self._node.spend(self._node.duration_ns(route, amount))
            self._node.count(route, amount)

    def _fault(self, state: ContextState, _: float) -> None:
        """An illegal address ends the context: no call of it succeeds any more."""
        state.fault = 700
        self._node.timeline.drop(state)
