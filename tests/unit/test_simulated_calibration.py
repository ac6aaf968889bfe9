"""The simulated HGX H200 against what was measured on two H200 of one host, within 5%.

512 MiB unless said otherwise; driver 580.159.04, CUDA 13.0. The A100 against published figures.
"""

from __future__ import annotations

import pytest

from pytest_gpuxfer.hardware.driver import Fill
from pytest_gpuxfer.hardware.telemetry import NvlinkBytes
from tests.unit.simulated_rig import MIB, Rig

TOLERANCE = 0.05
LARGE = 512 * MIB

# GPU that issues, size, GB/s
NVLINK = [
    (0, LARGE, 396.4), (1, LARGE, 394.2), (0, 2**10, 0.45), (0, 2**14, 6.51), (0, 2**18, 86.99),
    (0, 4 * MIB, 324.79), (0, 16 * MIB, 365.1), (0, 64 * MIB, 389.52), (0, 256 * MIB, 395.36),
]  # fmt: skip
# to the GPU, size, GB/s
HOST = [
    (True, LARGE, 55.52), (False, LARGE, 55.32), (True, 4 * MIB, 52.68), (True, 16 * MIB, 54.81),
    (True, 64 * MIB, 55.35),
]  # fmt: skip


def near(value: float) -> object:
    return pytest.approx(value, rel=TOLERANCE)


@pytest.mark.parametrize(("issuer", "size", "rate"), NVLINK)
def test_copies_over_nvlink(issuer: int, size: int, rate: float) -> None:
    rig = Rig()
    rig.enable(0, 1)
    rig.enable(1, 0)
    assert rig.rate(rig.device(1, size), rig.device(0, size), issuer) == near(rate)


@pytest.mark.parametrize("rate", [38.8, 37.8])
def test_copies_without_peer_access(rate: float) -> None:
    rig = Rig()
    assert rig.rate(rig.device(1, LARGE), rig.device(0, LARGE), 0, gated=False) == near(rate)


@pytest.mark.parametrize(("to_device", "size", "rate"), HOST)
def test_copies_between_host_and_gpu(to_device: bool, size: int, rate: float) -> None:
    rig = Rig()
    ends = (rig.device(0, size), rig.host(size))
    destination, source = ends if to_device else ends[::-1]
    assert rig.rate(destination, source, 0) == near(rate)


def test_copies_inside_a_gpu() -> None:
    rig = Rig()
    assert rig.rate(rig.device(0, LARGE), rig.device(0, LARGE), 0) == near(2096)


@pytest.mark.parametrize(("access", "elapsed_us"), [(True, 2.22), (False, 15.32)])
def test_small_copies(access: bool, elapsed_us: float) -> None:
    rig = Rig()
    if access:
        rig.enable(0, 1)
    source, destination = rig.device(0, 8), rig.device(1, 8)
    stream = rig.stream(0)

    def work() -> None:
        for _ in range(100):
            rig.driver.copy_peer(destination, source, stream)

    assert rig.elapsed_ns(stream, work) / 100 / 1000 == near(elapsed_us)


def test_kernels_that_write_to_a_peer() -> None:
    rig = Rig()
    rig.enable(0, 1)
    kernel = Fill(rig.device(1, LARGE), 0)
    stream = rig.stream(0)
    elapsed_ns = rig.elapsed_ns(stream, lambda: rig.driver.launch(kernel, stream))
    assert LARGE / elapsed_ns == near(369.5)


def test_a_relay_through_pinned_memory() -> None:
    rig = Rig()
    size = 128 * MIB
    source, destination, host = rig.device(0, size), rig.device(1, size), rig.host(size)
    driver, out, back = rig.driver, rig.stream(0), rig.stream(1)
    arrived = driver.create_event(rig.context(0))
    taken, end = driver.create_event(rig.context(1)), driver.create_event(rig.context(1))
    start = driver.create_event(rig.context(0))
    driver.record_event(start, out)
    for _ in range(10):
        driver.wait_event(taken, out)
        driver.copy(host, source, out)
        driver.record_event(arrived, out)
        driver.wait_event(arrived, back)
        driver.copy(destination, host, back)
        driver.record_event(taken, back)
    driver.record_event(end, back)
    rig.wait(out, back)
    assert 10 * size / driver.elapsed_ns(start, end) == near(27.6)


def test_counters_rise_by_what_was_copied_at_sender_and_receiver() -> None:
    rig = Rig()
    rig.enable(0, 1)
    uuids = [rig.uuid(ordinal) for ordinal in (0, 1)]

    def read() -> list[NvlinkBytes]:
        found = [rig.hardware.telemetry.nvlink_bytes(uuid) for uuid in uuids]
        return [item for item in found if isinstance(item, NvlinkBytes)]

    before = read()
    rig.rate(rig.device(1, LARGE), rig.device(0, LARGE), 0, count=90)
    after = read()
    kib = 47_185_914
    assert (after[0].sent_bytes - before[0].sent_bytes) / 1024 == pytest.approx(kib, rel=1e-5)
    rise = after[1].received_bytes - before[1].received_bytes
    assert rise / 1024 == pytest.approx(kib, rel=1e-5)
    assert after[0].received_bytes == before[0].received_bytes
    assert after[1].sent_bytes == before[1].sent_bytes
    assert all(item.sent_bytes % 1024 == 0 for item in (*before, *after))


@pytest.mark.parametrize(("issuer", "rate"), [(0, 275), (1, 274)])
def test_a100_over_nvlink(issuer: int, rate: float) -> None:
    rig = Rig("dgx-a100")
    rig.enable(0, 1)
    assert rig.rate(rig.device(1, LARGE), rig.device(0, LARGE), issuer) == near(rate)


@pytest.mark.parametrize(("to_device", "rate"), [(True, 25.9), (False, 26.0)])
def test_a100_from_and_to_host(to_device: bool, rate: float) -> None:
    rig = Rig("dgx-a100")
    ends = (rig.device(0, LARGE), rig.host(LARGE))
    destination, source = ends if to_device else ends[::-1]
    assert rig.rate(destination, source, 0) == near(rate)
