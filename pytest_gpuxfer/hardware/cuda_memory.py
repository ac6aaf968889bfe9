"""The kinds of memory that CUDA knows: how each is made, opened to other devices, and freed."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

from pytest_gpuxfer.hardware.cuda_calls import CudaCalls, Primary
from pytest_gpuxfer.hardware.driver import (
    Context,
    DeviceKind,
    DriverError,
    Feature,
    HostKind,
    Memory,
    SharedHandle,
    Stream,
)

_PORTABLE_MAPPED: Final = 1 | 2  # CU_MEMHOSTALLOC_* and CU_MEMHOSTREGISTER_* alike
_GLOBAL: Final = 1  # CU_MEM_ATTACH_GLOBAL: any stream of any device may use it
_LAZY_PEER_ACCESS: Final = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: the only flag there is
_IPC_HANDLE_BYTES: Final = 64
_FEATURES: Final[Mapping[Feature, str]] = {
    Feature.CONCURRENT_MANAGED_ACCESS: "CONCURRENT_MANAGED_ACCESS",
    Feature.MEMORY_POOLS: "MEMORY_POOLS_SUPPORTED",
    Feature.VIRTUAL_MEMORY: "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    Feature.FILE_DESCRIPTORS: "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
}


class CudaMemory(CudaCalls):
    """The Driver's calls that make memory, share it, and free it."""

    def supports(self, ordinal: int, feature: Feature) -> bool:
        return bool(self._attribute(_FEATURES[feature], ordinal))

    def free_memory_bytes(self, context: Context) -> int:
        free, _total = self._call_in(context, self._cuda.cuMemGetInfo)
        return int(free)

    # -- device memory ---------------------------------------------------------------------------

    def allocate_device(
        self, context: Context, size_bytes: int, kind: DeviceKind = DeviceKind.MALLOC
    ) -> Memory:
        primary: Primary = context.handle
        with self._current(primary), ExitStack() as undo:
            if kind is DeviceKind.MALLOC:
                address = int(self._call(self._cuda.cuMemAlloc, size_bytes))
                undo.callback(self._call, self._cuda.cuMemFree, address)
            elif kind is DeviceKind.POOL:
                address = self._allocate_from_pool(context, size_bytes, undo)
            else:
                properties = self._properties(context.ordinal)
                whole_bytes = self._round_up(size_bytes, properties)
                handle = self._call(self._cuda.cuMemCreate, whole_bytes, properties, 0)
                address = self._map(context, handle, whole_bytes, undo)
            primary.undo["device", address] = undo.pop_all().close
        return Memory(address, size_bytes, context.ordinal)

    def _allocate_from_pool(self, context: Context, size_bytes: int, undo: ExitStack) -> int:
        """Each memory has a pool to itself: access is given to a pool as a whole."""
        cuda, primary = self._cuda, context.handle
        properties = cuda.CUmemPoolProps()
        properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._locate(properties.location, context.ordinal)
        pool = self._call(cuda.cuMemPoolCreate, properties)
        undo.callback(self._call, cuda.cuMemPoolDestroy, pool)
        allocate = cuda.cuMemAllocFromPoolAsync
        address = int(self._call(allocate, size_bytes, pool, primary.stream))
        undo.callback(self._call, cuda.cuStreamSynchronize, primary.stream)
        undo.callback(self._call, cuda.cuMemFreeAsync, address, primary.stream)
        self._call(cuda.cuStreamSynchronize, primary.stream)
        primary.set_access[address] = lambda ordinal, flags: self._call(
            cuda.cuMemPoolSetAccess, pool, [self._access(ordinal, flags)], 1
        )
        undo.callback(primary.set_access.pop, address)
        return address

    def _map(self, context: Context, handle: Any, whole_bytes: int, undo: ExitStack) -> int:
        """Map a VMM allocation and give the context's own device access to it."""
        cuda, set_access = self._cuda, context.handle.set_access
        undo.callback(self._call, cuda.cuMemRelease, handle)
        address = int(self._call(cuda.cuMemAddressReserve, whole_bytes, 0, 0, 0))
        undo.callback(self._call, cuda.cuMemAddressFree, address, whole_bytes)
        self._call(cuda.cuMemMap, address, whole_bytes, 0, handle, 0)
        undo.callback(self._call, cuda.cuMemUnmap, address, whole_bytes)
        set_access[address] = lambda ordinal, flags: self._call(
            cuda.cuMemSetAccess, address, whole_bytes, [self._access(ordinal, flags)], 1
        )
        undo.callback(set_access.pop, address)
        set_access[address](context.ordinal, self._flags("READWRITE"))
        return address

    def _properties(self, ordinal: int) -> Any:
        cuda = self._cuda
        properties = cuda.CUmemAllocationProp()
        properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._locate(properties.location, ordinal)
        if self.supports(ordinal, Feature.FILE_DESCRIPTORS):
            properties.requestedHandleTypes = self._descriptor_type
        return properties

    @property
    def _descriptor_type(self) -> Any:
        kinds = self._cuda.CUmemAllocationHandleType
        return kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def _round_up(self, size_bytes: int, properties: Any) -> int:
        least = self._cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        unit = int(self._call(self._cuda.cuMemGetAllocationGranularity, properties, least))
        return -(-size_bytes // unit) * unit

    def _locate(self, location: Any, ordinal: int | None) -> None:
        types = self._cuda.CUmemLocationType
        if ordinal is None:
            location.type = types.CU_MEM_LOCATION_TYPE_HOST
        else:
            location.type, location.id = types.CU_MEM_LOCATION_TYPE_DEVICE, ordinal

    def _access(self, ordinal: int, flags: Any) -> Any:
        access = self._cuda.CUmemAccessDesc()
        self._locate(access.location, ordinal)
        access.flags = flags
        return access

    def _flags(self, name: str) -> Any:
        return getattr(self._cuda.CUmemAccess_flags, f"CU_MEM_ACCESS_FLAGS_PROT_{name}")

    def grant_access(self, memory: Memory, context: Context) -> None:
        self._set_access(memory, context, "READWRITE")

    def revoke_access(self, memory: Memory, context: Context) -> None:
        self._set_access(memory, context, "NONE")

    def _set_access(self, memory: Memory, context: Context, flags: str) -> None:
        set_access = self._owner(memory).set_access.get(memory.address)
        if set_access is None:
            raise ValueError(f"{memory} is no pool or vmm memory: peer access is its context's")
        set_access(context.ordinal, self._flags(flags))

    def free_device(self, context: Context, memory: Memory) -> None:
        self._undo(context, "device", memory.address)

    # -- host memory -----------------------------------------------------------------------------

    def allocate_host(
        self, context: Context, size_bytes: int, kind: HostKind = HostKind.PINNED
    ) -> Memory:
        with self._current(context.handle), ExitStack() as undo:
            if kind is HostKind.PINNED:
                allocate = self._cuda.cuMemHostAlloc
                address = int(self._call(allocate, size_bytes, _PORTABLE_MAPPED))
                undo.callback(self._call, self._cuda.cuMemFreeHost, address)
            else:
                address = _touched_pages(size_bytes, kind is HostKind.SHARED, undo)
            if kind in (HostKind.REGISTERED, HostKind.SHARED):
                self._register(address, size_bytes, undo)
            context.handle.undo["host", address] = undo.pop_all().close
        return Memory(address, size_bytes, None)

    def _register(self, address: int, size_bytes: int, undo: ExitStack) -> None:
        self._call(self._cuda.cuMemHostRegister, address, size_bytes, _PORTABLE_MAPPED)
        undo.callback(self._call, self._cuda.cuMemHostUnregister, address)
        as_devices_see_it = self._cuda.cuMemHostGetDevicePointer
        if int(self._call(as_devices_see_it, address, 0)) != address:
            raise DriverError(
                as_devices_see_it.__name__, 801, "CUDA_ERROR_NOT_SUPPORTED",
                "devices have registered host memory at another address than the CPU",
            )  # fmt: skip

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

    # -- managed memory --------------------------------------------------------------------------

    def allocate_managed(self, context: Context, size_bytes: int) -> Memory:
        address = int(self._call_in(context, self._cuda.cuMemAllocManaged, size_bytes, _GLOBAL))
        free = self._cuda.cuMemFree
        context.handle.undo["managed", address] = lambda: self._call(free, address)
        return Memory(address, size_bytes, None)

    def free_managed(self, context: Context, memory: Memory) -> None:
        self._undo(context, "managed", memory.address)

    def prefetch(self, memory: Memory, target: Context | None, stream: Stream) -> None:
        cuda = self._cuda
        location = cuda.CUmemLocation()
        self._locate(location, None if target is None else target.ordinal)
        # CUDA 13 gave the plain name the signature that 12.x has under this one.
        call = getattr(cuda, "cuMemPrefetchAsync_v2", cuda.cuMemPrefetchAsync)
        arguments = (memory.address, memory.size_bytes, location, 0, stream.handle)
        self._call_in(stream.context, call, *arguments)

    # -- memory of another process ---------------------------------------------------------------

    def export_memory(self, context: Context, memory: Memory, kind: DeviceKind) -> bytes | int:
        """An IPC handle of MALLOC memory, or a file descriptor (to be closed) of VMM memory."""
        cuda = self._cuda
        if kind is DeviceKind.MALLOC:
            handle = self._call_in(context, cuda.cuIpcGetMemHandle, memory.address)
            return ctypes.string_at(handle.getPtr(), _IPC_HANDLE_BYTES)
        if kind is not DeviceKind.VMM:
            raise ValueError(f"memory of {kind} kind is not shared with other processes here")
        allocation = self._call(cuda.cuMemRetainAllocationHandle, memory.address)
        try:
            export = cuda.cuMemExportToShareableHandle
            return int(self._call(export, allocation, self._descriptor_type, 0))
        finally:
            self._call(cuda.cuMemRelease, allocation)

    def import_memory(self, context: Context, shared: SharedHandle) -> Memory:
        cuda, call = self._cuda, self._call
        with self._current(context.handle), ExitStack() as undo:
            if shared.kind is DeviceKind.VMM:
                kind = self._descriptor_type
                handle = call(cuda.cuMemImportFromShareableHandle, shared.handle, kind)
                properties = self._properties(shared.ordinal)
                whole_bytes = self._round_up(shared.size_bytes, properties)
                address = self._map(context, handle, whole_bytes, undo)
            else:
                handle = cuda.CUipcMemHandle()
                ctypes.memmove(handle.getPtr(), shared.handle, _IPC_HANDLE_BYTES)
                address = int(call(cuda.cuIpcOpenMemHandle, handle, _LAZY_PEER_ACCESS))
                undo.callback(call, cuda.cuIpcCloseMemHandle, address)
            context.handle.undo["import", address] = undo.pop_all().close
        return Memory(address, shared.size_bytes, shared.ordinal)

    def release_import(self, context: Context, memory: Memory) -> None:
        self._undo(context, "import", memory.address)


def _touched_pages(size_bytes: int, shared: bool, undo: ExitStack) -> int:
    """The address of anonymous memory, or of a memory file, whose pages all exist."""
    if shared:
        descriptor = os.memfd_create("gpuxfer")
        try:
            os.ftruncate(descriptor, size_bytes)
            pages = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)  # the mapping has one of its own
    else:
        pages = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    undo.callback(pages.close)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    ctypes.memset(address, 0, size_bytes)
    return address
