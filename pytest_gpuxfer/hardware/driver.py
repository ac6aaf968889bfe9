"""The CUDA calls that we need, typed. A real driver and a simulated one answer them alike.

Devices are named by CUDA ordinal. Nothing here waits for a GPU except `compare`, `enqueue`s of
copies that the driver stages (they hold the caller, as CUDA does) and what says so; deadlines are
the caller's business, by `stream_idle` and the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol

from pytest_gpuxfer.model.measurement import Access
from pytest_gpuxfer.model.pattern import Pattern

# The context, or the whole process, is lost: illegal access or address, a trap, an ECC error, ...
_STICKY_CODES: Final = frozenset({214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721})


class DriverError(Exception):
    """A driver call that failed: `call` returned `code`, which CUDA names `name`."""

    def __init__(self, call: str, code: int, name: str, explanation: str = "") -> None:
        words = f" ({explanation})" if explanation else ""
        super().__init__(f"{call} failed: {name} ({code}){words}")
        self.call, self.code, self.name = call, code, name

    @property
    def not_ready(self) -> bool:
        """SYSTEM_NOT_READY: the fabric manager has not finished."""
        return self.code == 802

    @property
    def sticky(self) -> bool:
        """Whether every later call of this process will fail alike."""
        return self.code in _STICKY_CODES

    @property
    def out_of_memory(self) -> bool:
        return self.code == 2


@dataclass(frozen=True, slots=True)
class DriverVersion:
    """`cuda` as in 13.0; `bindings` is the version of the library between us and the driver."""

    cuda: tuple[int, int]
    bindings: str


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as CUDA lists it; `pci_address` is domain:bus:device.function in lower case."""

    ordinal: int
    uuid: str  # "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", as NVML writes it
    pci_address: str
    name: str
    memory_bytes: int


class HostKind(StrEnum):
    """How host memory comes to be usable by GPUs."""

    PINNED = "pinned"  # cuMemHostAlloc, portable and mapped
    PAGEABLE = "pageable"  # ordinary anonymous memory, every page touched
    REGISTERED = "registered"  # anonymous memory and cuMemHostRegister, portable and mapped
    SHARED = "shared"  # POSIX shared memory, registered likewise


class DeviceKind(StrEnum):
    """How device memory is allocated; each kind has a peer access of its own."""

    MALLOC = "malloc"  # cuMemAlloc: peer access of the context
    POOL = "pool"  # cuMemAllocFromPoolAsync, of a pool of ours: cuMemPoolSetAccess
    VMM = "vmm"  # cuMemCreate, cuMemMap: cuMemSetAccess


class Feature(StrEnum):
    """What a device may lack."""

    CONCURRENT_MANAGED_ACCESS = "concurrent managed access"
    MEMORY_POOLS = "memory pools"
    VIRTUAL_MEMORY = "virtual memory management"
    FILE_DESCRIPTORS = "sharing by file descriptor"


