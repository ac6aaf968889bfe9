from __future__ import annotations

import pytest

from tests.abi.conftest import Run
from tests.abi.test_cuda import FAILING, RETAIN

KINDS = RETAIN + "from pytest_gpuxfer.hardware.driver import DeviceKind, Feature, HostKind\n"
MIB2 = 2**21


def test_vmm_memory_is_rounded_up_and_taken_down_in_order(under_cuda: Run) -> None:
    script = KINDS + (
        "memory = driver.allocate_device(a, 3 * 2**20, DeviceKind.VMM)\n"
        "print('got', memory.size_bytes, memory.ordinal, flush=True)\n"
        "driver.grant_access(memory, b); driver.revoke_access(memory, b)\n"
        "driver.free_device(a, memory)\n"
    )
    lines = under_cuda(script, STUB_TELLS="1").splitlines()
    assert [line for line in lines if not line.startswith("blocks")] == [
        f"map {2 * MIB2}", f"got {3 * 2**20} 0",
        f"unmap {2 * MIB2}", f"address free {2 * MIB2}", "release 0",
    ]  # fmt: skip


def test_vmm_memory_that_cannot_be_mapped_is_given_back(under_cuda: Run) -> None:
    script = KINDS + FAILING.format(call="driver.allocate_device(a, 1, DeviceKind.VMM)")
    lines = under_cuda(script, cuMemMap="2", STUB_TELLS="1").splitlines()
    lines = [line for line in lines if not line.startswith("blocks")]
    assert lines[:3] == [f"map {MIB2}", f"address free {MIB2}", "release 0"]
    assert lines[3].startswith("cuMemMap|2|CUDA_ERROR_OUT_OF_MEMORY|")


@pytest.mark.parametrize(
    ("kind", "symbol"), [("POOL", "cuMemPoolCreate"), ("VMM", "cuMemAddressReserve")]
)
def test_a_driver_without_a_kind_of_memory_says_what_it_lacks(
    under_cuda: Run, kind: str, symbol: str
) -> None:
    script = KINDS + FAILING.format(call=f"driver.allocate_device(a, 4096, DeviceKind.{kind})")
    output = under_cuda(script, STUB_LACKS=symbol)
    assert output.splitlines()[-1].startswith(f"{symbol}|500|CUDA_ERROR_NOT_FOUND|")


@pytest.mark.parametrize(("target", "place"), [("b", "type 1 id 1"), ("None", "type 2 id 0")])
def test_a_prefetch_names_its_target_as_a_location(
    under_cuda: Run, target: str, place: str
) -> None:
    script = KINDS + (
        "from pytest_gpuxfer.hardware.driver import Memory\n"
        f"driver.prefetch(Memory(4096, 8192, None), {target}, driver.create_stream(a))\n"
    )
    assert under_cuda(script) == f"prefetch 8192 {place}"


@pytest.mark.parametrize("kind", ["REGISTERED", "SHARED"])
def test_registered_memory_that_devices_see_elsewhere_is_refused(
    under_cuda: Run, kind: str
) -> None:
    call = f"print(driver.host_view(driver.allocate_host(a, 4096, HostKind.{kind})).nbytes)"
    script = KINDS + FAILING.format(call=call)
    assert under_cuda(script) == "4096"
    assert under_cuda(script, STUB_SHIFT="4096").startswith(
        "cuMemHostGetDevicePointer|801|CUDA_ERROR_NOT_SUPPORTED|"
    )


def test_what_a_device_has_and_what_a_link_carries(under_cuda: Run) -> None:
    script = KINDS + (
        "print(driver.supports(0, Feature.MEMORY_POOLS),"
        " driver.native_atomics(0, 1), driver.native_atomics(1, 0))"
    )
    assert under_cuda(script) == "True True False"


@pytest.mark.parametrize(
    ("mib", "sharers", "blocks"), [(1, 1, 10), (64, 1, 512), (64, 2, 20), (64, 7, 5), (64, 99, 1)]
)
def test_kernel_copies_that_run_at_once_share_the_multiprocessors(
    under_cuda: Run, mib: int, sharers: int, blocks: int
) -> None:
    """There are ten, with room for four blocks each; alone, a copy need not fit in."""
    script = KINDS + (
        "from pytest_gpuxfer.hardware.driver import KernelCopy, Memory\n"
        f"memory = Memory(4096, {mib} * 2**20, 0)\n"
        f"driver.launch(KernelCopy(memory, memory, {sharers}), driver.create_stream(a))\n"
    )
    assert under_cuda(script, STUB_TELLS="1").splitlines()[-1] == f"blocks {blocks}"
