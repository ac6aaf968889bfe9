"""The simulated HGX H200 against what was measured on two H200 of one host, within 5%.

512 MiB unless said otherwise; driver 580.159.04, CUDA 13.0. The A100 against published figures.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from pytest_gpuxfer.hardware.driver import (
    ChaseChain,
    Fill,
    HostKind,
    KernelCopy,
    Memory,
    Stream,
    WriteChain,
)
from pytest_gpuxfer.hardware.telemetry import NvlinkBytes, PcieBytes
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


@pytest.mark.parametrize(("access", "elapsed_us"), [(True, 2.25), (False, 14.5)])
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


def kernel_rate(rig: Rig, destination: Memory, source: Memory, issuer: int) -> float:
    stream, kernel = rig.stream(issuer), KernelCopy(destination, source)

    def work() -> None:
        for _ in range(8):
            rig.driver.launch(kernel, stream)

    return 8 * source.size_bytes / rig.elapsed_ns(stream, work)


@pytest.mark.parametrize(("issuer", "rate"), [(0, 369.8), (1, 376.1), (1, 374.0)])
def test_kernels_that_copy_to_or_from_a_peer(issuer: int, rate: float) -> None:
    rig = Rig()
    rig.enable(issuer, 1 - issuer)
    assert kernel_rate(rig, rig.device(1, LARGE), rig.device(0, LARGE), issuer) == near(rate)


@pytest.mark.parametrize("kind", [HostKind.PINNED, HostKind.REGISTERED, HostKind.SHARED])
def test_kernels_that_read_and_write_host_memory(kind: HostKind) -> None:
    rig = Rig()
    host, memory = rig.host(LARGE, kind), rig.device(0, LARGE)
    assert kernel_rate(rig, memory, host, 0) == near(51.4)
    assert kernel_rate(rig, host, memory, 0) == near(52.6)


def test_kernels_that_copy_inside_a_gpu_or_fill_a_peer() -> None:
    rig = Rig()
    assert kernel_rate(rig, rig.device(0, LARGE), rig.device(0, LARGE), 0) == near(1934)
    rig.enable(0, 1)
    kernel, stream = Fill(rig.device(1, LARGE), 0), rig.stream(0)
    elapsed_ns = rig.elapsed_ns(stream, lambda: rig.driver.launch(kernel, stream))
    assert LARGE / elapsed_ns == near(369.5)


@pytest.mark.parametrize(("owner", "nanoseconds"), [(0, 142), (1, 855), (1, 830), (None, 1185)])
def test_dependent_loads(owner: int | None, nanoseconds: float) -> None:
    rig = Rig()
    rig.enable(0, 1)
    memory = rig.host(2 * MIB) if owner is None else rig.device(owner, 2 * MIB)
    stream, arrived = rig.stream(0), rig.device(0, 8)
    rig.driver.launch(WriteChain(memory), stream)
    chase = ChaseChain(memory, 16384, arrived)
    elapsed_ns = rig.elapsed_ns(stream, lambda: rig.driver.launch(chase, stream))
    assert elapsed_ns / 16384 == near(nanoseconds)


def together(rig: Rig, jobs: list[tuple[Memory, Memory, int]], *, kernels: bool) -> list[float]:
    """The rate of each copy (destination, source, issuer) while all others run, too."""
    streams = [rig.driver.create_stream(rig.context(issuer)) for *_, issuer in jobs]
    issuers = [issuer for *_, issuer in jobs]
    marks = []

    def mark(stream: Stream) -> None:
        marks.append(rig.driver.create_event(stream.context))
        rig.driver.record_event(marks[-1], stream)

    for (destination, source, issuer), stream in zip(jobs, streams, strict=True):
        mark(stream)
        for _ in range(8):
            if kernels:
                kernel = KernelCopy(destination, source, issuers.count(issuer))
                rig.driver.launch(kernel, stream)
            else:
                rig.driver.copy(destination, source, stream)
        mark(stream)
    rig.wait(*streams)
    took = [rig.driver.elapsed_ns(*marks[at : at + 2]) for at in range(0, len(marks), 2)]
    return [8 * job[1].size_bytes / ns for job, ns in zip(jobs, took, strict=True)]


@pytest.mark.parametrize(
    ("writes", "kernels", "rate"),
    [(True, False, 391.86), (False, False, 389.43), (True, True, 365.7), (False, True, 338.6)],
)
def test_both_ways_between_two_gpus_at_once(writes: bool, kernels: bool, rate: float) -> None:
    rig = Rig()
    rig.enable(0, 1)
    rig.enable(1, 0)
    jobs = [
        (rig.device(1, LARGE), rig.device(0, LARGE), 0 if writes else 1),
        (rig.device(0, LARGE), rig.device(1, LARGE), 1 if writes else 0),
    ]
    assert together(rig, jobs, kernels=kernels) == [near(rate), near(rate)]


@pytest.mark.parametrize(
    ("kernels", "to_device", "from_device"), [(False, 52.03, 50.71), (True, 39.6, 39.6)]
)
def test_both_ways_between_a_gpu_and_the_host_at_once(
    kernels: bool, to_device: float, from_device: float
) -> None:
    rig = Rig()
    jobs = [
        (rig.device(0, LARGE), rig.host(LARGE), 0),
        (rig.host(LARGE), rig.device(0, LARGE), 0),
    ]
    assert together(rig, jobs, kernels=kernels) == [near(to_device), near(from_device)]


@pytest.mark.parametrize(
    ("kernels", "to_all", "from_all"), [(False, 55.35, 55.28), (True, 50.85, 51.84)]
)
def test_the_host_and_all_gpus_at_once(kernels: bool, to_all: float, from_all: float) -> None:
    rig = Rig()
    inward = [(rig.device(gpu, LARGE), rig.host(LARGE), gpu) for gpu in (0, 1)]
    outward = [(host, memory, gpu) for memory, host, gpu in inward]
    assert together(rig, inward, kernels=kernels) == [near(to_all)] * 2
    assert together(rig, outward, kernels=kernels) == [near(from_all)] * 2


@pytest.mark.parametrize(("kernels", "rate"), [(False, 52.17), (True, 33.0)])
def test_to_the_host_while_all_gpus_copy_both_ways(kernels: bool, rate: float) -> None:
    rig = Rig()
    outward = [(rig.host(LARGE), rig.device(gpu, LARGE), gpu) for gpu in (0, 1)]
    inward = [(rig.device(gpu, LARGE), rig.host(LARGE), gpu) for gpu in (0, 1)]
    assert together(rig, outward + inward, kernels=kernels)[:2] == [near(rate)] * 2


@pytest.mark.parametrize(("to_device", "rate"), [(True, 6.7), (False, 14.6)])
def test_pageable_memory_is_slow_and_holds_the_caller(to_device: bool, rate: float) -> None:
    rig = Rig()
    ends = (rig.device(0, LARGE), rig.host(LARGE, HostKind.PAGEABLE))
    stream, before = rig.stream(0), rig.clock.now_ns()
    rig.driver.copy(*(ends if to_device else ends[::-1]), stream)
    assert rig.driver.stream_idle(stream)
    assert LARGE / (rig.clock.now_ns() - before) == near(rate)


def test_registered_memory_is_as_fast_as_pinned() -> None:
    rig = Rig()
    host = rig.host(LARGE, HostKind.REGISTERED)
    assert rig.rate(rig.device(0, LARGE), host, 0) == near(55.53)


def test_managed_memory_migrates_by_prefetch_and_by_faults() -> None:
    rig = Rig()
    size, stream = 128 * MIB, rig.stream(0)
    memory = rig.driver.allocate_managed(rig.context(0), size)
    destination = rig.device(0, size)

    def rate(target: int | None) -> float:
        context = None if target is None else rig.context(target)
        return size / rig.elapsed_ns(stream, lambda: rig.driver.prefetch(memory, context, stream))

    rig.driver.fill_host(memory, 1)
    assert rate(0) == near(46.5)
    assert rate(None) == near(12)
    kernel = KernelCopy(destination, memory.used_by(0))
    faulting = rig.elapsed_ns(stream, lambda: rig.driver.launch(kernel, stream))
    assert size / faulting == near(13)
    assert size / rig.elapsed_ns(stream, lambda: rig.driver.launch(kernel, stream)) > 1000


def test_staged_copies_hold_the_caller_at_the_pace_of_the_copy() -> None:
    rig = Rig()
    memories = rig.device(1, LARGE), rig.device(0, LARGE)
    rig.driver.copy(*memories, rig.stream(0))
    before = rig.clock.now_ns()
    for _ in range(8):
        rig.driver.copy(*memories, rig.stream(0))
    assert (rig.clock.now_ns() - before) / 8e6 == near(13.56)


def test_pcie_counters_count_packets_and_requests() -> None:
    rig = Rig()

    def rise(destination: Memory, source: Memory) -> tuple[float, float]:
        """GB sent and received for 3.22 GB."""
        readings: list[PcieBytes] = []
        for _ in range(7):  # each less than a turn of the counter
            found = rig.hardware.telemetry.pcie_bytes(rig.uuid(0))
            assert isinstance(found, PcieBytes)
            readings.append(found)
            if len(readings) < 7:
                rig.rate(destination, source, 0, count=1)
        steps = list(pairwise(readings))
        sent = sum((after.sent_bytes - before.sent_bytes) % 2**32 for before, after in steps)
        received = sum(
            (after.received_bytes - before.received_bytes) % 2**32 for before, after in steps
        )
        return sent / 6 / LARGE, received / 6 / LARGE

    memory, host = rig.device(0, LARGE), rig.host(LARGE)
    assert rise(memory, host) == (near(2.014 / 21.475), near(23.153 / 21.475))
    sent, received = rise(host, memory)
    assert sent == near(23.489 / 21.475)
    assert received < 0.001
    assert max(rise(memory, rig.device(0, LARGE))) < 0.001


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
