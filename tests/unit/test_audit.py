"""Counter readings to amounts, and amounts to what a test may rest on."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuxfer.audit import GpuTraffic, Traffic, UncertainBytes, UnknownTrafficError
from pytest_gpuxfer.audit.recorder import (
    PcieMeter,
    Recorder,
    line_rate_bytes_per_s,
    nvlink_amounts,
)
from pytest_gpuxfer.audit.summary import live_line, table
from pytest_gpuxfer.hardware.telemetry import NvlinkBytes, PcieBytes
from pytest_gpuxfer.model.machine import PcieLink
from pytest_gpuxfer.model.unknown import Unknown, known
from tests.unit.simulated_rig import MIB, Rig

MS = 10**6
LIMIT_NS = 68 * MS
UNKNOWN = UncertainBytes("nobody counted")
GEN5 = PcieLink(1, 16, 5, 16)
WRAP = 2**32
RATE = 63e9


def gpu(sent: Any = 0, received: Any = 0, pcie: Any = 0) -> GpuTraffic:
    return GpuTraffic(
        "GPU-1", "0000:1b:00.0", "H200", sent, received, pcie, pcie, 12 * MS, LIMIT_NS
    )


def audited(*gpus: GpuTraffic) -> Traffic:
    traffic = Traffic()
    traffic.complete(gpus)
    return traffic


# What is not known


@pytest.mark.parametrize(
    "asked",
    [
        "amount == 0",
        "amount != 0",
        "amount < 1",
        "amount >= 0",
        "0.9 * 2**30 < amount",
        "amount == approx(5)",
        "approx(5) == amount",
        "0 <= amount <= 10",
        "not amount",
        "amount / 2 > 1",
        "sum([amount, 5])",
        "max(amount, 5)",
        "int(amount)",
        "amount in (0, 1)",
        "amount == UncertainBytes('other')",
    ],
)
def test_nothing_asked_of_an_unknown_amount_has_an_answer(asked: str) -> None:
    names = {"approx": pytest.approx, "UncertainBytes": UncertainBytes, "amount": UNKNOWN}
    with pytest.raises(UnknownTrafficError, match=r"nobody counted|other"):
        eval(asked, names)


def test_an_unknown_amount_is_an_unknown_with_its_reason_also_in_another_process() -> None:
    there = pickle.loads(pickle.dumps(UNKNOWN))
    assert isinstance(there, Unknown)
    assert str(there) == "unknown (nobody counted)"


@pytest.mark.parametrize(
    ("compare", "decided", "open_at"),
    [
        (operator.gt, {2: True, 9: False}, (3, 8)),
        (operator.ge, {3: True, 10: False}, (4, 9)),
        (operator.lt, {10: True, 3: False}, (4, 9)),
        (operator.le, {9: True, 2: False}, (3, 8)),
        (operator.eq, {2: False, 10: False}, (3, 9)),
        (operator.ne, {2: True, 10: True}, (3, 9)),
    ],
)
def test_bounds_answer_what_they_decide(
    compare: Callable[[Any, Any], bool], decided: dict[int, bool], open_at: tuple[int, ...]
) -> None:
    amount = UncertainBytes("from 3 to 9", 3, 9)
    for value, answer in decided.items():
        assert compare(amount, value) is answer
    for value in open_at:
        with pytest.raises(UnknownTrafficError, match="from 3 to 9"):
            compare(amount, value)


# Between two GPUs


def test_between_is_exact_where_only_these_two_moved() -> None:
    traffic = audited(gpu(7, 5), gpu(5, 7), gpu())
    assert traffic.between(0, 1).nvlink_bytes == 7
    assert traffic.between(1, 0).nvlink_bytes == 5
    assert traffic.between(0, 2).nvlink_bytes == 0


def test_a_third_gpu_that_only_received_leaves_it_exact() -> None:
    assert audited(gpu(8, 0), gpu(0, 5), gpu(0, 3)).between(0, 1).nvlink_bytes == 5


def test_between_two_of_a_ring_is_not_told() -> None:
    """Each sent 5 and received 5: the ring may as well go the other way round."""
    between = audited(gpu(5, 5), gpu(5, 5), gpu(5, 5)).between(0, 1)
    assert between.nvlink_bytes <= 5
    with pytest.raises(UnknownTrafficError, match="gpu0 to gpu1, between 0 B and 5 B"):
        assert between.nvlink_bytes > 4


def test_a_gpu_without_a_number_here_counts_as_another() -> None:
    traffic = Traffic()
    traffic.complete([gpu(5, 0), gpu(0, 5)], [gpu(5, 5)])
    assert isinstance(traffic.between(0, 1).nvlink_bytes, UncertainBytes)


def test_an_unknown_third_gpu_leaves_the_upper_bound() -> None:
    amount = audited(gpu(5), gpu(0, 5), gpu(UNKNOWN, UNKNOWN)).between(0, 1).nvlink_bytes
    assert amount < 6
    with pytest.raises(UnknownTrafficError):
        assert amount > 0


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=4, max_size=4))
def test_the_truth_is_within_the_bounds(moved: list[list[int]]) -> None:
    """moved[a][b]: what went from a to b; counters show the sums alone."""
    for index in range(4):
        moved[index][index] = 0
    traffic = audited(*(gpu(sum(moved[n]), sum(row[n] for row in moved)) for n in range(4)))
    for a in range(4):
        for b in set(range(4)) - {a}:
            amount = traffic.between(a, b).nvlink_bytes
            if isinstance(amount, UncertainBytes):
                assert amount.at_least_bytes <= moved[a][b] <= amount.at_most_bytes
            else:
                assert amount == moved[a][b]


def test_mistaken_places_are_told() -> None:
    with pytest.raises(IndexError, match="gpu2 is not there; this audit has 2 GPUs"):
        audited(gpu(), gpu()).gpu(2)
    with pytest.raises(IndexError, match="gpu-1"):
        audited(gpu(), gpu()).between(0, -1)
    with pytest.raises(ValueError, match="gpu1 twice"):
        audited(gpu(), gpu()).between(1, 1)


# Meters


def metered(*readings: tuple[int, PcieBytes | Unknown]) -> PcieMeter:
    meter = PcieMeter(RATE)
    for at_ms, reading in readings:
        meter.add(reading, at_ms * MS, at_ms * MS)
    return meter


def test_wrapped_counters_are_added_up() -> None:
    full = 2**32
    meter = metered(
        (0, PcieBytes(full - 10, 5)), (10, PcieBytes(20, 5)), (20, PcieBytes(10, full - 1))
    )
    assert meter.amounts() == (30 + full - 10, full - 6)
    assert meter.longest_gap_ns == 10 * MS


def test_a_gap_that_could_hide_a_wrap_leaves_bounds_for_good() -> None:
    meter = metered(*((at_ms, PcieBytes(at_ms, 0)) for at_ms in (0, 67, 187, 190)))
    sent, _ = meter.amounts()
    assert isinstance(sent, UncertainBytes)
    assert (sent.at_least_bytes, sent.at_most_bytes) == (190, 190 + WRAP)
    assert sent.reason.startswith(
        "sampling gap of 120 ms, and the counter may wrap within 68 ms: between 190 B and 4.29 GB"
    )


def test_a_wrap_that_the_link_is_too_slow_for_is_no_doubt() -> None:
    """In 70 ms it moves 4.41 GB: 0.2 GB seen may not be 4.49 GB, 0.1 GB may be 4.39 GB."""
    seen, other = metered((0, PcieBytes(0, 0)), (70, PcieBytes(200_000_000, 100_000_000))).amounts()
    assert seen == 200_000_000
    assert isinstance(other, UncertainBytes)


@given(st.lists(st.tuples(st.integers(1, 400), st.floats(0, 1)), max_size=20))
def test_what_was_sent_is_within_the_bounds(steps: list[tuple[int, float]]) -> None:
    at_ms, sent = 0, 0
    readings = [(0, PcieBytes(0, 0))]
    for gap_ms, load in steps:
        at_ms += gap_ms
        sent += int(gap_ms * MS * RATE / 1e9 * load)
        readings.append((at_ms, PcieBytes(sent % WRAP, 0)))
    amount = metered(*readings).amounts()[0]
    if isinstance(amount, UncertainBytes):
        assert amount.at_least_bytes <= sent <= amount.at_most_bytes
    else:
        assert amount == sent


def test_a_gap_counts_from_before_one_reading_to_after_the_next() -> None:
    """When between the two ends of its call a counter was read, nobody tells."""
    meter = PcieMeter(RATE)
    meter.add(PcieBytes(0, 0), 0, 30 * MS)
    meter.add(PcieBytes(1, 1), 40 * MS, 70 * MS)
    assert isinstance(meter.amounts()[0], UncertainBytes)


def test_a_reading_that_fails_costs_only_the_gap_unless_it_is_the_first_or_last() -> None:
    first, last, lost = PcieBytes(0, 0), PcieBytes(7, 7), Unknown("GPU is lost")
    assert metered((0, first), (10, lost), (20, last)).amounts() == (7, 7)
    for readings in (((0, lost), (10, last)), ((0, first), (10, lost))):
        assert str(metered(*readings).amounts()[1]) == "unknown (GPU is lost)"


def test_the_line_rate_is_the_links_best_or_the_best_there_is() -> None:
    assert line_rate_bytes_per_s(GEN5) == pytest.approx(63e9, rel=0.01)
    unread = Unknown("hidden")
    assert line_rate_bytes_per_s(PcieLink(1, 16, unread, unread)) > line_rate_bytes_per_s(GEN5)


def test_nvlink_amounts_need_both_readings_and_no_reset() -> None:
    before, after, lost = NvlinkBytes(2**40, 5), NvlinkBytes(2**41, 5), Unknown("GPU is lost")
    assert nvlink_amounts(before, after) == (2**40, 0)
    for pair in ((lost, after), (before, lost), (after, before)):
        assert all(isinstance(amount, UncertainBytes) for amount in nvlink_amounts(*pair))


def test_a_recorder_tells_the_links_apart() -> None:
    rig = Rig("hgx-h200")
    listed = known(rig.hardware.telemetry.gpus())
    assert listed is not None
    a, b, host = rig.device(0, 64 * MIB), rig.device(1, 64 * MIB), rig.host(64 * MIB)
    rig.enable(0, 1)
    recorder = Recorder(rig.hardware.telemetry, rig.clock, listed)
    rig.driver.copy_peer(b, a, rig.stream(0))
    rig.driver.copy(a, host, rig.stream(0))
    rig.wait(rig.stream(0))
    traffic = audited(*recorder.report())
    assert traffic.between(0, 1).nvlink_bytes == 64 * MIB
    assert traffic.between(1, 0).nvlink_bytes == 0
    assert 64 * MIB <= traffic.gpu(0).pcie_received_bytes < 80 * MIB
    assert traffic.gpu(1).pcie_received_bytes < MIB


# Words


def test_the_summary_has_a_row_a_gpu_the_certain_pairs_and_each_reason_once() -> None:
    lines = table([gpu(7_000_000, 0, 5 * 10**9), gpu(0, 7_000_000, UNKNOWN)], 10 * MS)
    assert lines[1].split() == ["gpu0", "0000:1b:00.0", "H200", "7.00", "MB", "0", "B",
                                "5.00", "GB", "5.00", "GB"]  # fmt: skip
    assert lines[2].split()[-2:] == ["unknown", "unknown"]
    assert "gpu0 -> gpu1: 7.00 MB over NVLink" in lines
    assert "gpu1 PCIe sent unknown: nobody counted" in lines
    assert lines[-1] == "PCIe read every 10 ms, longest gap 12 ms; 68 ms could hide a wrap."


def test_the_live_line_names_who_moves() -> None:
    still, second = gpu(), 10**9
    assert live_line(3e9, [still, still], [still, still], second) == "3.00 s  all still"
    moved = live_line(3e9, [gpu(10**9), still], [gpu(3 * 10**9, 0, UNKNOWN), still], second)
    assert moved == "3.00 s  gpu0 NVLink 2.00/0.00 PCIe ?/? GB/s"


def test_the_live_line_goes_on_after_a_gap() -> None:
    before, after = (UncertainBytes("gap", n * 10**9, n * 10**9 + WRAP) for n in (1, 4))
    wider = UncertainBytes("gap", 4 * 10**9, 4 * 10**9 + 2 * WRAP)
    words = live_line(2e9, [gpu(0, 0, before)], [gpu(0, 0, after)], 10**9)
    assert words == "2.00 s  gpu0 NVLink 0.00/0.00 PCIe 3.00/3.00 GB/s"
    assert "?/?" in live_line(2e9, [gpu(0, 0, before)], [gpu(0, 0, wider)], 10**9)


def test_the_summary_gives_the_bounds_of_what_is_uncertain() -> None:
    row = table([gpu(0, 0, UncertainBytes("gap", 10**9, 5 * 10**9))], 10 * MS)[1]
    assert row.endswith("1.00 GB to 5.00 GB  1.00 GB to 5.00 GB")
