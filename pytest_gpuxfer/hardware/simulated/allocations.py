"""Getting and freeing memory of every kind."""

from __future__ import annotations

from typing import Final

from pytest_gpuxfer.hardware.driver import Context, DeviceKind, Feature, HostKind, Memory
from pytest_gpuxfer.hardware.simulated.errors import fail
from pytest_gpuxfer.hardware.simulated.memory import AddressError, Allocation, Kind, Managed
from pytest_gpuxfer.hardware.simulated.process import ContextState, Process

_ALLOCATE: Final = {
    DeviceKind.MALLOC: "cuMemAlloc",
    DeviceKind.POOL: "cuMemAllocFromPoolAsync",
    DeviceKind.VMM: "cuMemCreate",
}
_NEEDS: Final = {
    DeviceKind.POOL: Feature.MEMORY_POOLS,
    DeviceKind.VMM: Feature.VIRTUAL_MEMORY,
}


class Allocations(Process):
    """The Driver's calls that allocate, free and grant access to memory."""

    def supports(self, ordinal: int, feature: Feature) -> bool:
        self._check_device("cuDeviceGetAttribute", ordinal)
        return feature in self._node.machine.kind_of(ordinal).features

    def free_memory_bytes(self, context: Context) -> int:
        ordinal = self._enter("cuMemGetInfo", context).ordinal
        used = self._node.used_bytes[ordinal] + self._space.managed_bytes(ordinal)
        return int(self._node.machine.kind_of(ordinal).memory) - used

    def allocate_device(
        self, context: Context, size_bytes: int, kind: DeviceKind = DeviceKind.MALLOC
    ) -> Memory:
        call = _ALLOCATE[kind]
        state = self._enter(call, context)
        if kind in _NEEDS and not self.supports(state.ordinal, _NEEDS[kind]):
            fail(call, 801)
        if size_bytes <= 0:
            fail(call, 1)
        memory_bytes = self._node.machine.kind_of(state.ordinal).memory
        if self._node.used_bytes[state.ordinal] + size_bytes > memory_bytes:
            fail(call, 2)
        memory = self._space.allocate(size_bytes, state.ordinal, kind).memory
        state.memories.add(memory)
        self._node.used_bytes[state.ordinal] += size_bytes
        return memory

    def free_device(self, context: Context, memory: Memory) -> None:
        state = self._enter("cuMemFree", context)
        if memory not in state.memories:
            fail("cuMemFree", 1, "it is not allocated")
        self._free(state, memory)

    def grant_access(self, memory: Memory, context: Context) -> None:
        state, allocation = self._scoped(memory, context)
        owner = allocation.memory.ordinal
        assert owner is not None
        if owner != state.ordinal and not self._node.wiring.access_offered(state.ordinal, owner):
            fail("cuMemSetAccess", 101, "the devices are no peers")
        allocation.granted.add(state.ordinal)

    def revoke_access(self, memory: Memory, context: Context) -> None:
        state, allocation = self._scoped(memory, context)
        allocation.granted.discard(state.ordinal)

    def _scoped(self, memory: Memory, context: Context) -> tuple[ContextState, Allocation]:
        state = self._enter("cuMemSetAccess", context)
        allocation, _ = self._locate("cuMemSetAccess", memory)
        if allocation.kind not in (DeviceKind.POOL, DeviceKind.VMM):
            fail("cuMemSetAccess", 1, "its access is that of its context")
        return state, allocation

    def allocate_host(
        self, context: Context, size_bytes: int, kind: HostKind = HostKind.PINNED
    ) -> Memory:
        self._enter("cuMemHostAlloc", context)
        if size_bytes <= 0:
            fail("cuMemHostAlloc", 1)
        allocation = self._space.allocate(size_bytes, None, kind)
        allocation.numa_node = self._node.cpu_node
        return allocation.memory

    def free_host(self, context: Context, memory: Memory) -> None:
        self._enter("cuMemFreeHost", context)
        self._free_unowned("cuMemFreeHost", memory, HostKind)

    def allocate_managed(self, context: Context, size_bytes: int) -> Memory:
        self._enter("cuMemAllocManaged", context)
        if size_bytes <= 0:
            fail("cuMemAllocManaged", 1)
        return self._space.allocate(size_bytes, None).memory

    def free_managed(self, context: Context, memory: Memory) -> None:
        self._enter("cuMemFree", context)
        self._free_unowned("cuMemFree", memory, Managed)

    def _free_unowned(self, call: str, memory: Memory, kind: type[Kind]) -> None:
        """Free memory that belongs to no context."""
        allocation, _ = self._locate(call, memory)
        if not isinstance(allocation.kind, kind):
            fail(call, 1, "it was not allocated so")
        try:
            self._space.free(memory)
        except AddressError as error:
            fail(call, 1, str(error))
