"""What two real GPUs do where the field is misled; the figures are printed at the run's end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_gpuxfer.audit import path_audit
from pytest_gpuxfer.hardware import Hardware, open_hardware
from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.hardware.driver import Context, Driver, DriverError, KernelCopy, Memory, Stream
from pytest_gpuxfer.hardware.nvml import Field
from pytest_gpuxfer.model.cell import parse_cell
from pytest_gpuxfer.model.measurement import Access
from pytest_gpuxfer.model.units import KIB, MIB
from pytest_gpuxfer.transfer.bench import Bench
from tests.gpu.conftest import Note, Wait

SIZE_BYTES = 256 * MIB
COUNT = 16
MOVED_BYTES = SIZE_BYTES * COUNT
PEER_ACCESS_NOT_ENABLED = 705
NVLINK, STAGED = 200.0, 80.0  # GB/s: no way through the host is as fast, no NVLink as slow
Pair = tuple[Context, Context]
Buffers = tuple[Memory, Memory]
Streams = tuple[Stream, Stream]
Timed = Callable[..., float]
both_ways = pytest.mark.parametrize("source", [0, 1])


@pytest.fixture
def buffers(driver: Driver, pair: Pair) -> Iterator[Buffers]:
    """Memory of gpu0 and of gpu1."""
    ends = tuple(driver.allocate_device(context, SIZE_BYTES) for context in pair)
    yield ends[0], ends[1]
    for context, memory in zip(pair, ends, strict=True):
        driver.free_device(context, memory)


@pytest.fixture
def streams(driver: Driver, pair: Pair) -> Iterator[Streams]:
    """A stream of gpu0 and one of gpu1."""
    made = driver.create_stream(pair[0]), driver.create_stream(pair[1])
    yield made
    for stream in made:
        driver.destroy_stream(stream)


@contextmanager
def access(driver: Driver, mapper: Context, owner: Context) -> Iterator[None]:
    """`mapper` may use the memory of `owner`, that way alone."""
    assert driver.enable_peer_access(mapper, owner) is Access.ENABLED
    try:
        yield
    finally:
        driver.disable_peer_access(mapper, owner)


class LinkCounters:
    """The data that each NVLink of both GPUs sent and received since this was made, in bytes."""

    def __init__(self, driver: Driver) -> None:
        self._nvml = pytest.importorskip("pynvml")
        self._nvml.nvmlInit()
        uuids = [device.uuid for device in driver.devices()[:2]]
        self._handles = [self._nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        (links,) = self._fields(0, Field.NVLINK_LINK_COUNT, [0])
        if not links:
            pytest.skip("no NVLink between them")
        self._links = range(links)
        self._before = self._read()

    def moved(self) -> dict[str, list[int]]:
        """By "gpu0 sent", "gpu0 received", ...: a figure a link."""
        after = self._read()
        return {
            name: [new - old for new, old in zip(after[name], self._before[name], strict=True)]
            for name in after
        }

    def _read(self) -> dict[str, list[int]]:
        ways = (
            ("sent", Field.NVLINK_THROUGHPUT_DATA_TX),
            ("received", Field.NVLINK_THROUGHPUT_DATA_RX),
        )
        return {
            f"gpu{gpu} {way}": [kib * KIB for kib in self._fields(gpu, field, self._links)]
            for gpu in (0, 1)
            for way, field in ways
        }

    def _fields(self, gpu: int, field: Field, links: Any) -> list[int]:
        wanted = [(int(field), link) for link in links]
        found = self._nvml.nvmlDeviceGetFieldValues(self._handles[gpu], wanted)
        return [value.value.ullVal if value.nvmlReturn == 0 else 0 for value in found]


@pytest.fixture
def timed(driver: Driver, wait: Wait) -> Timed:
    """The rate of COUNT copies of SIZE_BYTES, in GB/s, after one that warms up."""

    def rate(stream: Stream, enqueue: Callable[[], None]) -> float:
        start, end = (driver.create_event(stream.context) for _ in range(2))
        enqueue()
        driver.record_event(start, stream)
        for _ in range(COUNT):
            enqueue()
        driver.record_event(end, stream)
        wait(stream)
        elapsed_ns = driver.elapsed_ns(start, end)
        for event in (start, end):
            driver.destroy_event(event)
        return MOVED_BYTES / elapsed_ns

    return rate


@pytest.mark.parametrize("issuer", [0, 1])
@both_ways
def test_copies_with_access_off_are_staged(
    driver: Driver, buffers: Buffers, streams: Streams, timed: Timed, note: Note,
    source: int, issuer: int,
) -> None:  # fmt: skip
    counters = LinkCounters(driver)
    target, origin, stream = buffers[1 - source], buffers[source], streams[issuer]
    rate = timed(stream, lambda: driver.copy_peer(target, origin, stream))
    crossed = sum(map(sum, counters.moved().values()))
    way = f"gpu{source} to gpu{1 - source}, copied by gpu{issuer}"
    note(f"access off, {way}: {rate:.1f} GB/s, {crossed} bytes over NVLink")
    assert rate < STAGED
    assert crossed < 0.001 * MOVED_BYTES


@pytest.mark.parametrize("mapper", [0, 1])
@pytest.mark.parametrize("issuer", [0, 1])
@both_ways
def test_access_one_way_hides_from_copy_engines(
    driver: Driver, pair: Pair, buffers: Buffers, streams: Streams, timed: Timed, note: Note,
    source: int, issuer: int, mapper: int,
) -> None:  # fmt: skip
    """They copy both ways at full rate over NVLink, whoever asks them to."""
    target, origin, stream = buffers[1 - source], buffers[source], streams[issuer]
    with access(driver, pair[mapper], pair[1 - mapper]):
        counters = LinkCounters(driver)
        rate = timed(stream, lambda: driver.copy_peer(target, origin, stream))
        sent = sum(counters.moved()[f"gpu{source} sent"])
    way = f"gpu{source} to gpu{1 - source}, copied by gpu{issuer}"
    note(f"access of gpu{mapper} alone, {way}: {rate:.1f} GB/s, {sent} bytes over NVLink")
    assert rate > NVLINK
    assert sent == pytest.approx((COUNT + 1) * SIZE_BYTES, rel=1e-3)


@pytest.mark.parametrize("mapper", [0, 1])
@both_ways
def test_access_one_way_serves_kernels_of_that_side(
    driver: Driver, pair: Pair, buffers: Buffers, streams: Streams, timed: Timed, note: Note,
    source: int, mapper: int,
) -> None:  # fmt: skip
    """A kernel of the other side would end its context, so none is launched there."""
    stream, kernel = streams[mapper], KernelCopy(buffers[1 - source], buffers[source])
    with access(driver, pair[mapper], pair[1 - mapper]):
        rate = timed(stream, lambda: driver.launch(kernel, stream))
    way = f"gpu{source} to gpu{1 - source}, by a kernel of gpu{mapper}"
    note(f"access of gpu{mapper} alone, {way}: {rate:.1f} GB/s")
    assert rate > NVLINK


class OneWay:
    """The real driver, but that it offers device 1 no access to device 0."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def can_access_peer(self, ordinal: int, peer: int) -> bool:
        return (ordinal, peer) != (1, 0) and self._driver.can_access_peer(ordinal, peer)


