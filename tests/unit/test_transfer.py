"""Measuring on a simulated machine: what the bench tells of a healthy one, and of others."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_gpuxfer.hardware import Hardware, open_simulated
from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.hardware.driver import Comparison, Driver, DriverError, Memory, Stream
from pytest_gpuxfer.model.cell import Check, parse_cell
from pytest_gpuxfer.model.evidence import conclude
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import (
    Access,
    Corruption,
    Count,
    FailureKind,
    LinkTraffic,
    Measurement,
    PathKind,
)
from pytest_gpuxfer.model.pattern import POISON_WORD, Pattern
from pytest_gpuxfer.model.units import GIB, KIB, MIB, NS_PER_S
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.transfer import evidence, integrity
from pytest_gpuxfer.transfer.bench import Bench
from pytest_gpuxfer.transfer.buffers import DeviceBuffer, HostBuffer
from pytest_gpuxfer.transfer.methods import local
from pytest_gpuxfer.transfer.methods.base import Flow, Route
from pytest_gpuxfer.transfer.methods.device_copy import UnifiedCopy
from pytest_gpuxfer.transfer.sampling import FEWEST_SAMPLES, MOST_SAMPLES


class Lab:
    """A bench on a simulated machine, and the machine."""

    def __init__(self, name: str = "hgx-h200", *faults: str) -> None:
        self.hardware: Hardware = open_simulated(name, faults)
        self.machine: Machine = discover(self.hardware)
        self.bench = Bench(self.hardware, self.machine)

    def measure(self, cell_id: str, decide_at: float | None = None) -> Measurement:
        return self.bench.measure(parse_cell(cell_id), decide_at)

    @property
    def driver(self) -> Driver:
        return self.hardware.driver


@pytest.fixture
def lab() -> Iterator[Lab]:
    healthy = Lab()
    yield healthy
    healthy.bench.close()


def median_gb_per_s(measurement: Measurement) -> float:
    rates = measurement.rates()
    assert rates is not None, measurement.failure
    return rates.median / 1e9


@pytest.mark.parametrize(
    "cell_id",
    [
        "peer_copy.write/gpu0-gpu1/512MiB",
        "peer_copy.read/gpu5-gpu2/512MiB",
        "unified_copy.write/gpu7-gpu0/512MiB",
        "unified_copy.read/gpu1-gpu6/512MiB",
        "peer_copy.write.no-access/gpu0-gpu1/64MiB",
        "unified_copy.read.no-access/gpu0-gpu1/64MiB",
        "host_to_device/gpu3/256MiB",
        "device_to_host/gpu3/256MiB",
        "host_relay/gpu0-gpu1/128MiB",
        "host_relay.pageable/gpu0-gpu1/128MiB",
        "host_relay.pipelined/gpu0-gpu1/128MiB",
        "peer_copy.write.round-trip/gpu0-gpu1/128MiB",
        "unified_copy.write.pool/gpu0-gpu1/512MiB",
        "unified_copy.write.vmm/gpu0-gpu1/512MiB",
        "managed/gpu0-gpu1/128MiB",
        "unified_copy.write.bidirectional/gpu0-gpu1/256MiB",
        "kernel_copy.sm.write/gpu0-gpu1/512MiB",
        "kernel_copy.sm.read/gpu0-gpu1/512MiB",
        "zero_copy.sm.read/gpu0/256MiB",
        "zero_copy.sm.write/gpu0/256MiB",
        "managed.read/gpu0/128MiB",
        "managed.write/gpu0/128MiB",
        "managed.sm.read/gpu0/128MiB",
        "host_to_device.bidirectional/gpu0/256MiB",
        "host_to_device.pageable/gpu0/256MiB",
        "local_copy/gpu0/512MiB",
        "ipc_copy.write/gpu0-gpu1/256MiB",
        "ipc_copy.write.vmm.hidden/gpu0-gpu1/256MiB",
    ],
)
def test_all_that_arrives_is_checked(lab: Lab, cell_id: str) -> None:
    measured = lab.measure(cell_id)
    assert measured.integrity is not None
    assert measured.integrity.mismatch is None
    assert measured.integrity.checked_bytes >= FEWEST_SAMPLES * (measured.cell.size_bytes or 0)


@pytest.mark.parametrize("kind", ["pool", "vmm"])
def test_memory_that_no_access_was_granted_to_is_refused_aloud(lab: Lab, kind: str) -> None:
    measured = lab.measure(f"unified_copy.write.{kind}.no-access/gpu0-gpu1/64MiB")
    assert measured.failure is None
    assert measured.refusal is not None
    assert "CUDA_ERROR_INVALID_VALUE (1)" in measured.refusal
    assert lab.measure(f"unified_copy.write.{kind}/gpu0-gpu1/512MiB").samples


@pytest.mark.parametrize("size", ["512KiB", "2MiB", "3MiB"])
def test_loads_are_slower_while_copies_fill_the_link(lab: Lab, size: str) -> None:
    """All the while: the copies outlast the loads, however many these are."""
    alone, beside = (
        lab.measure(f"load_latency.sm{pattern}/gpu0-gpu1/{size}").latencies()
        for pattern in ("", ".under-load")
    )
    assert alone is not None
    assert beside is not None
    assert alone.median == pytest.approx(853, rel=0.02)
    assert beside.median == pytest.approx(1475, rel=0.02)


def test_loads_that_outlast_the_copies_beside_them_are_doubtful(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their figure is better than the truth: it may fail a cell, and never pass it."""
    monkeypatch.setattr(local, "_BULK_COPIES", 2)
    measured = lab.measure("load_latency.sm.under-load/gpu0-gpu1/512KiB")
    assert measured.doubt == "the copies beside them ended before the loads did"
    latencies = measured.latencies()
    assert latencies is not None
    assert latencies.count >= FEWEST_SAMPLES
    assert 853 < latencies.median < 1450


