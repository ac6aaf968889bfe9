"""Kernels as a simulated machine runs them."""

from __future__ import annotations

from functools import partial
from typing import Final

from pytest_gpuxfer.hardware.driver import (
    AtomicAdd,
    ChaseChain,
    Fill,
    Handshake,
    Kernel,
    KernelCopy,
    Memory,
    Stream,
    WriteChain,
)
from pytest_gpuxfer.hardware.simulated.copies import Copies
from pytest_gpuxfer.hardware.simulated.defects import Damage, Trouble
from pytest_gpuxfer.hardware.simulated.engine import Meeting, Operation
from pytest_gpuxfer.hardware.simulated.errors import fail
from pytest_gpuxfer.hardware.simulated.memory import LINE_WORDS, Allocation, Chain
from pytest_gpuxfer.hardware.simulated.node import Node
from pytest_gpuxfer.hardware.simulated.process import ContextState
from pytest_gpuxfer.hardware.simulated.trouble import endless
from pytest_gpuxfer.model.pattern import WORD_BYTES

_CALL: Final = "cuLaunchKernel"
_LINE_BYTES: Final = LINE_WORDS * WORD_BYTES
_LATENCY_SPREAD: Final = 0.002  # rms, of equal chases


class Kernels(Copies):
    """The Driver's `launch`. A kernel that reaches for memory without access faults its context."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        # Handshakes that wait for their partner, by the addresses of both buffers.
        self._waiting: dict[tuple[int, int], Meeting] = {}

    def launch(self, kernel: Kernel, stream: Stream) -> None:
        state = self._enter(_CALL, stream.context, stream.handle)
        touched = [self._locate(_CALL, memory) for memory in _memories(kernel)]
        if not all(self._may_use(state.ordinal, allocation) for allocation, _ in touched):
            fault = Operation((state.ordinal,), partial(self._fault, state))
            self._enqueue(stream, fault)
            return
        if self._hangs(state.ordinal, touched):
            self._enqueue(stream, endless((state.ordinal,)))
            return
        for (allocation, start), memory in zip(touched, _memories(kernel), strict=True):
            self._bring(allocation, start, memory.size_bytes, state.ordinal, stream, by_faults=True)
        match kernel:
            case Fill():
                self._fill(kernel, state.ordinal, *touched[0], stream)
            case KernelCopy():
                self._kernel_copy(kernel, state.ordinal, touched, stream)
            case WriteChain():
                self._write_chain(kernel, state.ordinal, *touched[0], stream)
            case ChaseChain():
                self._chase(kernel, state, touched, stream)
            case Handshake():
                self._handshake(kernel, state.ordinal, *touched[0], stream)
            case AtomicAdd():
                self._add(kernel, state.ordinal, *touched[0], stream)

    def _hangs(self, gpu: int, touched: list[tuple[Allocation, int]]) -> bool:
        """Whether a kernel reaches for a peer whose memory it never hears of."""
        troubles = self._node.defects.troubles
        return bool(troubles) and any(
            Trouble.KERNEL_HANGS in troubles.get((gpu, owner), ())
            for owner in (allocation.memory.ordinal for allocation, _ in touched)
            if owner is not None
        )

    def _fill(
        self, kernel: Fill, gpu: int, allocation: Allocation, start: int, stream: Stream
    ) -> None:
        size_bytes = kernel.memory.size_bytes
        route = self._node.wiring.kernel_write(
            gpu, self._place(allocation, start), allocation.numa_node
        )

        def store(_: float) -> None:
            if Damage.DROPPED in route.damage:
                return
            words = size_bytes // WORD_BYTES
            allocation.words.fill(start, words, kernel.content)
            self._node.spoiler.spoil(route.damage, allocation.words, start, words)

        self._run(route, size_bytes, stream, store)

    def _kernel_copy(
        self, kernel: KernelCopy, gpu: int, touched: list[tuple[Allocation, int]], stream: Stream
    ) -> None:
        (target, target_start), (origin, origin_start) = touched
        size_bytes, wiring = kernel.source.size_bytes, self._node.wiring
        if kernel.destination.size_bytes < size_bytes:
            fail(_CALL, 1, "the destination is smaller than the source")
        route = wiring.kernel_copy(
            wiring.kernel_read(gpu, self._place(origin, origin_start), origin.numa_node),
            wiring.kernel_write(gpu, self._place(target, target_start), target.numa_node),
            kernel.sharers,
        )

        ends = (target.words, target_start), (origin.words, origin_start)
        arrive = partial(self._arrive, route, *ends, size_bytes // WORD_BYTES)
        self._run(route, size_bytes, stream, arrive)

    def _write_chain(
        self, kernel: WriteChain, gpu: int, allocation: Allocation, start: int, stream: Stream
    ) -> None:
        lines = kernel.memory.size_bytes // _LINE_BYTES
        if not lines:
            fail(_CALL, 1, "a chain needs a line of 128 bytes")
        route = self._node.wiring.kernel_write(
            gpu, self._place(allocation, start), allocation.numa_node
        )

        def lay(_: float) -> None:
            allocation.words.fill(start, lines * LINE_WORDS, Chain(0, lines))

        self._run(route, kernel.memory.size_bytes, stream, lay)

    def _chase(
        self, kernel: ChaseChain, state: ContextState, touched: list[tuple[Allocation, int]],
        stream: Stream,
    ) -> None:  # fmt: skip
        (held, start), (arrived, arrived_start) = touched
        owner = self._place(held, start)
        duration_ns = kernel.hops * self._node.wiring.latency_ns(state.ordinal, owner)

        def follow(moment_ns: float) -> None:
            content = held.words.content(start)
            if isinstance(content, Chain) and content.start == start:
                arrived.words.fill(arrived_start, 1, content.offset_bytes(kernel.hops))
            elif content == 0:
                arrived.words.fill(arrived_start, 1, 0)  # round and round on one line
            else:
                self._fault(state, moment_ns)  # a load gone astray

        duration_ns *= self._node.random.gauss(1.0, _LATENCY_SPREAD)
        traffic = self._node.wiring.loads_beside(state.ordinal, owner)
        self._enqueue(stream, Operation((state.ordinal,), follow, duration_ns, traffic))

    def _handshake(
        self, kernel: Handshake, gpu: int, own: Allocation, start: int, stream: Stream
    ) -> None:
        peer = kernel.peer.ordinal
        assert peer is not None
        one_way_ns = self._node.wiring.latency_ns(gpu, peer)
        meeting = Meeting(kernel.limit_ns, max(1, kernel.rounds) * 2 * one_way_ns)
        partner = self._waiting.pop((kernel.peer.address, kernel.own.address), None)
        if partner is None:
            self._waiting[kernel.own.address, kernel.peer.address] = meeting
        elif not any(map(self._node.wiring.loses_writes, (gpu, peer), (peer, gpu))):
            meeting.partner, partner.partner = partner, meeting

        def leave(_: float) -> None:
            self._waiting.pop((kernel.own.address, kernel.peer.address), None)
            answered = int(kernel.rounds * meeting.part_done + 1e-6)
            own.words.fill(start, 2, answered)

        self._enqueue(stream, Operation((gpu,), leave, hold=meeting))

    def _add(
        self, kernel: AtomicAdd, gpu: int, allocation: Allocation, start: int, stream: Stream
    ) -> None:
        """A link without atomic operations loses them, as PCIe between GPUs does."""
        owner = self._place(allocation, start)
        wiring = self._node.wiring
        carried = (
            owner is None
            or owner == gpu
            or (wiring.has_atomics(gpu, owner) and not wiring.loses_writes(gpu, owner))
        )

        def add(_: float) -> None:
            if carried:
                total = allocation.words.word(start) + kernel.times
                allocation.words.fill(start, 1, total % 2**64)

        duration_ns = self._node.wiring.latency_ns(gpu, owner) + kernel.times
        self._enqueue(stream, Operation((gpu,), add, duration_ns))


def _memories(kernel: Kernel) -> tuple[Memory, ...]:
    match kernel:
        case KernelCopy():
            return kernel.destination, kernel.source
        case Handshake():
            return kernel.own, kernel.peer
        case ChaseChain():
            return kernel.memory, kernel.arrived
        case _:
            return (kernel.memory,)
