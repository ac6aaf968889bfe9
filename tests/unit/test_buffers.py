"""Buffers as other libraries take them, over memory that is really there: the host's, for all."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from pytest_gpuxfer.hardware import Hardware, open_simulated
from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.hardware.driver import DeviceKind, HostKind, Memory
from pytest_gpuxfer.transfer.arena import Arena, CannotAllocateError
from pytest_gpuxfer.transfer.buffers import (
    AnyBuffer,
    DeviceBuffer,
    HostBuffer,
    ManagedBuffer,
    MappedBuffer,
)

SIZE = 4096
MIB = 2**20
CPU, CUDA, CUDA_HOST, MANAGED = 1, 2, 3, 13


class RealMemory:
    """A simulated driver whose allocations are memory of this process."""

    has_addresses = True

    def __init__(self, simulated: Any) -> None:
        self._simulated = simulated
        self._blocks: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulated, name)

    @property
    def allocated(self) -> int:
        return len(self._blocks)

    def _allocate(self, size_bytes: int, ordinal: int | None) -> Memory:
        block = (ctypes.c_ubyte * size_bytes)()
        self._blocks[ctypes.addressof(block)] = block
        return Memory(ctypes.addressof(block), size_bytes, ordinal)

    def allocate_device(self, context: Any, size_bytes: int, kind: DeviceKind) -> Memory:
        return self._allocate(size_bytes, context.ordinal)

    def allocate_host(self, context: Any, size_bytes: int, kind: HostKind) -> Memory:
        return self._allocate(size_bytes, None)

    def allocate_managed(self, context: Any, size_bytes: int) -> Memory:
        return self._allocate(size_bytes, None)

    def free(self, context: Any, memory: Memory) -> None:
        del self._blocks[memory.address]

    free_device = free_host = free_managed = free

    def host_view(self, memory: Memory) -> memoryview:
        array = (ctypes.c_ubyte * memory.size_bytes).from_address(memory.address)
        return memoryview(array).cast("B")


class Rig:
    def __init__(self) -> None:
        simulated = open_simulated("dgx-a100")
        self.driver = RealMemory(simulated.driver)
        hardware = Hardware(
            cast("Any", self.driver),
            simulated.telemetry,
            simulated.clock,
            simulated.placement,
            simulated.host,
        )
        self.arena = Arena(hardware, discover(simulated))


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    assert rig.driver.allocated == 0


OF_GPU: dict[str, Callable[[Arena], DeviceBuffer | MappedBuffer | ManagedBuffer]] = {
    "device": lambda arena: DeviceBuffer(arena, 3, SIZE),
    "vmm": lambda arena: DeviceBuffer(arena, 3, SIZE, DeviceKind.VMM),
    "mapped": lambda arena: MappedBuffer(arena, 3, SIZE),
    "managed": lambda arena: ManagedBuffer(arena, 3, SIZE),
}
OF_HOST: dict[str, Callable[[Arena], HostBuffer | ManagedBuffer]] = {
    "pinned": lambda arena: HostBuffer(arena, SIZE),
    "pageable": lambda arena: HostBuffer(arena, SIZE, HostKind.PAGEABLE),
    "mapped": lambda arena: MappedBuffer(arena, 3, SIZE),
    "managed": lambda arena: ManagedBuffer(arena, 3, SIZE),
}
KINDS: dict[str, Callable[[Arena], AnyBuffer]] = {**OF_GPU, **OF_HOST}
of_every_kind = pytest.mark.parametrize("kind", KINDS)


class Tensor(ctypes.Structure):
    """DLTensor, as dlpack.h has it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Old(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter))


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


