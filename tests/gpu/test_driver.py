from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator

import pytest

from pytest_gpuxfer.hardware.cuda import open_driver
from pytest_gpuxfer.hardware.driver import Comparison, Context, Driver, Fill, Memory, Stream
from pytest_gpuxfer.hardware.nvml import open_telemetry
from pytest_gpuxfer.hardware.telemetry import NvlinkBytes
from pytest_gpuxfer.model.measurement import Access
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, POISON_WORD, WORD_BYTES, Pattern
from pytest_gpuxfer.model.unknown import Unknown
from tests.gpu.conftest import Wait

SIZE_BYTES = 3 * PERIOD_WORDS * WORD_BYTES + 4096 + 8  # several periods, and no whole number
PATTERN = Pattern(77_777)


@pytest.fixture
def device(driver: Driver, context: Context) -> Iterator[Memory]:
    memory = driver.allocate_device(context, SIZE_BYTES)
    yield memory
    driver.free_device(context, memory)


@pytest.fixture
def host(driver: Driver, context: Context) -> Iterator[Memory]:
    memory = driver.allocate_host(context, SIZE_BYTES)
    yield memory
    driver.free_host(context, memory)


def test_devices_have_names_that_nvml_knows(driver: Driver) -> None:
    telemetry = open_telemetry()
    listed = telemetry.gpus()
    assert not isinstance(listed, Unknown), listed
    by_uuid = {gpu.uuid: gpu for gpu in listed}
    for device in driver.devices():
        gpu = by_uuid[device.uuid]
        assert (gpu.pci_address, gpu.name) == (device.pci_address, device.name)
        assert isinstance(telemetry.pcie_link(gpu.uuid).max_width, int)
        assert telemetry.common_ancestor(gpu.uuid, gpu.uuid) is not None
        assert not isinstance(telemetry.nvlinks(gpu.uuid), Unknown)


def test_filled_memory_compares_equal(
    driver: Driver, stream: Stream, device: Memory, wait: Wait
) -> None:
    driver.launch(Fill(device, PATTERN), stream)
    wait()
    assert driver.compare(device, PATTERN) == Comparison(0)