# Opaque to all but the driver that made them.
@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """A device's primary context, retained, with our kernels loaded in it."""

    ordinal: int
    handle: Any = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A queue of work of one device."""

    context: Context
    handle: Any = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A point in a stream, with the time at which the GPU passed it."""

    context: Context
    handle: Any = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """Holds a stream until it is opened or its time is up; made once, closed again and again."""

    context: Context
    handle: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Memory:
    """A range of addresses; `ordinal` is the device that owns it, None for host memory."""

    address: int
    size_bytes: int
    ordinal: int | None

    def window(self, offset_bytes: int, size_bytes: int) -> Memory:
        """A part of it. Raises ValueError where it would reach outside."""
        if offset_bytes < 0 or size_bytes < 0 or offset_bytes + size_bytes > self.size_bytes:
            raise ValueError(
                f"{size_bytes} bytes at {offset_bytes} are outside {self.size_bytes} bytes"
            )
        return Memory(self.address + offset_bytes, size_bytes, self.ordinal)

    def used_by(self, ordinal: int | None) -> Memory:
        """Managed memory as one device, or the CPU, has it: its owner for `compare` and kernels."""
        return replace(self, ordinal=ordinal)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Memory held against a pattern, in 64-bit words; offsets in bytes from its start."""

    wrong_words: int
    first_offset_bytes: int = 0
    last_offset_bytes: int = 0
    expected: int = 0  # the first wrong word: as it should be
    got: int = 0  # and as it is


@dataclass(frozen=True, slots=True)
class Fill:
    """Kernel: write `content` over `memory`, by the GPU whose stream it runs on.

    `memory.size_bytes` is a multiple of 8; `content` is a pattern, or one word again and again.
    On memory of another GPU it is a peer store: only with peer access on.
    """

    memory: Memory
    content: Pattern | int


@dataclass(frozen=True, slots=True)
class KernelCopy:
    """Kernel: copy by the GPU whose stream it runs on, 16 bytes a load, coalesced.

    Sizes are multiples of 16. Either side may be its own memory, host memory that is not pageable,
    or another GPU's with access. `sharers` is how many such kernels run on that GPU at once: each
    takes that part of its multiprocessors.
    """

    destination: Memory
    source: Memory
    sharers: int = 1


CHAIN_LINE_BYTES: Final = 128  # LINE_BYTES in kernels.cu


@dataclass(frozen=True, slots=True)
class WriteChain:
    """Kernel: lay one closed chain through all lines of `memory`, in a permuted order."""

    memory: Memory


@dataclass(frozen=True, slots=True)
class ChaseChain:
    """Kernel: one thread follows the chain for `hops` dependent loads, from its first line on.

    Word 0 of `arrived` becomes the byte offset of the line where it ends: 0 when it came round.
    """

    memory: Memory
    hops: int
    arrived: Memory


@dataclass(frozen=True, slots=True)
class Handshake:
    """Kernel: answer the flags of a kernel on another GPU, `rounds` times.

    Word 0 of `own` is written by the other GPU and read here; word 0 of `peer` the other way
    round. The one that `leads` begins. Word 1 of `own` ends as the rounds answered, which is fewer
    than `rounds` where `limit_ns` ran out first. Both buffers hold zeros at the start.
    """

    own: Memory
    peer: Memory
    rounds: int
    leads: bool
    limit_ns: int


@dataclass(frozen=True, slots=True)
class AtomicAdd:
    """Kernel: `times` threads each add 1 to word 0 of `memory`, atomically for the whole system."""

    memory: Memory
    times: int


Kernel = Fill | KernelCopy | WriteChain | ChaseChain | Handshake | AtomicAdd


@dataclass(frozen=True, slots=True, eq=False)
class SharedHandle:
    """What another process needs to map memory: a legacy IPC handle, or a file descriptor."""

    kind: DeviceKind
    size_bytes: int
    ordinal: int  # the owning device, as this process numbers it
    handle: Any = field(repr=False)


class PeerProcess(Protocol):
    """Another process that owns memory on one GPU. Each call waits for it, within a deadline.

    Raises DriverError for what its driver answers, PeerProcessError where it is gone or silent.
    """

    def share(self, size_bytes: int, kind: DeviceKind) -> SharedHandle:
        """Allocate memory there (MALLOC or VMM) and hand it out; what was shared before is freed.

        Whoever imported the earlier memory has released it by then.
        """
        ...

    def fill(self, content: Pattern | int, size_bytes: int) -> None:
        """Write over the first `size_bytes` of what it shares; done when it returns."""
        ...

    def compare(self, content: Pattern, size_bytes: int) -> Comparison:
        """Hold the first `size_bytes` of what it shares against a pattern."""
        ...

    def close(self) -> None:
        """End it; again is harmless."""
        ...


class PeerProcessError(Exception):
    """The peer process ended, or did not answer in time; the message is one line."""


class Driver(Protocol):
    """One process's view of CUDA. Every method may raise DriverError."""

    def version(self) -> DriverVersion: ...

    def devices(self) -> Sequence[DeviceInfo]:
        """The devices that this process may see, by ordinal; makes no context."""
        ...

    def retain_context(self, ordinal: int) -> Context:
        """The device's primary context, with every kernel loaded (so no gate waits for a load)."""
        ...

    def release_context(self, context: Context) -> None: ...

    def free_memory_bytes(self, context: Context) -> int: ...

    def supports(self, ordinal: int, feature: Feature) -> bool: ...

    def native_atomics(self, ordinal: int, peer: int) -> bool:
        """Whether the link between two devices carries atomic operations."""
        ...

    def allocate_device(
        self, context: Context, size_bytes: int, kind: DeviceKind = DeviceKind.MALLOC
    ) -> Memory:
        """Device memory; of POOL and VMM kind no other device has access yet."""
        ...

    def grant_access(self, memory: Memory, context: Context) -> None:
        """Let another device use memory of POOL or VMM kind (MALLOC: `enable_peer_access`)."""
        ...

    def revoke_access(self, memory: Memory, context: Context) -> None: ...

    def free_device(self, context: Context, memory: Memory) -> None: ...

    def allocate_host(
        self, context: Context, size_bytes: int, kind: HostKind = HostKind.PINNED
    ) -> Memory:
        """Host memory, on the NUMA node of the CPU that this thread runs on."""
        ...

    def free_host(self, context: Context, memory: Memory) -> None: ...

    def allocate_managed(self, context: Context, size_bytes: int) -> Memory:
        """Managed memory, resident nowhere yet; it is the CPU's until `used_by` says otherwise."""
        ...

    def free_managed(self, context: Context, memory: Memory) -> None: ...

    def prefetch(self, memory: Memory, target: Context | None, stream: Stream) -> None:
        """Move managed memory to a device, or to the host (None), in the stream's order."""
        ...

    def create_stream(self, context: Context) -> Stream: ...

    def destroy_stream(self, stream: Stream) -> None: ...

    def stream_idle(self, stream: Stream) -> bool:
        """Whether everything enqueued has ended; raises what the GPU met meanwhile."""
        ...

    def create_event(self, context: Context) -> Event: ...

    def destroy_event(self, event: Event) -> None: ...

    def record_event(self, event: Event, stream: Stream) -> None: ...

    def wait_event(self, event: Event, stream: Stream) -> None:
        """Hold `stream`, of any device, until the last recording of `event` has happened."""
        ...

    def elapsed_ns(self, start: Event, end: Event) -> float:
        """Between two events that have both happened."""
        ...

    def create_gate(self, context: Context) -> Gate: ...

    def destroy_gate(self, gate: Gate) -> None: ...

    def close_gate(self, gate: Gate, stream: Stream, limit_ns: int) -> None:
        """Hold what is enqueued on `stream` from now on; opens by itself after `limit_ns`."""
        ...

    def open_gate(self, gate: Gate) -> None: ...

    def gate_expired(self, gate: Gate) -> bool:
        """Whether the gate opened by itself since it was closed; ask when the stream is idle."""
        ...

    def copy(self, destination: Memory, source: Memory, stream: Stream) -> None:
        """cuMemcpyAsync on unified addresses, `source.size_bytes`, issued by the stream's GPU."""
        ...

    def copy_peer(self, destination: Memory, source: Memory, stream: Stream) -> None:
        """cuMemcpyPeerAsync between the primary contexts of both memories' devices."""
        ...

    def launch(self, kernel: Kernel, stream: Stream) -> None: ...

    def fill_host(self, memory: Memory, content: Pattern | int) -> None:
        """As the kernel `Fill`, by the CPU, on host memory; done when it returns."""
        ...

    def read_words(self, memory: Memory, count: int) -> tuple[int, ...]:
        """The first 64-bit words of memory, as its owner has them. Waits till done."""
        ...

    def compare(self, memory: Memory, content: Pattern) -> Comparison:
        """Hold memory against a pattern, by its owner: its GPU, or the CPU. Waits till done."""
        ...

    def start_peer(self, ordinal: int, *, hide_others: bool) -> PeerProcess:
        """Another process with a context on that device; it may be kept from seeing any other."""
        ...

    def import_memory(self, context: Context, shared: SharedHandle) -> Memory:
        """Map another process's memory for `context`; it owns what it is, its device stays."""
        ...

    def release_import(self, context: Context, memory: Memory) -> None: ...

    def can_access_peer(self, ordinal: int, peer: int) -> bool: ...

    def enable_peer_access(self, context: Context, peer: Context) -> Access:
        """Let kernels and copies of `context` use memory of `peer`: one direction alone.

        ENABLED, ALREADY_ENABLED, UNSUPPORTED, TOO_MANY_PEERS and WRONG_CONTEXT are answers; any
        other code raises.
        """
        ...

    def disable_peer_access(self, context: Context, peer: Context) -> None: ...

    def host_view(self, memory: Memory) -> memoryview:
        """Host memory as bytes. Raises TypeError where there is no real address behind it."""
        ...

    @property
    def has_addresses(self) -> bool:
        """Whether `Memory.address` means something to other libraries of this process."""
        ...