def python(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


pointer_of = python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
rename = python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
USED = b"used_dltensor"


def look(capsule: object, name: bytes = b"dltensor", form: Any = Old) -> Any:
    return form.from_address(pointer_of(capsule, name))


@contextmanager
def taken(buffer: AnyBuffer) -> Iterator[Tensor]:
    """A consumer: it renames the capsule, and calls the deleter when it is done."""
    capsule = buffer.__dlpack__()
    pointer = pointer_of(capsule, b"dltensor")
    managed = Old.from_address(pointer)
    rename(capsule, USED)
    del capsule
    gc.collect()
    yield managed.tensor
    managed.deleter(pointer)


@of_every_kind
def test_dlpack_tells_all_of_the_memory_as_bytes(rig: Rig, kind: str) -> None:
    with KINDS[kind](rig.arena) as buffer:
        capsule = buffer.__dlpack__(stream=1)
        tensor = look(capsule).tensor
        assert tensor.data == buffer.address
        assert (tensor.ndim, tensor.shape[0], tensor.strides[0]) == (1, SIZE, 1)
        assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (1, 8, 1, 0)
        assert (tensor.device_type, tensor.device_id) == buffer.__dlpack_device__()
        del capsule, tensor


def test_takers_of_dlpack_1_get_a_writable_tensor_of_that_version(rig: Rig) -> None:
    with HostBuffer(rig.arena, SIZE) as buffer:
        capsule = buffer.__dlpack__(max_version=(1, 1))
        managed = look(capsule, b"dltensor_versioned", Versioned)
        assert (managed.major, managed.flags, managed.tensor.data) == (1, 0, buffer.address)
        old = buffer.__dlpack__(max_version=(0, 8))
        assert look(old).tensor.shape[0] == SIZE
        del capsule, old


@pytest.mark.parametrize(
    ("kind", "device", "also"),
    [
        ("device", (CUDA, 3), []),
        ("pinned", (CPU, 0), []),
        ("mapped", (CPU, 0), [(CUDA, 3), (CUDA_HOST, 0)]),
        ("managed", (MANAGED, 3), [(CUDA, 3), (CPU, 0)]),
    ],
)
def test_dlpack_has_memory_where_it_can_be_used(
    rig: Rig, kind: str, device: tuple[int, int], also: list[tuple[int, int]]
) -> None:
    with KINDS[kind](rig.arena) as buffer:
        assert buffer.__dlpack_device__() == device
        for wish in (device, *also):
            capsule = buffer.__dlpack__(dl_device=wish, copy=False)
            tensor = look(capsule).tensor
            assert (tensor.device_type, tensor.device_id) == wish
        with pytest.raises(BufferError, match=r"another device, \(2, 5\)"):
            buffer.__dlpack__(dl_device=(CUDA, 5))
        with pytest.raises(BufferError, match="not to be copied"):
            buffer.__dlpack__(copy=True)
        del capsule, tensor


@of_every_kind
def test_memory_outlives_its_buffer_while_a_tensor_holds_it(rig: Rig, kind: str) -> None:
    buffer = KINDS[kind](rig.arena)
    with taken(buffer):
        buffer.close()
        buffer.close()
        with pytest.raises(ValueError, match="closed"):
            buffer.__dlpack__()
        assert rig.driver.allocated == 1
    assert rig.driver.allocated == 0


def test_a_capsule_that_nobody_took_gives_memory_back(rig: Rig) -> None:
    buffer = DeviceBuffer(rig.arena, 0, SIZE)
    capsules = [buffer.__dlpack__(), buffer.__dlpack__(max_version=(1, 0))]
    buffer.close()
    capsules.pop()
    assert rig.driver.allocated == 1
    capsules.pop()
    assert rig.driver.allocated == 0


def test_a_tensor_that_ends_first_leaves_the_buffer_as_it_was(rig: Rig) -> None:
    with HostBuffer(rig.arena, SIZE) as buffer:
        with taken(buffer) as tensor:
            ctypes.memset(tensor.data, 7, SIZE)
        assert bytes(buffer.view()) == b"\7" * SIZE


@pytest.mark.parametrize("kind", OF_HOST)
def test_a_view_is_the_memory_and_keeps_it(rig: Rig, kind: str) -> None:
    buffer = OF_HOST[kind](rig.arena)
    view = buffer.view()
    view[:4] = b"data"
    assert bytes((ctypes.c_char * 4).from_address(buffer.address)) == b"data"
    assert bytes(buffer.__array_interface__["data"][:4]) == b"data"
    part = view[1:3]
    del view
    buffer.close()
    assert (bytes(part), rig.driver.allocated) == (b"at", 1)
    del part
    assert rig.driver.allocated == 0


@pytest.mark.parametrize("kind", OF_GPU)
def test_gpu_libraries_get_the_address(rig: Rig, kind: str) -> None:
    with OF_GPU[kind](rig.arena) as buffer:
        told = buffer.__cuda_array_interface__
        assert told["data"] == (buffer.address, False)
        assert (told["shape"], told["typestr"], told["version"]) == ((SIZE,), "|u1", 3)


def test_pinned_memory_is_no_gpus(rig: Rig) -> None:
    with HostBuffer(rig.arena, SIZE) as buffer:
        assert not hasattr(buffer, "__cuda_array_interface__")


INTERFACES = ("__dlpack__", "__cuda_array_interface__", "__array_interface__")


def use(buffer: AnyBuffer, name: str) -> object:
    found = getattr(buffer, name)
    return found() if callable(found) else found


@of_every_kind
def test_a_simulated_machine_has_no_address_for_anyone(kind: str) -> None:
    hardware = open_simulated("dgx-a100")
    with KINDS[kind](Arena(hardware, discover(hardware))) as buffer:
        for name in ("address", "view", *INTERFACES):
            if hasattr(type(buffer), name):
                with pytest.raises(TypeError, match="simulated machine"):
                    use(buffer, name)


def test_managed_memory_is_bounded_over_all_of_it(rig: Rig) -> None:
    rig.arena.managed(200 * MIB)  # our own, which gives way
    first = ManagedBuffer(rig.arena, 0, 200 * MIB)
    refused = "57 MiB of managed memory beside 200 MiB of the tests' own are more than the 256 MiB"
    with pytest.raises(CannotAllocateError, match=refused):
        ManagedBuffer(rig.arena, 0, 57 * MIB)
    with pytest.raises(CannotAllocateError, match=refused):
        rig.arena.managed(57 * MIB)
    first.close()
    ManagedBuffer(rig.arena, 0, 256 * MIB).close()