@pytest.mark.parametrize(
    "check", ["peer_copy.write", "kernel_copy.sm.write", "kernel_copy.sm.read"]
)
@pytest.mark.usefixtures("pair")
def test_nothing_is_measured_with_access_one_way(driver: Driver, note: Note, check: str) -> None:
    """Such a pair is told as it is, before a kernel touches what it may not."""
    hardware: Hardware = dataclasses.replace(open_hardware(), driver=OneWay(driver))
    bench = Bench(hardware, discover(hardware))
    measured = bench.measure(parse_cell(f"{check}/gpu1-gpu0/64MiB"))
    bench.close()
    answers = {(side.mapper, side.owner): side.answer for side in measured.access}
    note(f"gpu1 is offered no access to gpu0: {check} has no figure, access is {answers[1, 0]}")
    assert answers[1, 0] is Access.REFUSED
    assert not measured.samples
    assert measured.failure is None


@pytest.mark.parametrize("by", ["copy engine", "kernel"])
@pytest.mark.parametrize("initiator", ["write", "read"])
@both_ways
def test_counters_tell_the_direction_on_every_link(
    driver: Driver, pair: Pair, buffers: Buffers, streams: Streams,
    wait: Wait, note: Note, source: int, initiator: str, by: str,
) -> None:  # fmt: skip
    """All goes one way, and each link carries its share of it."""
    issuer = source if initiator == "write" else 1 - source
    target, origin, stream = buffers[1 - source], buffers[source], streams[issuer]
    with access(driver, pair[0], pair[1]), access(driver, pair[1], pair[0]):
        counters = LinkCounters(driver)
        for _ in range(COUNT):
            if by == "kernel":
                driver.launch(KernelCopy(target, origin), stream)
            else:
                driver.copy_peer(target, origin, stream)
        wait(stream)
        moved = counters.moved()
    sender, receiver = f"gpu{source}", f"gpu{1 - source}"
    back = sum(moved[f"{receiver} sent"]) + sum(moved[f"{sender} received"])
    for counter in f"{sender} sent", f"{receiver} received":
        links = moved[counter]
        share = f"{min(links) / MOVED_BYTES:.5f} to {max(links) / MOVED_BYTES:.5f}"
        note(
            f"{by} {initiator} {sender} to {receiver}: {counter} {sum(links) / MOVED_BYTES:.6f} of"
            f" what was copied, a link of {len(links)} {share}; the other way {back} bytes"
        )
        assert sum(links) == pytest.approx(MOVED_BYTES, rel=1e-3)
        assert min(links) > 0.9 * MOVED_BYTES / len(links)
    assert back < 0.1 * MOVED_BYTES


