"""The real CUDA driver: the only import of cuda.bindings, 12.9 or 13.

Other libraries of the process use the same primary contexts: whatever context was current before
a call of ours is current again after it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final
from uuid import UUID

from pytest_gpuxfer.hardware import cuda_start, host_pattern
from pytest_gpuxfer.hardware.driver import (
    Comparison,
    Context,
    DeviceInfo,
    Driver,
    DriverError,
    DriverVersion,
    Event,
    Fill,
    Gate,
    Memory,
    Stream,
)
from pytest_gpuxfer.model.measurement import Access
from pytest_gpuxfer.model.pattern import WORD_BYTES, Pattern
from pytest_gpuxfer.model.units import NS_PER_MS

_NON_BLOCKING: Final = 1  # CU_STREAM_NON_BLOCKING: no waiting for other libraries' null stream
_PORTABLE_MAPPED: Final = 1 | 2  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
_NOT_READY: Final = 600
_NAME_BYTES: Final = 128
_BLOCK_THREADS: Final = 256
_BLOCKS_PER_MULTIPROCESSOR: Final = 8
_RESULT_BYTES: Final = 24  # Result in kernels.cu
KERNELS: Final = ("fill_pattern", "fill_word", "compare_pattern", "gate")
_ACCESS_ANSWERS: Final[Mapping[int, Access]] = {
    201: Access.WRONG_CONTEXT,  # INVALID_CONTEXT
    217: Access.UNSUPPORTED,  # PEER_ACCESS_UNSUPPORTED
    704: Access.ALREADY_ENABLED,  # PEER_ACCESS_ALREADY_ENABLED
    709: Access.WRONG_CONTEXT,  # CONTEXT_IS_DESTROYED
    711: Access.TOO_MANY_PEERS,  # TOO_MANY_PEERS
}


def open_driver() -> Driver:
    """CUDA, started. Raises HardwareError where there is no driver that these bindings can use."""
    try:
        from cuda.bindings import __version__, driver  # type: ignore[import-untyped]
    except ImportError:
        raise cuda_start.not_installed() from None
    has_devices = cuda_start.start(driver, __version__)
    return CudaDriver(driver, __version__, has_devices=has_devices)


@dataclass(slots=True, eq=False)
class _Primary:
    """What is behind a Context: the primary context, our kernels in it, and what we made there."""

    device: Any
    handle: Any
    blocks: int  # that fill the GPU
    kernels: Mapping[str, Any] = field(default_factory=dict)
    stream: Any = None  # compare's own
    result: int = 0  # compare's Result, on the device
    readback: int = 0  # pinned: a Result, and a word
    users: int = 1
    undo: dict[tuple[str, int], Callable[[], object]] = field(default_factory=dict)


class CudaDriver:
    """The Driver over cuda.bindings.driver, given as `bindings`."""

    def __init__(self, bindings: Any, bindings_version: str, *, has_devices: bool) -> None:
        self._cuda = bindings
        self._bindings_version = bindings_version
        self._has_devices = has_devices
        self._contexts: dict[int, Context] = {}

    # -- calling ---------------------------------------------------------------------------------

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The value or values that a call returns beside its code. Raises DriverError."""
        call = function.__name__
        try:
            code, *values = function(*arguments)
        except RuntimeError as error:  # how bindings say that the driver lacks the symbol
            raise DriverError(call, 500, "CUDA_ERROR_NOT_FOUND", str(error)) from None
        except (ValueError, KeyError) as error:  # and that they do not know its code
            raise DriverError(call, 999, "CUDA_ERROR_UNKNOWN", f"new code: {error}") from None
        if code != 0:
            words = self._cuda.cuGetErrorString(code)[1] or b""
            raise DriverError(call, int(code), code.name, words.decode())
        return values[0] if len(values) == 1 else values

    @contextmanager
    def _current(self, primary: _Primary) -> Iterator[None]:
        self._call(self._cuda.cuCtxPushCurrent, primary.handle)
        try:
            yield
        finally:
            self._call(self._cuda.cuCtxPopCurrent)

    def _call_in(self, context: Context, function: Callable[..., Any], *arguments: Any) -> Any:
        with self._current(context.handle):
            return self._call(function, *arguments)

    # -- devices and contexts --------------------------------------------------------------------

    def version(self) -> DriverVersion:
        number = self._call(self._cuda.cuDriverGetVersion)
        return DriverVersion((number // 1000, number % 1000 // 10), self._bindings_version)

    def devices(self) -> Sequence[DeviceInfo]:
        if not self._has_devices:
            return ()
        return [self._describe(n) for n in range(self._call(self._cuda.cuDeviceGetCount))]

    def _describe(self, ordinal: int) -> DeviceInfo:
        cuda, call = self._cuda, self._call
        device = call(cuda.cuDeviceGet, ordinal)
        uuid = UUID(bytes=bytes(call(cuda.cuDeviceGetUuid, device).bytes))
        return DeviceInfo(
            ordinal=ordinal,
            uuid=f"GPU-{uuid}",
            pci_address=_text(call(cuda.cuDeviceGetPCIBusId, _NAME_BYTES, device)).lower(),
            name=_text(call(cuda.cuDeviceGetName, _NAME_BYTES, device)),
            memory_bytes=call(cuda.cuDeviceTotalMem, device),
        )

    def retain_context(self, ordinal: int) -> Context:
        if (context := self._contexts.get(ordinal)) is not None:
            context.handle.users += 1
            return context
        cuda = self._cuda
        device = self._call(cuda.cuDeviceGet, ordinal)
        count = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        blocks = self._call(cuda.cuDeviceGetAttribute, count, device) * _BLOCKS_PER_MULTIPROCESSOR
        primary = _Primary(device, self._call(cuda.cuDevicePrimaryCtxRetain, device), blocks)
        context = self._contexts[ordinal] = Context(ordinal, primary)
        try:
            self._load(context)
        except DriverError:
            self.release_context(context)
            raise
        return context

    def _load(self, context: Context) -> None:
        """Load the kernels and launch each once, so that nothing is loaded behind a closed gate."""
        primary, cuda = context.handle, self._cuda
        ptx = resources.files("pytest_gpuxfer.hardware").joinpath("kernels.ptx").read_bytes()
        module = self._call_in(context, cuda.cuModuleLoadData, ptx + b"\0")
        primary.undo["module", 0] = lambda: self._call(cuda.cuModuleUnload, module)
        primary.kernels = {
            name: self._call_in(context, cuda.cuModuleGetFunction, module, name.encode())
            for name in KERNELS
        }
        primary.stream = self.create_stream(context).handle
        primary.result = self.allocate_device(context, _RESULT_BYTES).address
        primary.readback = self.allocate_host(context, _RESULT_BYTES + WORD_BYTES).address
        ctypes.c_uint32.from_address(primary.readback).value = 1  # an open gate
        expired = primary.readback + 4
        with self._current(primary):
            self._launch(primary, primary.stream, "gate", 1, primary.readback, expired, 0)
            self._launch(primary, primary.stream, "fill_word", 1, primary.result, 1, 0)
            self._launch(primary, primary.stream, "fill_pattern", 1, primary.result, 1, 0)
            arguments = (primary.result, 1, 0, primary.result)
            self._launch(primary, primary.stream, "compare_pattern", 1, *arguments)
            self._call(cuda.cuStreamSynchronize, primary.stream)

    def release_context(self, context: Context) -> None:
        primary = context.handle
        primary.users -= 1
        if primary.users > 0:
            return
        del self._contexts[context.ordinal]
        # A context that met an error frees nothing any more; it is given back all the same.
        with suppress(DriverError), self._current(primary):
            for undo in reversed(primary.undo.values()):
                with suppress(DriverError):
                    undo()
        primary.undo.clear()
        self._call(self._cuda.cuDevicePrimaryCtxRelease, primary.device)

    def _undo(self, context: Context, kind: str, address: int) -> None:
        """Free what `undo` has under that key; what was released with its context is gone."""
        undo = context.handle.undo.pop((kind, address), None)
        if undo is not None:
            with self._current(context.handle):
                undo()

    def free_memory_bytes(self, context: Context) -> int:
        free, _total = self._call_in(context, self._cuda.cuMemGetInfo)
        return int(free)

    # -- memory ----------------------------------------------------------------------------------

    def allocate_device(self, context: Context, size_bytes: int) -> Memory:
        address = int(self._call_in(context, self._cuda.cuMemAlloc, size_bytes))
        free = self._cuda.cuMemFree
        context.handle.undo["device", address] = lambda: self._call(free, address)
        return Memory(address, size_bytes, context.ordinal)

    def free_device(self, context: Context, memory: Memory) -> None:
        self._undo(context, "device", memory.address)

    def allocate_host(self, context: Context, size_bytes: int) -> Memory:
        allocate, free = self._cuda.cuMemHostAlloc, self._cuda.cuMemFreeHost
        address = int(self._call_in(context, allocate, size_bytes, _PORTABLE_MAPPED))
        context.handle.undo["host", address] = lambda: self._call(free, address)
        return Memory(address, size_bytes, None)

    def free_host(self, context: Context, memory: Memory) -> None:
        self._undo(context, "host", memory.address)

    def host_view(self, memory: Memory) -> memoryview:
        if memory.ordinal is not None:
            raise TypeError(f"memory of device {memory.ordinal} is no host memory")
        return memoryview((ctypes.c_ubyte * memory.size_bytes).from_address(memory.address)).cast(
            "B"
        )

    @property
    def has_addresses(self) -> bool:
        return True

    # -- streams, events, gates ------------------------------------------------------------------

    def create_stream(self, context: Context) -> Stream:
        handle = self._call_in(context, self._cuda.cuStreamCreate, _NON_BLOCKING)
        destroy = self._cuda.cuStreamDestroy
        context.handle.undo["stream", int(handle)] = lambda: self._call(destroy, handle)
        return Stream(context, handle)

    def destroy_stream(self, stream: Stream) -> None:
        self._undo(stream.context, "stream", int(stream.handle))

    def stream_idle(self, stream: Stream) -> bool:
        try:
            self._call_in(stream.context, self._cuda.cuStreamQuery, stream.handle)
        except DriverError as error:
            if error.code == _NOT_READY:
                return False
            raise
        return True

    def create_event(self, context: Context) -> Event:
        handle = self._call_in(context, self._cuda.cuEventCreate, 0)
        destroy = self._cuda.cuEventDestroy
        context.handle.undo["event", int(handle)] = lambda: self._call(destroy, handle)
        return Event(context, handle)

    def destroy_event(self, event: Event) -> None:
        self._undo(event.context, "event", int(event.handle))

    def record_event(self, event: Event, stream: Stream) -> None:
        self._call_in(stream.context, self._cuda.cuEventRecord, event.handle, stream.handle)

    def wait_event(self, event: Event, stream: Stream) -> None:
        self._call_in(stream.context, self._cuda.cuStreamWaitEvent, stream.handle, event.handle, 0)

    def elapsed_ns(self, start: Event, end: Event) -> float:
        elapsed = self._cuda.cuEventElapsedTime
        return float(self._call_in(end.context, elapsed, start.handle, end.handle)) * NS_PER_MS

    def create_gate(self, context: Context) -> Gate:
        memory = self.allocate_host(context, 2 * ctypes.sizeof(ctypes.c_uint32))
        return Gate(context, (ctypes.c_uint32 * 2).from_address(memory.address))

    def destroy_gate(self, gate: Gate) -> None:
        self._undo(gate.context, "host", ctypes.addressof(gate.handle))

    def close_gate(self, gate: Gate, stream: Stream, limit_ns: int) -> None:
        gate.handle[:] = [0, 0]  # not open, not expired
        address = ctypes.addressof(gate.handle)
        primary = stream.context.handle
        with self._current(primary):
            self._launch(primary, stream.handle, "gate", 1, address, address + 4, limit_ns)

    def open_gate(self, gate: Gate) -> None:
        gate.handle[0] = 1

    def gate_expired(self, gate: Gate) -> bool:
        return bool(gate.handle[1])

    # -- copies and kernels ----------------------------------------------------------------------

    def copy(self, destination: Memory, source: Memory, stream: Stream) -> None:
        self._call_in(
            stream.context, self._cuda.cuMemcpyAsync,
            destination.address, source.address, source.size_bytes, stream.handle,
        )  # fmt: skip

    def copy_peer(self, destination: Memory, source: Memory, stream: Stream) -> None:
        self._call_in(
            stream.context, self._cuda.cuMemcpyPeerAsync,
            destination.address, self._owner(destination).handle,
            source.address, self._owner(source).handle, source.size_bytes, stream.handle,
        )  # fmt: skip

    def _owner(self, memory: Memory) -> _Primary:
        if memory.ordinal is None or memory.ordinal not in self._contexts:
            raise ValueError(f"no retained context owns {memory}")
        primary: _Primary = self._contexts[memory.ordinal].handle
        return primary

    def _launch(
        self, primary: _Primary, stream: Any, kernel: str, threads: int, *arguments: int
    ) -> None:
        """Launch in the current context; every parameter of our kernels is of 64 bits."""
        blocks = max(1, min(primary.blocks, -(-threads // _BLOCK_THREADS)))
        block_threads = min(threads, _BLOCK_THREADS) or 1
        parameters = (arguments, (ctypes.c_uint64,) * len(arguments))
        function = primary.kernels[kernel]
        launch = self._cuda.cuLaunchKernel
        self._call(launch, function, blocks, 1, 1, block_threads, 1, 1, 0, stream, parameters, 0)

    def fill(self, kernel: Fill, stream: Stream) -> None:
        words, content, primary = _words(kernel.memory), kernel.content, stream.context.handle
        is_word = isinstance(content, int)
        name = "fill_word" if is_word else "fill_pattern"
        value = content if isinstance(content, int) else content.offset_words
        with self._current(primary):
            self._launch(primary, stream.handle, name, words, kernel.memory.address, words, value)

    def fill_host(self, memory: Memory, content: Pattern | int) -> None:
        _words(memory)
        host_pattern.fill(memory, content)

    def compare(self, memory: Memory, content: Pattern) -> Comparison:
        words = _words(memory)
        if memory.ordinal is None:
            return host_pattern.compare(memory, content)
        primary = self._owner(memory)
        readback = (ctypes.c_uint64 * 4).from_address(primary.readback)
        readback[:] = [0, 2**64 - 1, 0, 0]
        arguments = (memory.address, words, content.offset_words, primary.result)
        with self._current(primary):
            self._move(primary, primary.result, primary.readback, _RESULT_BYTES)
            self._launch(primary, primary.stream, "compare_pattern", words, *arguments)
            self._move(primary, primary.readback, primary.result, _RESULT_BYTES)
            self._call(self._cuda.cuStreamSynchronize, primary.stream)
            wrong, first, last, _ = readback
            if wrong == 0:
                return Comparison(0)
            first_word = memory.address + first * WORD_BYTES
            self._move(primary, primary.readback + _RESULT_BYTES, first_word, WORD_BYTES)
            self._call(self._cuda.cuStreamSynchronize, primary.stream)
        expected, got = content.word(first), readback[3]
        return Comparison(wrong, first * WORD_BYTES, last * WORD_BYTES, expected, got)

    def _move(self, primary: _Primary, destination: int, source: int, size_bytes: int) -> None:
        copy = self._cuda.cuMemcpyAsync
        self._call(copy, destination, source, size_bytes, primary.stream)

    # -- peer access -----------------------------------------------------------------------------

    def can_access_peer(self, ordinal: int, peer: int) -> bool:
        cuda, call = self._cuda, self._call
        devices = call(cuda.cuDeviceGet, ordinal), call(cuda.cuDeviceGet, peer)
        return bool(call(cuda.cuDeviceCanAccessPeer, *devices))

    def enable_peer_access(self, context: Context, peer: Context) -> Access:
        try:
            self._call_in(context, self._cuda.cuCtxEnablePeerAccess, peer.handle.handle, 0)
        except DriverError as error:
            if error.code not in _ACCESS_ANSWERS:
                raise
            return _ACCESS_ANSWERS[error.code]
        return Access.ENABLED

    def disable_peer_access(self, context: Context, peer: Context) -> None:
        self._call_in(context, self._cuda.cuCtxDisablePeerAccess, peer.handle.handle)


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode()


def _words(memory: Memory) -> int:
    words, rest = divmod(memory.size_bytes, WORD_BYTES)
    if rest:
        raise ValueError(
            f"{memory.size_bytes} bytes are no whole number of {WORD_BYTES}-byte words"
        )
    return words