def test_poison_is_wrong_everywhere(
    driver: Driver, stream: Stream, device: Memory, wait: Wait
) -> None:
    driver.launch(Fill(device, POISON_WORD), stream)
    wait()
    found = driver.compare(device, PATTERN)
    assert found == Comparison(SIZE_BYTES // 8, 0, SIZE_BYTES - 8, PATTERN.word(0), POISON_WORD)


def test_wrong_words_are_found_where_they_are(
    driver: Driver, stream: Stream, device: Memory, wait: Wait
) -> None:
    first, last = 8 * (PERIOD_WORDS + 5), 8 * (2 * PERIOD_WORDS + 9)
    driver.launch(Fill(device, PATTERN), stream)
    for offset in (first, last):
        driver.launch(Fill(device.window(offset, 8), 42), stream)
    wait()
    assert driver.compare(device, PATTERN) == Comparison(
        2, first, last, PATTERN.word(PERIOD_WORDS + 5), 42
    )


def test_copies_carry_the_pattern_to_the_device_and_back(
    driver: Driver, stream: Stream, device: Memory, host: Memory, wait: Wait
) -> None:
    """The CPU and the GPU compute the same pattern: each checks what the other wrote."""
    driver.fill_host(host, PATTERN)
    driver.launch(Fill(device, POISON_WORD), stream)
    driver.copy(device, host, stream)
    wait()
    assert driver.compare(device, PATTERN) == Comparison(0)

    fresh = Pattern(PERIOD_WORDS - 1)
    driver.launch(Fill(device, fresh), stream)
    driver.copy(host, device, stream)
    wait()
    assert driver.compare(host, fresh) == Comparison(0)
    assert driver.compare(host, PATTERN).wrong_words == SIZE_BYTES // 8


def test_a_peer_copy_between_windows_of_one_device(
    driver: Driver, stream: Stream, device: Memory, wait: Wait
) -> None:
    half = SIZE_BYTES // 16 * 8
    source, destination = device.window(0, half), device.window(half, half)
    driver.launch(Fill(source, PATTERN), stream)
    driver.copy_peer(destination, source, stream)
    wait()
    assert driver.compare(destination, PATTERN) == Comparison(0)


def test_host_view_is_the_memory_itself(driver: Driver, host: Memory) -> None:
    view = driver.host_view(host)
    view[8:16] = (42).to_bytes(8, "little")
    assert ctypes.c_uint64.from_address(host.address + 8).value == 42
    assert (view.nbytes, view.format, view.readonly) == (SIZE_BYTES, "B", False)


def test_there_is_no_host_view_of_device_memory(driver: Driver, device: Memory) -> None:
    with pytest.raises(TypeError):
        driver.host_view(device)


def test_a_gate_holds_its_stream_until_it_is_opened(
    driver: Driver, context: Context, stream: Stream, device: Memory, wait: Wait
) -> None:
    gate = driver.create_gate(context)
    for _ in range(2):  # it can be closed again
        driver.close_gate(gate, stream, limit_ns=10_000_000_000)
        driver.launch(Fill(device, PATTERN), stream)
        time.sleep(0.02)
        assert not driver.stream_idle(stream)
        driver.open_gate(gate)
        wait()
        assert not driver.gate_expired(gate)
    driver.destroy_gate(gate)


def test_a_gate_that_nobody_opens_expires(
    driver: Driver, context: Context, stream: Stream, wait: Wait
) -> None:
    gate = driver.create_gate(context)
    driver.close_gate(gate, stream, limit_ns=1_000_000)
    wait()
    assert driver.gate_expired(gate)
    driver.destroy_gate(gate)


def test_events_time_what_is_between_them(
    driver: Driver, context: Context, stream: Stream, wait: Wait
) -> None:
    """A gate that expires after 20 ms lies between them: they tell no less."""
    gate = driver.create_gate(context)
    start, end = driver.create_event(context), driver.create_event(context)
    driver.record_event(start, stream)
    driver.close_gate(gate, stream, limit_ns=20_000_000)
    driver.record_event(end, stream)
    wait()
    assert 19e6 < driver.elapsed_ns(start, end) < 1e9
    for event in (start, end):
        driver.destroy_event(event)
    driver.destroy_gate(gate)


def test_a_stream_waits_for_another_ones_event(
    driver: Driver, context: Context, stream: Stream, wait: Wait
) -> None:
    gate, event = driver.create_gate(context), driver.create_event(context)
    first = driver.create_stream(context)
    driver.close_gate(gate, first, limit_ns=10_000_000_000)
    driver.record_event(event, first)
    driver.wait_event(event, stream)
    time.sleep(0.02)
    assert not driver.stream_idle(stream)
    driver.open_gate(gate)
    wait()
    driver.destroy_stream(first)
    driver.destroy_event(event)
    driver.destroy_gate(gate)


def test_what_is_freed_after_its_context_does_no_harm(context: Context) -> None:
    """Fixtures end in whatever order. `context` keeps the primary context alive meanwhile."""
    assert context.ordinal == 0
    driver = open_driver()
    mine = driver.retain_context(0)
    memory, stream = driver.allocate_device(mine, 2**30), driver.create_stream(mine)
    free_bytes = driver.free_memory_bytes(mine)
    driver.release_context(mine)
    driver.free_device(mine, memory)
    driver.destroy_stream(stream)
    again = driver.retain_context(0)
    assert driver.free_memory_bytes(again) >= free_bytes + 2**29, "the release did not free it"
    driver.release_context(again)


def test_a_call_leaves_the_current_context_alone(driver: Driver, context: Context) -> None:
    from cuda.bindings import driver as cuda  # type: ignore[import-untyped]

    before = int(cuda.cuCtxGetCurrent()[1])
    driver.free_memory_bytes(context)
    assert int(cuda.cuCtxGetCurrent()[1]) == before


def test_peer_access_carries_stores_and_copies(
    driver: Driver, pair: tuple[Context, Context], stream: Stream, device: Memory, wait: Wait
) -> None:
    """A kernel of GPU 0 stores into GPU 1, which holds what it got against the pattern."""
    here, there = pair
    assert driver.enable_peer_access(here, there) is Access.ENABLED
    assert driver.enable_peer_access(here, there) is Access.ALREADY_ENABLED
    remote = driver.allocate_device(there, SIZE_BYTES)
    driver.launch(Fill(remote, PATTERN), stream)
    wait()
    assert driver.compare(remote, PATTERN) == Comparison(0)

    driver.launch(Fill(device, Pattern(1)), stream)
    driver.copy_peer(remote, device, stream)
    wait()
    assert driver.compare(remote, Pattern(1)) == Comparison(0)
    driver.free_device(there, remote)
    driver.disable_peer_access(here, there)


def test_nvlink_counters_tell_what_a_peer_copy_moved(
    driver: Driver, pair: tuple[Context, Context], stream: Stream, device: Memory, wait: Wait
) -> None:
    telemetry, devices = open_telemetry(), driver.devices()
    if not telemetry.nvlinks(devices[0].uuid):
        pytest.skip("these GPUs have no NVLink")
    here, there = pair
    driver.enable_peer_access(here, there)
    remote = driver.allocate_device(there, SIZE_BYTES)
    before = [telemetry.nvlink_bytes(gpu.uuid) for gpu in devices[:2]]
    driver.copy_peer(remote, device, stream)
    wait()
    after = [telemetry.nvlink_bytes(gpu.uuid) for gpu in devices[:2]]
    readings = [reading for reading in (*before, *after) if isinstance(reading, NvlinkBytes)]
    assert len(readings) == 4, (before, after)
    sent = readings[2].sent_bytes - readings[0].sent_bytes
    received = readings[3].received_bytes - readings[1].received_bytes
    assert sent == pytest.approx(SIZE_BYTES, rel=0.01)
    assert received == pytest.approx(SIZE_BYTES, rel=0.01)
    driver.free_device(there, remote)
    driver.disable_peer_access(here, there)