def test_each_flow_of_many_is_told_and_the_slowest_counts(lab: Lab) -> None:
    measured = lab.measure("unified_copy.write.all-to-one/gpu2/128MiB")
    assert measured.flows == ("gpu0-gpu2", "gpu1-gpu2", *(f"gpu{n}-gpu2" for n in range(3, 8)))
    totals = measured.totals()
    assert totals is not None
    assert totals.median / 1e9 == pytest.approx(394, rel=0.02)  # one GPU's links, shared by seven
    assert median_gb_per_s(measured) == pytest.approx(394 / 7, rel=0.02)
    assert conclude(measured.signals).proves(PathKind.NVLINK)


def test_kernels_answer_each_other_and_their_additions_arrive(lab: Lab) -> None:
    answered = lab.measure("machine.handshake/gpu0-gpu1").reading
    added = lab.measure("machine.atomics/gpu0-gpu1").reading
    assert answered is not None
    assert added is not None
    assert answered.answered == Count(1000, 1000)
    assert added.added == Count(2**20, 2**20)


def test_a_measurement_crosses_a_process_unchanged(lab: Lab) -> None:
    measured = lab.measure("peer_copy.write/gpu0-gpu1/512MiB")
    assert pickle.loads(pickle.dumps(measured)) == measured


def test_counters_prove_nvlink_and_the_gate_is_used(lab: Lab) -> None:
    measured = lab.measure("peer_copy.write/gpu0-gpu1/512MiB")
    assert conclude(measured.signals).proves(PathKind.NVLINK)
    assert measured.gated
    assert not measured.discarded


def test_without_access_the_bytes_are_proven_staged_and_no_gate_waits_for_itself(lab: Lab) -> None:
    measured = lab.measure("peer_copy.write.no-access/gpu0-gpu1/64MiB")
    assert conclude(measured.signals).proves(PathKind.STAGED)
    assert not measured.gated
    assert not measured.discarded
    assert measured.duration_ns < NS_PER_S


def test_staging_behind_the_backs_of_enabled_access_is_seen() -> None:
    lab = Lab("dgx-a100", "staged-despite-access:gpu0-gpu1")
    measured = lab.measure("unified_copy.write/gpu0-gpu1/512MiB")
    assert all(side.answer is Access.ENABLED for side in measured.access)
    assert conclude(measured.signals).excludes(PathKind.NVLINK)
    assert median_gb_per_s(measured) < 40


def test_access_is_switched_off_again_for_a_control_that_comes_late(lab: Lab) -> None:
    assert median_gb_per_s(lab.measure("peer_copy.write/gpu0-gpu1/512MiB")) > 300
    late = lab.measure("peer_copy.write.no-access/gpu0-gpu1/64MiB")
    assert conclude(late.signals).proves(PathKind.STAGED)
    assert median_gb_per_s(late) < 40


def test_access_that_others_had_enabled_is_told_and_left_on(lab: Lab) -> None:
    contexts = [lab.driver.retain_context(gpu.ordinal) for gpu in lab.machine.gpus[:2]]
    for mine, peer in (contexts, contexts[::-1]):
        assert lab.driver.enable_peer_access(mine, peer) is Access.ENABLED
    control = lab.measure("peer_copy.write.no-access/gpu0-gpu1/64MiB")
    assert [side.answer for side in control.access] == [Access.ALREADY_ENABLED] * 2
    assert not conclude(control.signals).proves(PathKind.STAGED)
    lab.bench.close()
    assert lab.driver.enable_peer_access(*contexts) is Access.ALREADY_ENABLED


