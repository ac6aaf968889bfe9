from __future__ import annotations

import pytest

from pytest_gpuxfer.hardware.driver import (
    Comparison,
    Context,
    DeviceKind,
    Driver,
    Feature,
    Fill,
    HostKind,
    KernelCopy,
    Stream,
)
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, Pattern
from tests.gpu.conftest import Wait

SIZE_BYTES = 5 * PERIOD_WORDS * 8 // 16 * 16 + 4096
PATTERN = Pattern(99)
NEEDS = {DeviceKind.POOL: Feature.MEMORY_POOLS, DeviceKind.VMM: Feature.VIRTUAL_MEMORY}


def _need(driver: Driver, feature: Feature | None) -> None:
    if feature is not None and not driver.supports(0, feature):
        pytest.skip(f"device 0 has no {feature}")


@pytest.mark.parametrize("kind", DeviceKind)
def test_device_memory_of_each_kind_is_used_and_given_back(
    driver: Driver, context: Context, stream: Stream, wait: Wait, kind: DeviceKind
) -> None:
    _need(driver, NEEDS.get(kind))
    before = driver.free_memory_bytes(context)
    memory = driver.allocate_device(context, 2**30, kind)
    assert (memory.size_bytes, memory.ordinal) == (2**30, 0)
    assert driver.free_memory_bytes(context) < before - 2**29
    driver.launch(Fill(memory, PATTERN), stream)
    wait()
    assert driver.compare(memory, PATTERN) == Comparison(0)
    driver.free_device(context, memory)
    assert driver.free_memory_bytes(context) > before - 2**29


@pytest.mark.parametrize("kind", HostKind)
def test_host_memory_of_each_kind_is_copied_both_ways(
    driver: Driver, context: Context, stream: Stream, wait: Wait, kind: HostKind
) -> None:
    device = driver.allocate_device(context, SIZE_BYTES)
    host = driver.allocate_host(context, SIZE_BYTES, kind)
    driver.fill_host(host, PATTERN)
    driver.copy(device, host, stream)
    wait()
    assert driver.compare(device, PATTERN) == Comparison(0)
    driver.launch(Fill(device, Pattern(7)), stream)
    driver.copy(host, device, stream)
    wait()
    assert driver.compare(host, Pattern(7)) == Comparison(0)
    assert driver.host_view(host).nbytes == SIZE_BYTES
    assert driver.read_words(host, 1) == (Pattern(7).word(0),)
    driver.free_host(context, host)
    driver.free_device(context, device)


def test_managed_memory_goes_to_the_device_and_back(
    driver: Driver, context: Context, stream: Stream, wait: Wait
) -> None:
    _need(driver, Feature.CONCURRENT_MANAGED_ACCESS)
    managed = driver.allocate_managed(context, 2**24)
    driver.fill_host(managed, PATTERN)
    driver.prefetch(managed, context, stream)
    wait()
    assert driver.compare(managed.used_by(0), PATTERN) == Comparison(0)
    driver.launch(Fill(managed.used_by(0), Pattern(8)), stream)
    driver.prefetch(managed, None, stream)
    wait()
    assert driver.compare(managed, Pattern(8)) == Comparison(0)
    assert driver.read_words(managed.used_by(0), 1) == (Pattern(8).word(0),)
    driver.free_managed(context, managed)


def test_managed_memory_faults_in_by_demand(
    driver: Driver, context: Context, stream: Stream, wait: Wait
) -> None:
    _need(driver, Feature.CONCURRENT_MANAGED_ACCESS)
    managed = driver.allocate_managed(context, 2**24)
    device = driver.allocate_device(context, 2**24)
    driver.fill_host(managed, PATTERN)
    driver.launch(KernelCopy(device, managed), stream)
    wait()
    assert driver.compare(device, PATTERN) == Comparison(0)
    driver.free_device(context, device)
    driver.free_managed(context, managed)


def test_malloc_memory_has_no_access_of_its_own(driver: Driver, context: Context) -> None:
    memory = driver.allocate_device(context, 4096)
    with pytest.raises(ValueError, match="no pool or vmm memory"):
        driver.grant_access(memory, context)
    driver.free_device(context, memory)
