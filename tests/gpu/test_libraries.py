"""CuPy, PyTorch and NumPy use the fixtures' buffers where they are, and neither copies nor crashes.

What one side writes the other reads: by the CPU, or by a copy of the driver's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuxfer.hardware import open_hardware
from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.hardware.driver import Context, DeviceKind, Driver, HostKind, Memory, Stream
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.buffers import (
    AnyBuffer,
    DeviceBuffer,
    HostBuffer,
    ManagedBuffer,
    MappedBuffer,
)

from .conftest import Wait

SIZE = 2**21
HOST_KINDS = tuple(HostKind)
PAGE = Path(__file__).parents[2] / "docs" / "fixtures.md"
numpy_ways = pytest.mark.parametrize("way", ["asarray", "from_dlpack", "frombuffer"])


@pytest.fixture(scope="session")
def arena(driver: Driver) -> Iterator[Arena]:
    hardware = open_hardware()
    arena = Arena(hardware, discover(hardware))
    yield arena
    arena.close()


@pytest.fixture
def numpy() -> Any:
    return pytest.importorskip("numpy", reason="NumPy is not installed")


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture
def torch() -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    return torch


@pytest.fixture
def peek(driver: Driver, context: Context, stream: Stream, wait: Wait) -> Iterator[Any]:
    """The bytes of any memory, through a pinned buffer of our own."""
    seen = driver.allocate_host(context, SIZE)

    def read(memory: Memory) -> bytes:
        driver.copy(seen, memory, stream)
        wait()
        return bytes(driver.host_view(seen))

    yield read
    driver.free_host(context, seen)


def as_numpy(numpy: Any, buffer: Any, way: str) -> Any:
    if way == "frombuffer":
        return numpy.frombuffer(buffer.view(), dtype=numpy.uint8)
    return getattr(numpy, way)(buffer)


@numpy_ways
@pytest.mark.parametrize("kind", HOST_KINDS)
def test_numpy_works_on_host_memory(arena: Arena, numpy: Any, kind: HostKind, way: str) -> None:
    with HostBuffer(arena, SIZE, kind) as buffer:
        array = as_numpy(numpy, buffer, way)
        assert (array.nbytes, array.dtype, array.ctypes.data) == (SIZE, "u1", buffer.address)
        array[:] = 7
        assert bytes(buffer.view()) == b"\7" * SIZE
    array[:] = 9  # the memory is still there
    assert int(array[-1]) == 9


@numpy_ways
def test_numpy_works_on_mapped_memory(arena: Arena, numpy: Any, way: str, peek: Any) -> None:
    with MappedBuffer(arena, 0, SIZE) as buffer:
        as_numpy(numpy, buffer, way)[:] = 7
        assert peek(buffer.memory) == b"\7" * SIZE


@numpy_ways
def test_numpy_works_on_managed_memory(arena: Arena, numpy: Any, way: str, peek: Any) -> None:
    with ManagedBuffer(arena, 0, SIZE) as buffer:
        as_numpy(numpy, buffer, way)[:] = 7
        assert peek(buffer.memory) == b"\7" * SIZE


def of_gpu(arena: Arena, kind: str) -> AnyBuffer:
    if kind == "mapped":
        return MappedBuffer(arena, 0, SIZE)
    if kind == "managed":
        return ManagedBuffer(arena, 0, SIZE)
    return DeviceBuffer(arena, 0, SIZE, DeviceKind(kind))


all_of_gpu = pytest.mark.parametrize("kind", [*DeviceKind, "mapped", "managed"])


@all_of_gpu
def test_cupy_by_the_array_interface(arena: Arena, cupy: Any, kind: str, peek: Any) -> None:
    with of_gpu(arena, kind) as buffer:
        array = cupy.asarray(buffer)
        assert (array.nbytes, array.data.ptr) == (SIZE, buffer.address)
        array[:] = 7
        cupy.cuda.Device(0).synchronize()
        assert peek(buffer.memory) == b"\7" * SIZE
        assert int(array.sum(dtype="u8")) == 7 * SIZE


@pytest.mark.parametrize("kind", [*DeviceKind, "managed"])
def test_cupy_by_dlpack(arena: Arena, cupy: Any, kind: str, peek: Any) -> None:
    with of_gpu(arena, kind) as buffer:
        array = cupy.from_dlpack(buffer)
        assert (array.nbytes, array.data.ptr) == (SIZE, buffer.address)
        array[:] = 7
        cupy.cuda.Device(0).synchronize()
        assert peek(buffer.memory) == b"\7" * SIZE
    array[:] = 9  # the memory is still there
    assert int(array.sum(dtype="u8")) == 9 * SIZE


@all_of_gpu
def test_torch_by_the_array_interface(arena: Arena, torch: Any, kind: str, peek: Any) -> None:
    with of_gpu(arena, kind) as buffer:
        tensor = torch.as_tensor(buffer, device="cuda:0")
        assert (tensor.nbytes, tensor.data_ptr()) == (SIZE, buffer.address)
        tensor.fill_(7)
        torch.cuda.synchronize()
        assert peek(buffer.memory) == b"\7" * SIZE


@pytest.mark.parametrize("kind", DeviceKind)
def test_torch_by_dlpack(arena: Arena, torch: Any, kind: DeviceKind, peek: Any) -> None:
    with of_gpu(arena, kind) as buffer:
        tensor = torch.from_dlpack(buffer)
        assert (tensor.nbytes, tensor.data_ptr()) == (SIZE, buffer.address)
        assert (str(tensor.device), tensor.dtype) == ("cuda:0", torch.uint8)
        tensor.fill_(7)
        torch.cuda.synchronize()
        assert peek(buffer.memory) == b"\7" * SIZE
    tensor.fill_(9)  # the memory is still there
    assert int(tensor.sum()) == 9 * SIZE


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_torch_on_host_memory(arena: Arena, torch: Any, kind: HostKind) -> None:
    with HostBuffer(arena, SIZE, kind) as buffer:
        tensor = torch.from_dlpack(buffer)
        assert (str(tensor.device), tensor.data_ptr()) == ("cpu", buffer.address)
        tensor.fill_(7)
        assert bytes(buffer.view()) == b"\7" * SIZE
        assert tensor.is_pinned() == (kind is not HostKind.PAGEABLE)


def test_tensors_give_gpu_memory_back(
    driver: Driver, context: Context, arena: Arena, torch: Any
) -> None:
    torch.zeros(1, device="cuda:0")  # what PyTorch takes for itself is taken by now
    before = driver.free_memory_bytes(context)
    with DeviceBuffer(arena, 0, 2**30) as buffer:
        tensor = torch.from_dlpack(buffer)
    assert driver.free_memory_bytes(context) <= before - 2**30
    del tensor
    assert driver.free_memory_bytes(context) == before


def test_the_examples_of_the_page_are_true(
    driver: Driver, torch: Any, cupy: Any, numpy: Any, pytester: pytest.Pytester,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (example,) = (text for text in examples if "importorskip" in text)
    pytester.makepyfile(example)
    installed = request.config.pluginmanager.has_plugin("gpuxfer")
    result = pytester.runpytest_inprocess(*(() if installed else ("-p", "pytest_gpuxfer.plugin")))
    result.assert_outcomes(passed=2)