def test_closing_gives_back_memory_and_access(lab: Lab) -> None:
    contexts = [lab.driver.retain_context(gpu.ordinal) for gpu in lab.machine.gpus[:2]]
    before = [lab.driver.free_memory_bytes(context) for context in contexts]
    lab.measure("machine.peer_access/gpu0-gpu1")
    lab.measure("peer_copy.write/gpu0-gpu1/512MiB")
    lab.bench.close()
    assert [lab.driver.free_memory_bytes(context) for context in contexts] == before
    assert lab.driver.enable_peer_access(*contexts) is Access.ENABLED


def test_refused_access_says_so_in_both_directions() -> None:
    lab = Lab("dgx-a100", "peer-access-refused:gpu0-gpu1")
    measured = lab.measure("machine.peer_access/gpu0-gpu1")
    assert [side.answer for side in measured.access] == [Access.REFUSED] * 2
    assert lab.measure("peer_copy.write/gpu0-gpu1/512MiB").samples == ()
    healthy = lab.measure("machine.peer_access/gpu0-gpu2")
    assert [side.proven for side in healthy.access] == [True, True]


def test_a_flipped_bit_is_found_where_it_is() -> None:
    lab = Lab("dgx-a100", "flipped-bit:gpu2-gpu3")
    measured = lab.measure("peer_copy.write/gpu2-gpu3/512MiB")
    assert measured.integrity is not None
    mismatch = measured.integrity.mismatch
    assert mismatch is not None
    assert mismatch.corruption is Corruption.FLIPPED_BIT
    assert (mismatch.expected ^ mismatch.got).bit_count() == 1
    other_way = lab.measure("peer_copy.write/gpu3-gpu2/512MiB")
    assert other_way.integrity is not None
    assert other_way.integrity.mismatch is None


def test_the_generation_is_read_under_load_not_at_idle() -> None:
    lab = Lab("dgx-a100")
    gpu = lab.machine.gpus[0]
    assert lab.hardware.telemetry.pcie_link(gpu.uuid).generation == 1
    reading = lab.measure("machine.pcie/gpu0").reading
    assert reading is not None
    assert reading.pcie_under_load is not None
    assert reading.pcie_under_load.generation == 4


def test_sampling_goes_on_until_the_floor_is_decided(lab: Lab) -> None:
    cell_id = "peer_copy.write/gpu0-gpu1/512MiB"
    rates = lab.measure(cell_id).rates()
    assert rates is not None
    assert rates.count == FEWEST_SAMPLES
    undecided = lab.measure(cell_id, rates.median).rates()
    assert undecided is not None
    assert FEWEST_SAMPLES < undecided.count <= MOST_SAMPLES


def test_too_little_memory_is_said_with_the_gpu(lab: Lab) -> None:
    held = DeviceBuffer(lab.bench.arena, 0, 137 * GIB)
    failure = lab.measure("host_to_device/gpu0/4GiB").failure
    assert failure is not None
    assert failure.kind is FailureKind.CANNOT_ALLOCATE
    assert "gpu0" in failure.message
    held.close()


class _Broken:
    """A driver some of whose calls are replaced; the rest is the simulated machine's own."""

    def __init__(self, driver: Driver, **calls: object) -> None:
        self.__dict__.update(calls)
        self._driver = driver

    def __getattr__(self, name: str) -> object:
        return getattr(self._driver, name)


def test_a_copy_that_never_ends_costs_its_cell_and_what_touches_its_gpu(lab: Lab) -> None:
    real = lab.driver

    def never(stream: Stream) -> bool:
        return stream.context.ordinal != 0 and real.stream_idle(stream)

    lab.bench.arena.driver = _Broken(real, stream_idle=never)  # type: ignore[assignment]
    failure = lab.measure("host_to_device/gpu0/256MiB").failure
    assert failure is not None
    assert failure.kind is FailureKind.HANG
    again = lab.measure("peer_copy.write/gpu1-gpu0/512MiB").failure
    assert again is not None
    assert "not tried" in again.message
    assert lab.measure("host_to_device/gpu1/256MiB").failure is None


def test_a_driver_error_is_a_failure_with_its_name(lab: Lab) -> None:
    def fail(destination: Memory, source: Memory, stream: Stream) -> None:
        raise DriverError("cuMemcpyAsync", 802, "CUDA_ERROR_SYSTEM_NOT_READY")

    lab.bench.arena.driver = _Broken(lab.driver, copy=fail)  # type: ignore[assignment]
    failure = lab.measure("host_to_device/gpu0/256MiB").failure
    assert failure is not None
    assert failure.kind is FailureKind.NOT_READY
    assert "CUDA_ERROR_SYSTEM_NOT_READY (802)" in failure.message


