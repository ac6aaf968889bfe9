"""The audit of known copies on real GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuxfer.audit import GpuTraffic, UncertainBytes, path_audit
from pytest_gpuxfer.hardware.driver import Context, Driver, Memory, Stream
from pytest_gpuxfer.model.measurement import Access
from tests.gpu.conftest import Wait

SIZE_BYTES = 256 * 2**20
COUNT = 16
MOVED_BYTES = SIZE_BYTES * COUNT  # as much as a PCIe counter holds, so packets make it wrap


def audit(driver: Driver, ordinals: list[int], work: Callable[[], None]) -> list[GpuTraffic]:
    """What the devices moved, in the order given."""
    uuids = [driver.devices()[ordinal].uuid for ordinal in ordinals]
    with path_audit(uuids=uuids) as traffic:
        work()
    return [traffic.gpu(index) for index in range(len(ordinals))]


def certain(amount: Any) -> int:
    if isinstance(amount, UncertainBytes):
        pytest.skip(str(amount))
    assert isinstance(amount, int)
    return amount


@pytest.mark.parametrize("to_device", [True, False], ids=["to device", "to host"])
def test_host_copies_cross_pcie(
    driver: Driver, context: Context, stream: Stream, wait: Wait, to_device: bool
) -> None:
    device = driver.allocate_device(context, SIZE_BYTES)
    host = driver.allocate_host(context, SIZE_BYTES)
    ends = (device, host) if to_device else (host, device)
    (gpu,) = audit(driver, [0], lambda: repeat(driver, *ends, stream, wait))
    driver.free_device(context, device)
    driver.free_host(context, host)
    moved = gpu.pcie_received_bytes if to_device else gpu.pcie_sent_bytes
    assert MOVED_BYTES <= certain(moved) < 1.2 * MOVED_BYTES
    assert gpu.nvlink_sent_bytes == gpu.nvlink_received_bytes == 0


def test_peer_copies_cross_nvlink(
    driver: Driver, pair: tuple[Context, Context], stream: Stream, wait: Wait
) -> None:
    here, there = pair
    assert driver.enable_peer_access(here, there) is Access.ENABLED
    assert driver.enable_peer_access(there, here) is Access.ENABLED
    source, target = (driver.allocate_device(end, SIZE_BYTES) for end in pair)
    sender, receiver = audit(driver, [0, 1], lambda: repeat(driver, target, source, stream, wait))
    driver.disable_peer_access(here, there)
    driver.disable_peer_access(there, here)
    driver.free_device(here, source)
    driver.free_device(there, target)
    if certain(sender.nvlink_sent_bytes) == 0:
        pytest.skip("no NVLink between them")
    assert sender.nvlink_sent_bytes == pytest.approx(MOVED_BYTES, rel=1e-3)
    assert receiver.nvlink_received_bytes == pytest.approx(MOVED_BYTES, rel=1e-3)
    assert certain(sender.pcie_sent_bytes) < 0.1 * MOVED_BYTES


def repeat(driver: Driver, target: Memory, source: Memory, stream: Stream, wait: Wait) -> None:
    for _ in range(COUNT):
        driver.copy(target, source, stream)
    wait()