def synchronize(torch: Any) -> None:
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)


def switch_off(driver: Driver, mapper: Context, owner: Context) -> bool:
    """Whether it was on."""
    try:
        driver.disable_peer_access(mapper, owner)
    except DriverError as error:
        if error.code != PEER_ACCESS_NOT_ENABLED:
            raise
        return False
    return True


@pytest.mark.parametrize("mapped", [True, False], ids=["access", "no access"])
def test_an_audit_of_a_pytorch_copy(driver: Driver, pair: Pair, note: Note, mapped: bool) -> None:
    """`.to()` succeeds either way; the audit tells which road it took, to the byte or so."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    near = torch.arange(2 * 10**9 // 8, device="cuda:0")
    near[:8].to("cuda:1")  # PyTorch enables access here, and never again
    synchronize(torch)
    was_on = [] if mapped else [ends for ends in (pair, pair[::-1]) if switch_off(driver, *ends)]
    uuids = [device.uuid for device in driver.devices()]
    with path_audit(uuids=uuids) as traffic:
        far = near.to("cuda:1")
        synchronize(torch)
    for mapper, owner in was_on:
        driver.enable_peer_access(mapper, owner)
    assert bool((far.cpu() == near.cpu()).all())
    size_bytes = near.numel() * near.element_size()
    over_nvlink = traffic.between(0, 1).nvlink_bytes
    sender, receiver = traffic.gpu(0), traffic.gpu(1)
    note(
        f".to() of {size_bytes} bytes with access {'on' if mapped else 'off'}: {over_nvlink} over"
        f" NVLink, {sender.pcie_sent_bytes} sent over PCIe by gpu0,"
        f" {receiver.pcie_received_bytes} received by gpu1"
    )
    if mapped:
        assert over_nvlink == pytest.approx(size_bytes, rel=1e-3)
        assert sender.pcie_sent_bytes < 0.1 * size_bytes
    else:
        assert over_nvlink < 0.001 * size_bytes
        assert sender.pcie_sent_bytes > size_bytes
        assert receiver.pcie_received_bytes > size_bytes