def test_a_gate_that_opened_by_itself_spoils_its_sample(lab: Lab) -> None:
    real, expired = lab.driver, iter([True] + [False] * MOST_SAMPLES)
    broken = _Broken(real, gate_expired=lambda gate: next(expired))
    lab.bench.arena.driver = broken  # type: ignore[assignment]
    measured = lab.measure("host_to_device/gpu0/256MiB")
    assert measured.discarded == ("enqueuing outlasted the gate",)
    assert len(measured.samples) == FEWEST_SAMPLES - 1


@pytest.mark.parametrize(
    ("seen", "corruption"),
    [
        (Comparison(9, 0, 8000, 5, POISON_WORD), Corruption.NEVER_WRITTEN),
        (Comparison(9, 0, 8000, 5, 0), Corruption.ZEROS),
        (Comparison(9, 16, 8000, 5, Pattern(700).word(2)), Corruption.STALE),
        (Comparison(9, 16, 8000, 5, Pattern(9).word(70)), Corruption.SHIFTED),
        (Comparison(1, 16, 16, 5, 4), Corruption.FLIPPED_BIT),
        (Comparison(9, 65536, 131064, 5, 2**40), Corruption.ONE_PAGE),
        (Comparison(9, 65528, 65536, 5, 2**40), Corruption.OTHER),
    ],
)
def test_wrong_data_is_told_apart(seen: Comparison, corruption: Corruption, lab: Lab) -> None:
    route = Route(0, 1)
    flow = UnifiedCopy().flow(Check("unified_copy"), route, lab.bench.arena, MIB)
    flow = replace(flow, compare=lambda pattern: seen)
    mismatch = integrity.check(flow, Pattern(3), Pattern(700))
    assert mismatch is not None
    assert mismatch.corruption is corruption


def flows(lab: Lab, *routes: Route) -> list[Flow]:
    copy = UnifiedCopy()
    return [copy.flow(Check("unified_copy"), route, lab.bench.arena, MIB) for route in routes]


@pytest.mark.parametrize(
    ("sent", "received", "paths"),
    [
        (1000, 1000, (PathKind.NVLINK,)),
        (0, 0, (PathKind.PCIE_P2P, PathKind.STAGED)),
        (500, 500, None),
        (1000, 0, None),
        (2000, 1000, None),
    ],
)
def test_counters_prove_all_or_nothing(
    sent: int, received: int, paths: tuple[PathKind, ...] | None, lab: Lab
) -> None:
    traffic = (LinkTraffic(0, sent, 0), LinkTraffic(1, 0, received))
    told = evidence.counters_signal(traffic, flows(lab, Route(0, 1)), 1000).agrees_with
    assert (None if isinstance(told, Unknown) else told) == paths


def test_bytes_the_other_way_prove_nothing(lab: Lab) -> None:
    traffic = (LinkTraffic(0, 0, 1000), LinkTraffic(1, 1000, 0))
    told = evidence.counters_signal(traffic, flows(lab, Route(0, 1)), 1000).agrees_with
    assert told == (PathKind.PCIE_P2P, PathKind.STAGED)


def test_counters_of_many_flows_are_held_against_what_each_gpu_should_see(lab: Lab) -> None:
    into_one = flows(lab, Route(1, 0, 0), Route(2, 0, 1))
    good = (LinkTraffic(0, 0, 2000), LinkTraffic(1, 1000, 0), LinkTraffic(2, 1000, 0))
    assert evidence.counters_signal(good, into_one, 1000).agrees_with == (PathKind.NVLINK,)
    one_staged = (LinkTraffic(0, 0, 1000), LinkTraffic(1, 1000, 0), LinkTraffic(2, 0, 0))
    told = evidence.counters_signal(one_staged, into_one, 1000).agrees_with
    assert isinstance(told, Unknown)


def test_a_simulated_buffer_has_no_address_to_hand_out(lab: Lab) -> None:
    device, pinned = DeviceBuffer(lab.bench.arena, 0, KIB), HostBuffer(lab.bench.arena, MIB)
    with pytest.raises(TypeError, match="simulated machine"):
        _ = device.__cuda_array_interface__
    with pytest.raises(TypeError, match="simulated machine"):
        pinned.view()
    device.close()
    device.close()
    pinned.close()
    with pytest.raises(ValueError, match="closed"):
        _ = device.address


def test_nothing_is_tried_on_a_gpu_that_hung_in_a_group_either() -> None:
    lab = Lab("hgx-h200", "copy-hangs:gpu0-gpu1")
    assert lab.measure("peer_copy.write/gpu0-gpu1/64MiB").failure is not None
    beside = lab.measure("unified_copy.write.disjoint-pairs/round-2/64MiB").failure
    assert beside is not None
    assert beside.message == "not tried: gpu0 has hung before"
