"""Real memory of this process for people's own tests, as other libraries know it.

A device buffer speaks `__cuda_array_interface__` (version 3), a host buffer the buffer protocol
and `__array_interface__`; both are plain bytes (`|u1`). A simulated machine's memory has no
address: asking for one raises TypeError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

from pytest_gpuxfer.hardware.driver import Memory
from pytest_gpuxfer.transfer.arena import Arena


class _Buffer(ABC):
    """Memory with an owner; freed by `close`, or at the end of a `with` block."""

    def __init__(self, arena: Arena, memory: Memory) -> None:
        self._arena = arena
        self._memory: Memory | None = memory

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
        if not self._arena.driver.has_addresses:
            raise TypeError("memory of a simulated machine has no address to hand out")
        return memory.address

    def _interface(self, version: int) -> dict[str, Any]:
        return {
            "shape": (self.size_bytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "version": version,
        }

    def close(self) -> None:
        """Free it; again is harmless."""
        memory, self._memory = self._memory, None
        if memory is not None:
            self._free(memory)

    @abstractmethod
    def _free(self, memory: Memory) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class DeviceBuffer(_Buffer):
    """Memory of one GPU (cuMemAlloc)."""

    def __init__(self, arena: Arena, gpu: int, size_bytes: int) -> None:
        super().__init__(arena, arena.allocate_device(gpu, size_bytes))
        self.gpu = gpu

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._interface(version=3)

    def _free(self, memory: Memory) -> None:
        self._arena.driver.free_device(self._arena.context(self.gpu), memory)


class PinnedBuffer(_Buffer):
    """Page-locked host memory (cuMemHostAlloc, portable and mapped)."""

    def __init__(self, arena: Arena, size_bytes: int) -> None:
        driver = arena.driver
        super().__init__(arena, driver.allocate_host(arena.host_context(), size_bytes))

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._interface(version=3)

    def view(self) -> memoryview:
        """Its bytes, writable. Raises TypeError on a simulated machine."""
        return self._arena.driver.host_view(self.memory)

    def __buffer__(self, flags: int) -> memoryview:  # the buffer protocol, from Python 3.12 on
        return self.view()

    def _free(self, memory: Memory) -> None:
        self._arena.driver.free_host(self._arena.host_context(), memory)
