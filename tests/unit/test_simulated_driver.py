"""The simulated driver answers as CUDA does, also where CUDA is unkind."""

from __future__ import annotations

import msgspec
import pytest

from pytest_gpuxfer.hardware.driver import Comparison, DriverError, Fill, Memory
from pytest_gpuxfer.hardware.simulated.defects import Defects
from pytest_gpuxfer.hardware.simulated.driver import SimulatedDriver
from pytest_gpuxfer.hardware.simulated.machine_reader import load_machine
from pytest_gpuxfer.hardware.simulated.node import Node
from pytest_gpuxfer.hardware.telemetry import NvlinkBytes
from pytest_gpuxfer.model.measurement import Access
from pytest_gpuxfer.model.pattern import Pattern
from tests.unit.simulated_rig import MIB, SECOND_NS, Rig

SIZE = 64 * MIB
PATTERN = Pattern(12345)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def filled(rig: Rig, ordinal: int, pattern: Pattern = PATTERN) -> Memory:
    memory = rig.device(ordinal, SIZE)
    rig.driver.launch(Fill(memory, pattern), rig.stream(ordinal))
    rig.wait(rig.stream(ordinal))
    return memory


def sent_bytes(rig: Rig, ordinal: int) -> int:
    found = rig.hardware.telemetry.nvlink_bytes(rig.uuid(ordinal))
    assert isinstance(found, NvlinkBytes)
    return found.sent_bytes


# Order and time


def test_data_arrives_when_the_copy_ends_and_not_before(rig: Rig) -> None:
    source, destination = filled(rig, 0), rig.host(SIZE)
    rig.driver.copy(destination, source, rig.stream(0))
    assert not rig.driver.stream_idle(rig.stream(0))
    rig.wait(rig.stream(0))
    assert rig.driver.compare(destination, PATTERN) == Comparison(0)


