"""Real memory of this process for people's own tests, as other libraries know it.

All of it is plain bytes. Memory of a GPU speaks `__cuda_array_interface__` (version 3), memory of
the host the buffer protocol and `__array_interface__`, mapped and managed memory both; and all
speak DLPack. A simulated machine's memory has no address: asking for one raises TypeError.

`close` ends the buffer. The memory itself stays until the last tensor made by DLPack and the last
memoryview has gone, so none of them is left with nothing behind it. `__cuda_array_interface__`
says no such thing: an array made by it must not be used after `close`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import RLock
from types import TracebackType
from typing import Any, Final, Self
from weakref import finalize

from pytest_gpuxfer.hardware.driver import DeviceKind, DriverError, HostKind, Memory
from pytest_gpuxfer.transfer import dlpack
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.dlpack import Device, DeviceType

_HOST: Final = (DeviceType.CPU, 0)  # of all kinds: not every library knows page-locked memory


class _Held:
    """Memory that is freed when the last of its holders lets go, on whatever thread."""

    def __init__(self, free: Callable[[], None]) -> None:
        self._free = free
        self._holders = 1
        self._lock = RLock()  # a collection of garbage may let go in the middle of `hold`

    def hold(self) -> None:
        with self._lock:
            self._holders += 1

    def let_go(self) -> None:
        """Raises DriverError where the memory could not be freed."""
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self._free()

    def let_go_late(self) -> None:
        """As a library drops its tensor: nobody is there to hear of an error."""
        with suppress(DriverError):
            self.let_go()


class AnyBuffer(ABC):
    """Memory with an owner; ended by `close`, or at the end of a `with` block."""

    def __init__(self, arena: Arena, memory: Memory, free: Callable[[], None]) -> None:
        self._driver = arena.driver
        self._memory: Memory | None = memory
        self._held = _Held(free)

    @property
    def memory(self) -> Memory:
        """What the driver calls it. Raises ValueError once it was closed."""
        if self._memory is None:
            raise ValueError("this buffer was closed")
        return self._memory

    @property
    def size_bytes(self) -> int:
        return self.memory.size_bytes

    @property
    def address(self) -> int:
        """Where it is. Raises TypeError on a simulated machine, ValueError once closed."""
        memory = self.memory
        if not self._driver.has_addresses:
            raise TypeError("memory of a simulated machine has no address to hand out")
        return memory.address

    @abstractmethod
    def _dlpack_devices(self) -> tuple[Device, ...]:
        """What DLPack may call it; the first where the taker has no wish."""

    def __dlpack_device__(self) -> Device:
        return self._dlpack_devices()[0]

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule for `from_dlpack`; nothing of ours is pending on it, whatever the stream.

        Raises BufferError for another device, or a copy; TypeError on a simulated machine.
        """
        del stream
        address, devices = self.address, self._dlpack_devices()
        device = next((d for d in devices if dl_device is None or d == tuple(dl_device)), None)
        if copy or device is None:
            wish = "to be copied" if copy else f"on another device, {dl_device}"
            raise BufferError(f"DLPack has this buffer where it is, not {wish}")
        self._held.hold()
        give_back = self._held.let_go_late
        return dlpack.capsule(address, self.size_bytes, device, give_back, max_version)

    def close(self) -> None:
        """End it; again is harmless. Raises DriverError where the memory could not be freed."""
        memory, self._memory = self._memory, None
        if memory is not None:
            self._held.let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _OfDevice(AnyBuffer):
    """Memory that a GPU uses by its address."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.size_bytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }


class _OfHost(AnyBuffer):
    """Memory that the CPU uses by its address."""

    def view(self) -> memoryview:
        """Its bytes, writable. Raises TypeError on a simulated machine."""
        view = self._driver.host_view(self.memory)
        self._held.hold()
        # The object behind the view lives as long as whatever was made of it.
        finalize(view.obj, self._held.let_go_late).atexit = False
        return view

    def __buffer__(self, flags: int) -> memoryview:  # the buffer protocol, from Python 3.12 on
        return self.view()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size_bytes,), "typestr": "|u1", "data": self.view(), "version": 3}

    def _dlpack_devices(self) -> tuple[Device, ...]:
        return (_HOST,)


class DeviceBuffer(_OfDevice):
    """Memory of one GPU. Raises CannotAllocateError, DriverError."""

    def __init__(
        self, arena: Arena, gpu: int, size_bytes: int, kind: DeviceKind = DeviceKind.MALLOC
    ) -> None:
        memory = arena.allocate_device(gpu, size_bytes, kind)
        super().__init__(
            arena, memory, partial(arena.driver.free_device, arena.context(gpu), memory)
        )
        self.gpu, self.kind = gpu, kind
        self._device = _device_of(arena, gpu)

    def _dlpack_devices(self) -> tuple[Device, ...]:
        return ((DeviceType.CUDA, self._device),)


class HostBuffer(_OfHost):
    """Host memory of one kind. Raises DriverError."""

    def __init__(self, arena: Arena, size_bytes: int, kind: HostKind = HostKind.PINNED) -> None:
        context = arena.host_context()
        memory = arena.driver.allocate_host(context, size_bytes, kind)
        super().__init__(arena, memory, partial(arena.driver.free_host, context, memory))
        self.kind = kind


class MappedBuffer(HostBuffer, _OfDevice):
    """Page-locked host memory as a GPU has it: each load and store crosses its link."""

    def __init__(self, arena: Arena, gpu: int, size_bytes: int) -> None:
        super().__init__(arena, size_bytes)
        self.gpu = gpu
        self._device = _device_of(arena, gpu)

    def _dlpack_devices(self) -> tuple[Device, ...]:
        return (_HOST, (DeviceType.CUDA_HOST, 0), (DeviceType.CUDA, self._device))


class ManagedBuffer(_OfHost, _OfDevice):
    """Managed memory, for the CPU and all GPUs. Raises CannotAllocateError, DriverError."""

    def __init__(self, arena: Arena, gpu: int, size_bytes: int) -> None:
        memory = arena.allocate_managed(size_bytes)
        super().__init__(arena, memory, partial(arena.free_managed, memory))
        self.gpu = gpu
        self._device = _device_of(arena, gpu)

    def _dlpack_devices(self) -> tuple[Device, ...]:
        device = self._device
        return ((DeviceType.CUDA_MANAGED, device), (DeviceType.CUDA, device), _HOST)


def _device_of(arena: Arena, gpu: int) -> int:
    """CUDA's number of a GPU, as other libraries of this process have it."""
    return arena.context(gpu).ordinal
