"""The one owner of contexts, streams, events, gates and buffers: allocated once, reused, freed.

Memory is what costs time (0.6 ms a MiB of pinned memory), so buffers only ever grow.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pytest_gpuxfer.hardware import Hardware
from pytest_gpuxfer.hardware.driver import (
    Context,
    DeviceKind,
    DriverError,
    Event,
    Feature,
    Gate,
    HostKind,
    Memory,
    PeerProcess,
    SharedHandle,
    Stream,
)
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, WORD_BYTES, Pattern
from pytest_gpuxfer.model.units import GIB, MIB
from pytest_gpuxfer.model.unknown import Unknown

MOST_MANAGED_BYTES: Final = 256 * MIB  # managed memory can take a GPU beyond what it has

_PERIOD_BYTES: Final = PERIOD_WORDS * WORD_BYTES
_LEFT_FREE_BYTES: Final = GIB  # on each GPU, for the driver and for others


class CannotAllocateError(Exception):
    """There is not enough free memory on a GPU; the message says where and how much."""


@dataclass(frozen=True, slots=True)
class Lent:
    """Memory of another process: its owner, and as it is mapped here."""

    owner: PeerProcess
    memory: Memory


@dataclass(slots=True)
class Lender:
    """Another process on one GPU, what it shares now, and as whom it is mapped here."""

    process: PeerProcess
    shared: SharedHandle | None = None
    imports: dict[int, Memory] = field(default_factory=dict)


class Arena:
    """Everything that measuring holds on the GPUs of a machine, by GPU index (N of gpuN)."""

    def __init__(self, hardware: Hardware, machine: Machine) -> None:
        self.driver = hardware.driver
        self.clock = hardware.clock
        self._placement = hardware.placement
        self._machine = machine
        self._contexts: dict[int, Context] = {}
        self._streams: dict[tuple[int, int], Stream] = {}
        self._gates: dict[int, Gate] = {}
        self._events: dict[tuple[int, str], Event] = {}
        self._device: dict[tuple[int, str, DeviceKind], Memory] = {}
        self._host: dict[tuple[str, HostKind, int | None], Memory] = {}
        self._managed: Memory | None = None
        self._managed_by_others: set[Memory] = set()
        self._lenders: dict[tuple[int, bool], Lender] = {}
        self._host_owner: Context | None = None

    def ordinal(self, gpu: int | None) -> int | None:
        """CUDA's ordinal of a GPU; None for the host, as `Memory.ordinal` has it."""
        return None if gpu is None else self._machine.gpus[gpu].ordinal

    def supports(self, gpu: int, feature: Feature) -> bool:
        return self.driver.supports(self._machine.gpus[gpu].ordinal, feature)

    def context(self, gpu: int) -> Context:
        if gpu not in self._contexts:
            ordinal = self._machine.gpus[gpu].ordinal
            self._contexts[gpu] = self.driver.retain_context(ordinal)
        return self._contexts[gpu]

    def stream(self, gpu: int, slot: int = 0) -> Stream:
        """A GPU's stream; flows that run at once on it have one each, by slot."""
        if (gpu, slot) not in self._streams:
            self._streams[gpu, slot] = self.driver.create_stream(self.context(gpu))
        return self._streams[gpu, slot]

    def gate(self, gpu: int) -> Gate:
        if gpu not in self._gates:
            self._gates[gpu] = self.driver.create_gate(self.context(gpu))
        return self._gates[gpu]

    def event(self, gpu: int, role: str) -> Event:
        """The event of that GPU for a role: "start", "end", ..."""
        if (gpu, role) not in self._events:
            self._events[gpu, role] = self.driver.create_event(self.context(gpu))
        return self._events[gpu, role]

    def device(
        self, gpu: int, role: str, size_bytes: int, kind: DeviceKind = DeviceKind.MALLOC
    ) -> Memory:
        """`size_bytes` of a GPU's buffer of a kind for a role: "source 0", "destination 3", ..."""
        key = (gpu, role, kind)
        held = self._device.get(key)
        if held is None or held.size_bytes < size_bytes:
            if held is not None:
                self.driver.free_device(self.context(gpu), self._device.pop(key))
            self._device[key] = held = self.allocate_device(gpu, size_bytes, kind)
        return held.window(0, size_bytes)

    def let(self, memory: Memory, gpu: int, *, allowed: bool) -> None:
        """Let a GPU use another's POOL or VMM memory, or keep it from it."""
        change = self.driver.grant_access if allowed else self.driver.revoke_access
        change(memory, self.context(gpu))

    def host(
        self,
        role: str,
        size_bytes: int,
        kind: HostKind = HostKind.PINNED,
        node: int | None = None,
    ) -> Memory:
        """`size_bytes` of the host buffer of a kind for a role, on a NUMA node if one is named."""
        key = (role, kind, node)
        held = self._host.get(key)
        if held is None or held.size_bytes < size_bytes:
            held = self._grow_host(key, size_bytes)
        return held.window(0, size_bytes)

    def host_window(
        self,
        pattern: Pattern,
        size_bytes: int,
        kind: HostKind = HostKind.PINNED,
        node: int | None = None,
    ) -> Memory:
        """Host memory that holds `pattern`: a window on one reference buffer."""
        key = ("reference", kind, node)
        needed = size_bytes + _PERIOD_BYTES
        held = self._host.get(key)
        if held is None or held.size_bytes < needed:
            held = self._grow_host(key, needed)
            self.driver.fill_host(held, Pattern(0))
        return held.window(pattern.offset_words * WORD_BYTES, size_bytes)

    def node_for(self, gpu: int, *, far: bool = False) -> int | None:
        """The NUMA node nearest to a GPU, or one that is not; None where that is not known."""
        near, nodes = self._machine.gpus[gpu].numa_node, self._placement.nodes()
        if isinstance(near, Unknown) or isinstance(nodes, Unknown) or near not in nodes:
            return None
        return max(nodes, key=lambda node: abs(node - near)) if far else near

    def managed(self, size_bytes: int) -> Memory:
        """The one managed buffer. Raises CannotAllocateError beyond `MOST_MANAGED_BYTES` in all."""
        self._check_managed(size_bytes)
        if self._managed is None or self._managed.size_bytes < size_bytes:
            self._drop_managed()
            self._managed = self.driver.allocate_managed(self.host_context(), size_bytes)
        return self._managed.window(0, size_bytes)

    def allocate_managed(self, size_bytes: int) -> Memory:
        """Managed memory that the caller frees by `free_managed`, counted with our own.

        Raises CannotAllocateError beyond `MOST_MANAGED_BYTES` in all, DriverError.
        """
        self._check_managed(size_bytes)
        self._drop_managed()  # kept only to be reused: it must not stand in the way
        memory = self.driver.allocate_managed(self.host_context(), size_bytes)
        self._managed_by_others.add(memory)
        return memory

    def free_managed(self, memory: Memory) -> None:
        if memory in self._managed_by_others:  # else all was given back before
            self._managed_by_others.remove(memory)
            self.driver.free_managed(self.host_context(), memory)

    def _check_managed(self, size_bytes: int) -> None:
        taken = sum(memory.size_bytes for memory in self._managed_by_others)
        if size_bytes + taken > MOST_MANAGED_BYTES:
            beside = f" beside {taken / MIB:.0f} MiB of the tests' own" if taken else ""
            raise CannotAllocateError(
                f"{size_bytes / MIB:.0f} MiB of managed memory{beside} are more than the"
                f" {MOST_MANAGED_BYTES / MIB:.0f} MiB that a run takes"
            )

    def _drop_managed(self) -> None:
        held, self._managed = self._managed, None
        if held is not None:
            self.driver.free_managed(self.host_context(), held)

    def lent(
        self, owner_gpu: int, user_gpu: int, kind: DeviceKind, size_bytes: int, *, hidden: bool
    ) -> Lent:
        """Memory that another process owns on one GPU, mapped here for another.

        `hidden`: that process sees no GPU but its own. Raises DriverError, PeerProcessError.
        """
        lender = self._lenders.get((owner_gpu, hidden))
        if lender is None:
            ordinal = self._machine.gpus[owner_gpu].ordinal
            lender = Lender(self.driver.start_peer(ordinal, hide_others=hidden))
            self._lenders[owner_gpu, hidden] = lender
        shared = lender.shared
        if shared is None or shared.kind is not kind or shared.size_bytes < size_bytes:
            self._release_imports(lender)
            lender.shared = shared = lender.process.share(size_bytes, kind)
        if user_gpu not in lender.imports:
            context = self.context(user_gpu)
            lender.imports[user_gpu] = self.driver.import_memory(context, shared)
        return Lent(lender.process, lender.imports[user_gpu].window(0, size_bytes))

    def allocate_device(
        self, gpu: int, size_bytes: int, kind: DeviceKind = DeviceKind.MALLOC
    ) -> Memory:
        """Device memory that the caller frees. Raises CannotAllocateError, DriverError."""
        context = self.context(gpu)
        free = self.driver.free_memory_bytes(context)
        if size_bytes > free - _LEFT_FREE_BYTES:
            raise CannotAllocateError(
                f"gpu{gpu} has {free / GIB:.1f} GiB free, {size_bytes / GIB:.2f} GiB are needed"
                f" beside {_LEFT_FREE_BYTES / GIB:.0f} GiB left to others"
            )
        return self.driver.allocate_device(context, size_bytes, kind)

    def host_context(self) -> Context:
        """The context in which host memory is allocated; it is portable to all."""
        if self._host_owner is None:
            self._host_owner = self.context(0)
        return self._host_owner

    def _grow_host(self, key: tuple[str, HostKind, int | None], size_bytes: int) -> Memory:
        _, kind, node = key
        if key in self._host:
            self.driver.free_host(self.host_context(), self._host.pop(key))
        context = self.host_context()
        with nullcontext() if node is None else self._placement.on(node):
            self._host[key] = self.driver.allocate_host(context, size_bytes, kind)
        return self._host[key]

    def _release_imports(self, lender: Lender) -> None:
        for user_gpu, memory in lender.imports.items():
            with suppress(DriverError):
                self.driver.release_import(self._contexts[user_gpu], memory)
        lender.imports.clear()

    def _end_lending(self) -> None:
        for lender in self._lenders.values():
            self._release_imports(lender)
            lender.process.close()
        self._lenders.clear()

    def close(self) -> None:
        """Give everything back; a GPU that answers no more keeps what it holds till process end."""
        driver = self.driver
        self._end_lending()
        releases: list[Callable[[], None]] = [
            *(
                partial(driver.free_device, self._contexts[gpu], memory)
                for (gpu, _, _), memory in self._device.items()
            ),
            *(partial(driver.free_host, self.host_context(), m) for m in self._host.values()),
            *(partial(driver.destroy_event, event) for event in self._events.values()),
            *(partial(driver.destroy_gate, gate) for gate in self._gates.values()),
            *(partial(driver.destroy_stream, stream) for stream in self._streams.values()),
            *(partial(driver.release_context, context) for context in self._contexts.values()),
        ]
        if self._managed is not None:
            releases.insert(0, self._drop_managed)
        for release in releases:
            # One thing that cannot be freed must not keep the others.
            with suppress(DriverError):
                release()
        for held in (self._device, self._host, self._events, self._gates, self._streams):
            held.clear()
        self._contexts.clear()
        self._managed_by_others.clear()
        self._host_owner = self._managed = None