def test_a_closed_gate_holds_copies_data_and_events(rig: Rig) -> None:
    driver, stream = rig.driver, rig.stream(0)
    source, destination = filled(rig, 0), rig.device(0, SIZE)
    gate, end = driver.create_gate(rig.context(0)), driver.create_event(rig.context(0))
    driver.close_gate(gate, stream, SECOND_NS)
    driver.copy(destination, source, stream)
    driver.record_event(end, stream)
    rig.clock.sleep_ns(SECOND_NS // 2)
    assert not driver.stream_idle(stream)
    assert driver.compare(destination, PATTERN).wrong_words == SIZE // 8
    with pytest.raises(DriverError, match="NOT_READY"):
        driver.elapsed_ns(end, end)
    driver.open_gate(gate)
    rig.wait(stream)
    assert driver.compare(destination, PATTERN).wrong_words == 0
    assert not driver.gate_expired(gate)


def test_a_gate_that_nobody_opens_expires_and_closes_again(rig: Rig) -> None:
    driver, stream = rig.driver, rig.stream(0)
    gate = driver.create_gate(rig.context(0))
    driver.close_gate(gate, stream, SECOND_NS)
    rig.clock.sleep_ns(SECOND_NS + 1)
    assert driver.stream_idle(stream)
    driver.open_gate(gate)
    assert driver.gate_expired(gate)
    driver.close_gate(gate, stream, SECOND_NS)
    assert not driver.stream_idle(stream)
    assert not driver.gate_expired(gate)


def test_enqueuing_costs_nothing_of_the_interval_behind_a_gate(rig: Rig) -> None:
    source, destination = filled(rig, 0), rig.device(0, SIZE)
    stream = rig.stream(0)

    def slow_enqueue() -> None:
        for _ in range(4):
            rig.clock.sleep_ns(SECOND_NS // 10)
            rig.driver.copy(destination, source, stream)

    assert rig.elapsed_ns(stream, slow_enqueue) < SECOND_NS / 100


def test_a_stream_waits_for_another_ones_event(rig: Rig) -> None:
    driver = rig.driver
    source, relay, destination = filled(rig, 0), rig.host(SIZE), rig.device(1, SIZE)
    event, gate = driver.create_event(rig.context(0)), driver.create_gate(rig.context(0))
    driver.close_gate(gate, rig.stream(0), SECOND_NS)
    driver.copy(relay, source, rig.stream(0))
    driver.record_event(event, rig.stream(0))
    driver.wait_event(event, rig.stream(1))
    driver.copy(destination, relay, rig.stream(1))
    rig.clock.sleep_ns(SECOND_NS // 10)
    driver.open_gate(gate)
    rig.wait(rig.stream(0), rig.stream(1))
    assert driver.compare(destination, PATTERN).wrong_words == 0


def test_flows_share_one_direction_of_a_link_and_not_the_other() -> None:
    def together_ns(pairs: list[tuple[int, int]]) -> int:
        rig = Rig()
        jobs = []
        for source, destination in pairs:
            rig.enable(source, destination)
            stream = rig.driver.create_stream(rig.context(source))
            jobs.append((rig.device(destination, SIZE), rig.device(source, SIZE), stream))
        started_ns = rig.clock.now_ns()
        for _ in range(20):
            for job in jobs:
                rig.driver.copy(*job)
        rig.wait(*(stream for _, _, stream in jobs))
        return rig.clock.now_ns() - started_ns

    alone_ns = together_ns([(1, 0)])
    assert together_ns([(1, 0), (0, 1)]) == pytest.approx(alone_ns, rel=0.02)
    assert together_ns([(1, 0), (2, 0), (3, 0)]) == pytest.approx(3 * alone_ns, rel=0.02)


def test_flows_that_share_a_link_go_on_side_by_side(rig: Rig) -> None:
    rig.enable(1, 0)
    rig.enable(2, 0)
    ends = []
    for source in (1, 2):
        memories = rig.device(0, SIZE), rig.device(source, SIZE)
        for _ in range(20):
            rig.driver.copy(*memories, rig.stream(source))
        ends.append(rig.driver.create_event(rig.context(source)))
        rig.driver.record_event(ends[-1], rig.stream(source))
    rig.wait(rig.stream(1), rig.stream(2))
    one_copy_ns = SIZE / 380
    assert abs(rig.driver.elapsed_ns(*ends)) < 2 * one_copy_ns


def test_the_same_calls_give_the_same_figures_and_no_two_copies_are_alike() -> None:
    def figures() -> list[float]:
        rig = Rig()
        rig.enable(0, 1)
        memories = rig.device(1, SIZE), rig.device(0, SIZE)
        return [rig.rate(*memories, 0, count=1) for _ in range(20)]

    first = figures()
    assert first == figures()
    assert len(set(first)) == 20
    assert max(first) / min(first) < 1.004


def test_a_loop_that_only_watches_the_clock_ends(rig: Rig) -> None:
    deadline_ns = rig.clock.now_ns() + 10_000
    while rig.clock.now_ns() < deadline_ns:
        pass


# Peer access


def test_without_peer_access_the_copy_is_staged_and_holds_the_caller_in_part(rig: Rig) -> None:
    size = 512 * MIB
    source, destination = rig.device(0, size), rig.device(1, size)
    rig.driver.launch(Fill(source, PATTERN), rig.stream(0))
    before, sent = rig.clock.now_ns(), sent_bytes(rig, 0)
    rig.driver.copy_peer(destination, source, rig.stream(0))
    ahead_ns = 64 * MIB / 38.3
    assert rig.clock.now_ns() - before == pytest.approx(size / 38.3 - ahead_ns, rel=0.05)
    assert not rig.driver.stream_idle(rig.stream(0))
    rig.wait(rig.stream(0))
    assert rig.driver.compare(destination, PATTERN).wrong_words == 0
    assert sent_bytes(rig, 0) == sent


@pytest.mark.parametrize(("size", "enqueue_us"), [(MIB, 14), (64 * MIB, 240)])
def test_a_staged_copy_that_fits_what_is_on_its_way_costs_its_enqueue(
    rig: Rig, size: int, enqueue_us: float
) -> None:
    source, destination, stream = rig.device(0, size), rig.device(1, size), rig.stream(0)
    before = rig.clock.now_ns()
    rig.driver.copy_peer(destination, source, stream)
    assert (rig.clock.now_ns() - before) / 1000 == pytest.approx(enqueue_us, rel=0.15)
    assert not rig.driver.stream_idle(stream)


def test_a_long_staged_copy_behind_a_gate_waits_for_itself_until_the_gate_expires(
    rig: Rig,
) -> None:
    source, destination = rig.device(0, 512 * MIB), rig.device(1, 512 * MIB)
    gate = rig.driver.create_gate(rig.context(0))
    rig.driver.close_gate(gate, rig.stream(0), SECOND_NS)
    before = rig.clock.now_ns()
    rig.driver.copy(destination, source, rig.stream(0))
    assert rig.clock.now_ns() - before > SECOND_NS
    assert rig.driver.gate_expired(gate)


@pytest.mark.parametrize(("mapper", "owner"), [(0, 1), (1, 0)])
def test_access_in_one_direction_is_enough_for_copy_engines_both_ways(
    rig: Rig, mapper: int, owner: int
) -> None:
    rig.enable(mapper, owner)
    memories = rig.device(1, SIZE), rig.device(0, SIZE)
    assert rig.rate(*memories, 0) > 380
    assert rig.rate(*memories[::-1], 0) > 380


def test_a_kernel_needs_its_own_access_and_its_fault_sticks(rig: Rig) -> None:
    rig.enable(1, 0)
    memory = rig.device(1, SIZE)
    rig.driver.launch(Fill(memory, PATTERN), rig.stream(0))
    rig.clock.sleep_ns(SECOND_NS)
    for _ in range(2):
        with pytest.raises(DriverError, match="ILLEGAL_ADDRESS") as caught:
            rig.driver.stream_idle(rig.stream(0))
        assert caught.value.code == 700
    with pytest.raises(DriverError, match="ILLEGAL_ADDRESS"):
        rig.device(0, SIZE)
    assert rig.driver.stream_idle(rig.stream(1))
    assert rig.driver.compare(memory, PATTERN).wrong_words == SIZE // 8


def test_nothing_behind_a_fault_is_done_any_more(rig: Rig) -> None:
    source, destination, foreign = filled(rig, 0), rig.host(SIZE), rig.device(1, SIZE)
    gate = rig.driver.create_gate(rig.context(0))
    rig.driver.close_gate(gate, rig.stream(0), SECOND_NS)
    rig.driver.launch(Fill(foreign, PATTERN), rig.stream(0))
    rig.driver.copy(destination, source, rig.stream(0))
    rig.clock.sleep_ns(2 * SECOND_NS)
    assert rig.driver.compare(destination, PATTERN).wrong_words == SIZE // 8


def test_a_kernel_with_access_stores_to_its_peer_over_nvlink(rig: Rig) -> None:
    rig.enable(0, 1)
    memory, sent = rig.device(1, SIZE), sent_bytes(rig, 0)
    rig.driver.launch(Fill(memory, PATTERN), rig.stream(0))
    rig.wait(rig.stream(0))
    assert rig.driver.compare(memory, PATTERN).wrong_words == 0
    assert sent_bytes(rig, 0) - sent == SIZE


def test_peer_access_is_per_direction_and_told_when_it_is_on_already(rig: Rig) -> None:
    zero, one = rig.context(0), rig.context(1)
    assert rig.driver.enable_peer_access(zero, one) is Access.ENABLED
    assert rig.driver.enable_peer_access(zero, one) is Access.ALREADY_ENABLED
    assert rig.driver.enable_peer_access(one, zero) is Access.ENABLED
    rig.driver.disable_peer_access(zero, one)
    with pytest.raises(DriverError, match="PEER_ACCESS_NOT_ENABLED"):
        rig.driver.disable_peer_access(zero, one)


def test_a_context_that_is_gone_can_map_nothing(rig: Rig) -> None:
    zero, one = rig.context(0), rig.context(1)
    rig.driver.release_context(zero)
    assert rig.driver.enable_peer_access(zero, one) is Access.WRONG_CONTEXT


def test_more_peers_than_the_machine_maps_are_refused() -> None:
    machine = msgspec.structs.replace(load_machine("dgx-a100"), max_peers=1)
    driver = SimulatedDriver(Node("small", machine, Defects()))
    contexts = [driver.retain_context(ordinal) for ordinal in range(3)]
    assert driver.enable_peer_access(contexts[0], contexts[1]) is Access.ENABLED
    assert driver.enable_peer_access(contexts[0], contexts[2]) is Access.TOO_MANY_PEERS


def test_no_gpu_is_its_own_peer(rig: Rig) -> None:
    assert not rig.driver.can_access_peer(0, 0)
    assert rig.driver.can_access_peer(0, 7)
    with pytest.raises(DriverError, match="INVALID_DEVICE"):
        rig.driver.can_access_peer(0, 8)


# Memory and handles


def test_memory_runs_out_and_comes_back(rig: Rig) -> None:
    context = rig.context(0)
    whole = rig.driver.free_memory_bytes(context)
    memory = rig.device(0, whole)
    assert rig.driver.free_memory_bytes(context) == 0
    with pytest.raises(DriverError) as caught:
        rig.device(0, 8)
    assert caught.value.out_of_memory
    rig.driver.free_device(context, memory)
    assert rig.driver.free_memory_bytes(context) == whole


def test_memory_that_was_freed_is_refused(rig: Rig) -> None:
    memory, host = rig.device(0, SIZE), rig.host(SIZE)
    rig.driver.free_device(rig.context(0), memory)
    rig.driver.free_host(rig.context(0), host)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        rig.driver.copy(rig.device(0, SIZE), memory, rig.stream(0))
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        rig.driver.free_device(rig.context(0), memory)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        rig.driver.fill_host(host, 1)


def test_a_context_ends_with_its_last_release_and_takes_its_memory_along(rig: Rig) -> None:
    context = rig.context(0)
    again = rig.driver.retain_context(0)
    memory = rig.device(0, SIZE)
    rig.driver.release_context(again)
    assert rig.driver.compare(memory, Pattern(0)).wrong_words
    rig.driver.release_context(context)
    with pytest.raises(DriverError, match="INVALID_CONTEXT"):
        rig.driver.free_memory_bytes(context)
    fresh = rig.driver.retain_context(0)
    assert rig.driver.free_memory_bytes(fresh) == rig.driver.devices()[0].memory_bytes


def test_destroyed_handles_are_refused(rig: Rig) -> None:
    driver, stream = rig.driver, rig.stream(0)
    event = driver.create_event(rig.context(0))
    driver.destroy_event(event)
    with pytest.raises(DriverError, match="INVALID_HANDLE"):
        driver.record_event(event, stream)
    driver.destroy_stream(stream)
    with pytest.raises(DriverError, match="INVALID_HANDLE"):
        driver.stream_idle(stream)


def test_host_memory_is_filled_and_compared_and_has_no_address(rig: Rig) -> None:
    memory = rig.host(SIZE)
    rig.driver.fill_host(memory, PATTERN)
    assert rig.driver.compare(memory, PATTERN) == Comparison(0)
    assert not rig.driver.has_addresses
    with pytest.raises(TypeError, match="simulated machine's memory has no address"):
        rig.driver.host_view(memory)
