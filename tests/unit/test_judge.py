"""The rules of judgement: each row of the table, their order, and that nothing unknown is green."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuxfer.model.cell import Cell, Check, Initiator, Place
from pytest_gpuxfer.model.diagnosis import diagnose
from pytest_gpuxfer.model.evidence import silent
from pytest_gpuxfer.model.expectation import Bound, Expectation, Limit, Location, NvlinkSpec, Waiver
from pytest_gpuxfer.model.machine import NvlinkPort, PcieLink
from pytest_gpuxfer.model.measurement import (
    Access,
    AccessDirection,
    Corruption,
    Failure,
    FailureKind,
    Health,
    Integrity,
    Measurement,
    Mismatch,
    PathKind,
    Reading,
    Sample,
    Signal,
    SignalName,
)
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.model.verdict import Outcome, Reason, judge

HERE = Location("site.yaml", 7)
CHECK = Check("peer_copy", initiator=Initiator.WRITE)
CELL = Cell(CHECK, Place.pair(0, 1), 2**29)
RELAY = Check("host_relay")


def bound(rate: float) -> Bound:
    return Bound(rate, f"{rate / 1e9:.0f} GB/s", HERE)


LIMIT = Limit(CHECK, HERE, floor=bound(240e9), expect=bound(275e9))
WANTED = Expectation(
    CELL,
    path=PathKind.NVLINK,
    proof=(SignalName.COUNTERS,),
    peer_access_required=True,
    physical=bound(300e9),
    limit=LIMIT,
    tolerance=0.05,
)
BY_NVLINK = Signal(SignalName.COUNTERS, (PathKind.NVLINK,), "all of it")
OFF_NVLINK = Signal(SignalName.COUNTERS, (PathKind.PCIE_P2P, PathKind.STAGED), "none of it")
UNREAD = Signal(SignalName.COUNTERS, Unknown("not supported"), "not supported")
WRONG = Mismatch(1, 64, 64, 1, 3, Corruption.FLIPPED_BIT)


def at(*rates: float) -> tuple[Sample, ...]:
    """Samples of one copy of 512 MiB each, at these rates in GB/s."""
    return tuple(Sample(2**29 / rate, 2**29, 1) for rate in rates)


def both(answer: Access) -> tuple[AccessDirection, ...]:
    return (AccessDirection(0, 1, answer, proven=True), AccessDirection(1, 0, answer, proven=True))


GOOD = Measurement(
    CELL,
    samples=at(*[274.0] * 9),
    integrity=Integrity(2**32),
    access=both(Access.ENABLED),
    signals=(BY_NVLINK,),
)
HEALTHY = Health()


def test_a_good_copy_passes() -> None:
    verdict = judge(GOOD, WANTED, HEALTHY)
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, Reason.INSIDE)
    assert verdict.words == "274.0 GB/s"
    assert verdict.unchecked == ()


def test_any_flow_above_its_link_is_measured_wrongly() -> None:
    """The slowest one is what a cell is judged by, and hides it."""
    copied, slow_ns, fast_ns = 2**29, 2**29 / 274.0, 2**29 / 301.0
    samples = (Sample(slow_ns, 2 * copied, 1, (slow_ns, fast_ns)),) * 9
    verdict = judge(replace(GOOD, samples=samples), WANTED, HEALTHY)
    assert verdict.reason is Reason.ABOVE_PHYSICAL
    assert "301.0 GB/s" in verdict.words


def test_doubtful_samples_may_fail_a_cell_and_never_pass_it() -> None:
    doubtful = replace(GOOD, doubt="the copies beside them ended")
    verdict = judge(doubtful, WANTED, HEALTHY)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.DOUBTFUL)
    assert judge(replace(doubtful, samples=at(*[38.0] * 9)), WANTED).outcome is Outcome.FAIL


def test_an_expectation_that_rests_on_no_figure_passes_nothing() -> None:
    limit = replace(LIMIT, expect=Bound(1.0, "1x host_relay", HERE, of_check=RELAY))
    wanted = replace(WANTED, limit=limit)
    verdict = judge(GOOD, wanted, HEALTHY)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.NO_BASE)
    assert "1x host_relay: host_relay has no sound figure at gpu0-gpu1" in verdict.words
    assert judge(GOOD, wanted, HEALTHY, {RELAY: 300e9}).outcome is Outcome.DEGRADED


def test_a_crash_that_did_not_come_again_is_never_quite_green() -> None:
    again = replace(GOOD, crash="the measuring process was ended by SIGSEGV")
    verdict = judge(again, WANTED, HEALTHY)
    assert (verdict.outcome, verdict.reason) == (Outcome.DEGRADED, Reason.CRASHED_ONCE)
    assert verdict.words == "274.0 GB/s, but the measuring process was ended by SIGSEGV at first"
    assert "once" in diagnose(again, WANTED, verdict)[0].name
    slow = judge(replace(again, samples=at(*[38.0] * 9)), WANTED, HEALTHY)
    assert slow.reason is Reason.BELOW_FLOOR
    both_told = judge(again, WANTED, Health(risen=("NVLink errors of gpu3 rose by 12",)))
    assert both_told.words.endswith(
        "rose by 12 while it was measured and the measuring process was ended by SIGSEGV at first"
    )


@pytest.mark.parametrize(
    ("changes", "outcome", "reason"),
    [
        ({"failure": Failure(FailureKind.HANG, "x")}, Outcome.ERROR, Reason.NOT_MEASURED),
        ({"samples": ()}, Outcome.ERROR, Reason.NOT_MEASURED),
        ({"samples": at(*[38.0] * 9)}, Outcome.FAIL, Reason.BELOW_FLOOR),
        ({"samples": at(*[301.0] * 9)}, Outcome.ERROR, Reason.ABOVE_PHYSICAL),
        ({"samples": at(*[250.0] * 9)}, Outcome.DEGRADED, Reason.BELOW_EXPECTED),
        ({"samples": at(*[262.0] * 9)}, Outcome.PASS, Reason.INSIDE),
        (
            {"samples": at(235, 236, 237, 238, 239, 241, 242, 243, 244)},
            Outcome.INCONCLUSIVE,
            Reason.STRADDLES_FLOOR,
        ),
        ({"integrity": None}, Outcome.ERROR, Reason.NOT_MEASURED),
        ({"integrity": Integrity(0)}, Outcome.ERROR, Reason.NOT_MEASURED),
        ({"integrity": Integrity(8, WRONG)}, Outcome.FAIL, Reason.WRONG_DATA),
        ({"access": both(Access.REFUSED)}, Outcome.ABSENT, Reason.NO_PEER_ACCESS),
        ({"access": both(Access.UNSUPPORTED)}, Outcome.FAIL, Reason.NO_PEER_ACCESS),
        ({"access": both(Access.TOO_MANY_PEERS)}, Outcome.FAIL, Reason.NO_PEER_ACCESS),
        ({"signals": (OFF_NVLINK,)}, Outcome.FAIL, Reason.OTHER_PATH),
        ({"signals": (UNREAD,)}, Outcome.INCONCLUSIVE, Reason.PATH_NOT_PROVEN),
        ({"signals": ()}, Outcome.INCONCLUSIVE, Reason.PATH_NOT_PROVEN),
    ],
)
def test_each_rule(changes: dict[str, object], outcome: Outcome, reason: Reason) -> None:
    verdict = judge(replace(GOOD, **changes), WANTED, HEALTHY)  # type: ignore[arg-type]
    assert (verdict.outcome, verdict.reason) == (outcome, reason)


def test_a_control_with_access_that_others_keep_on_is_inconclusive() -> None:
    control = Cell(replace(CHECK, access=False), Place.pair(0, 1), 2**26)
    wanted = replace(
        WANTED,
        cell=control,
        path=PathKind.STAGED,
        proof=(SignalName.COUNTERS, SignalName.ACCESS),
        peer_access_required=False,
    )
    witnesses = (BY_NVLINK, Signal(SignalName.ACCESS, tuple(PathKind), "on"))
    crossed = replace(GOOD, cell=control, signals=witnesses)
    kept_on = judge(replace(crossed, access=both(Access.ALREADY_ENABLED)), wanted, HEALTHY)
    assert (kept_on.outcome, kept_on.reason) == (Outcome.INCONCLUSIVE, Reason.PATH_NOT_PROVEN)
    off = judge(replace(crossed, access=both(Access.OFF)), wanted, HEALTHY)
    assert off.outcome is Outcome.FAIL


def test_nvlinks_that_hide_rate_or_generation_are_listed_as_not_checked() -> None:
    spec = NvlinkSpec(3, 2, 25e9, HERE)
    cell = Cell(Check("machine.nvlink"), Place.gpu(0))
    hidden = Unknown("not supported")
    full = NvlinkPort(0, True, 25e9, 3, "switch")
    for ports, unchecked in (
        ((full, full), ()),
        ((full, replace(full, rate_bytes_per_s=hidden)), (f"NVLink rate: {hidden}",)),
        ((full, replace(full, generation=hidden)), (f"NVLink generation: {hidden}",)),
    ):
        read = Measurement(cell, reading=Reading(nvlinks=ports))
        verdict = judge(read, Expectation(cell, nvlink=spec), HEALTHY)
        assert (verdict.outcome, verdict.unchecked) == (Outcome.PASS, unchecked)


def test_one_direction_without_access_is_enough_to_fail() -> None:
    half = (AccessDirection(0, 1, Access.ENABLED), AccessDirection(1, 0, Access.REFUSED))
    assert judge(replace(GOOD, access=half), WANTED, HEALTHY).outcome is Outcome.ABSENT


def test_wrong_data_comes_before_a_lost_path_and_a_low_rate() -> None:
    ruined = replace(
        GOOD, integrity=Integrity(8, WRONG), signals=(OFF_NVLINK,), samples=at(*[1.0] * 9)
    )
    assert judge(ruined, WANTED, HEALTHY).reason is Reason.WRONG_DATA


def test_a_path_that_cannot_be_known_comes_before_its_rate() -> None:
    slow = replace(GOOD, signals=(UNREAD,), samples=at(*[38.0] * 9))
    assert judge(slow, WANTED, HEALTHY).outcome is Outcome.INCONCLUSIVE


def test_witnesses_that_contradict_each_other_prove_nothing() -> None:
    held = Signal(SignalName.ENQUEUE, (PathKind.STAGED,), "it held the caller")
    verdict = judge(replace(GOOD, signals=(BY_NVLINK, held)), WANTED, HEALTHY)
    assert verdict.reason is Reason.PATH_NOT_PROVEN
    assert "disagree" in verdict.words


def test_a_throttled_gpu_below_the_floor_is_no_verdict_on_the_link() -> None:
    hot = Health(concerns=("gpu1 throttled: hardware thermal slowdown",))
    slow = replace(GOOD, samples=at(*[200.0] * 9))
    verdict = judge(slow, WANTED, hot)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.UNHEALTHY)
    assert "hardware thermal slowdown" in verdict.words
    assert judge(GOOD, WANTED, hot).outcome is Outcome.PASS


def test_health_that_was_not_read_never_gates_and_is_said() -> None:
    slow = replace(GOOD, samples=at(*[200.0] * 9))
    assert judge(slow, WANTED, None).outcome is Outcome.FAIL
    assert judge(GOOD, WANTED, None).unchecked == ("health: not read",)
    assert judge(GOOD, WANTED, Health(unread=("throttling of gpu0",))).unchecked


def test_the_message_has_figure_floor_as_written_and_where_it_stands() -> None:
    floor = Bound(240e9, "80% of nvlink", HERE)
    wanted = replace(WANTED, limit=replace(LIMIT, floor=floor))
    verdict = judge(replace(GOOD, samples=at(*[38.0] * 9)), wanted, HEALTHY)
    assert verdict.words == (
        "38.00 GB/s is below the floor 240.0 GB/s (80% of nvlink), site.yaml:7"
    )


def test_a_floor_may_rest_on_another_check() -> None:
    limit = replace(LIMIT, floor=Bound(3.0, "3x host_relay", HERE, RELAY), expect=None)
    wanted = replace(WANTED, limit=limit)
    assert judge(GOOD, wanted, HEALTHY, {RELAY: 90e9}).outcome is Outcome.PASS
    assert judge(GOOD, wanted, HEALTHY, {RELAY: 92e9}).outcome is Outcome.FAIL
    assert judge(GOOD, wanted, HEALTHY, {}).outcome is Outcome.INCONCLUSIVE


def test_a_ceiling_is_held_against_the_time_of_one_operation() -> None:
    limit = Limit(CHECK, HERE, ceiling=Bound(6_000.0, "6 us", HERE))
    wanted = replace(WANTED, limit=limit, physical=None)
    quick = replace(GOOD, samples=tuple(Sample(200_000.0, 1600, 100) for _ in range(9)))
    slow = replace(GOOD, samples=tuple(Sample(1_600_000.0, 1600, 100) for _ in range(9)))
    assert judge(quick, wanted, HEALTHY).outcome is Outcome.PASS
    assert judge(slow, wanted, HEALTHY).words == "16.00 us is above the ceiling 6 us, site.yaml:7"


def test_no_limit_is_no_pass() -> None:
    assert judge(GOOD, replace(WANTED, limit=None), HEALTHY).outcome is Outcome.ERROR


def test_an_unlimited_rate_is_said_aloud() -> None:
    limit = Limit(CHECK, HERE, unlimited="it depends on the host")
    verdict = judge(GOOD, replace(WANTED, limit=limit), HEALTHY)
    assert verdict.outcome is Outcome.PASS
    assert verdict.unchecked == ("rate: it depends on the host",)


def test_what_was_not_measured_is_red_and_what_is_not_expected_is_skipped() -> None:
    assert judge(None, WANTED, HEALTHY).outcome is Outcome.ERROR
    assert judge(None, replace(WANTED, not_expected="one GPU")).outcome is Outcome.NOT_EXPECTED


def test_a_waiver_covers_a_slow_link_but_never_wrong_data() -> None:
    waived = replace(WANTED, waiver=Waiver("*", "ops", "RMA 4711", "2027-01-15", HERE))
    slow = judge(replace(GOOD, samples=at(*[38.0] * 9)), waived, HEALTHY)
    assert slow.outcome is Outcome.WAIVED
    assert "RMA 4711" in slow.words
    corrupt = replace(GOOD, integrity=Integrity(8, WRONG))
    assert judge(corrupt, waived, HEALTHY).outcome is Outcome.FAIL


NVLINKS = Expectation(
    Cell(Check("machine.nvlink"), Place.gpu(3)), nvlink=NvlinkSpec(3, 12, 25e9, HERE)
)


def ports(*states: bool | Unknown, rate: float = 25e9) -> Measurement:
    links = tuple(NvlinkPort(i, up, rate, 3, "switch") for i, up in enumerate(states))
    return Measurement(NVLINKS.cell, reading=Reading(nvlinks=links))


def test_links_are_counted_and_the_ones_down_are_named() -> None:
    assert judge(ports(*[True] * 12), NVLINKS, HEALTHY).outcome is Outcome.PASS
    short = judge(ports(*[True] * 11, False), NVLINKS, HEALTHY)
    assert (short.outcome, short.reason) == (Outcome.FAIL, Reason.LINKS_SHORT)
    assert short.words == "11 of 12 NVLinks are up (down: link 11)"
    assert judge(ports(*[True] * 12, rate=12e9), NVLINKS, HEALTHY).outcome is Outcome.FAIL


def test_a_link_state_that_cannot_be_read_is_inconclusive() -> None:
    verdict = judge(ports(*[True] * 11, Unknown("lost")), NVLINKS, HEALTHY)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.NOT_READABLE)
    unread = Measurement(NVLINKS.cell, reading=Reading(nvlinks=Unknown("no NVML")))
    assert judge(unread, NVLINKS, HEALTHY).outcome is Outcome.INCONCLUSIVE


def test_missing_gpus_are_absent() -> None:
    wanted = Expectation(Cell(Check("machine.gpus"), Place.all()), gpus=8)
    seven = Measurement(wanted.cell, reading=Reading(("A100",) * 7))
    assert judge(seven, wanted, HEALTHY).outcome is Outcome.ABSENT
    assert judge(seven, replace(wanted, gpus=7), HEALTHY).outcome is Outcome.PASS
    with_mig = Measurement(wanted.cell, reading=Reading(("A100",) * 8, ("gpu2",)))
    assert judge(with_mig, wanted, HEALTHY).reason is Reason.MIG


def test_a_witness_not_asked_for_convicts_no_path_while_the_one_asked_for_is_silent() -> None:
    held = Signal(SignalName.ENQUEUE, (PathKind.STAGED,), "it grew with the size")
    verdict = judge(replace(GOOD, signals=(UNREAD, held)), WANTED, HEALTHY)
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, Reason.PATH_NOT_PROVEN)


def test_a_virtual_machine_that_hides_the_pcie_link_is_skipped_not_failed() -> None:
    cell = Cell(Check("machine.pcie"), Place.gpu(0))
    hidden = PcieLink(Unknown("not supported"), Unknown("not supported"))
    measured = Measurement(cell, reading=Reading(pcie_under_load=hidden))
    verdict = judge(measured, Expectation(cell), HEALTHY)
    assert verdict.outcome is Outcome.NOT_EXPECTED
    assert "PCIe link under load" in verdict.unchecked[0]


def test_a_machine_check_that_read_nothing_is_not_green() -> None:
    access = Expectation(Cell(Check("machine.peer_access"), Place.pair(0, 1)))
    assert judge(Measurement(access.cell), access, HEALTHY).outcome is Outcome.INCONCLUSIVE
    unproven = (AccessDirection(0, 1, Access.ENABLED), AccessDirection(1, 0, Access.ENABLED))
    asked = Measurement(access.cell, access=unproven)
    assert judge(asked, access, HEALTHY).outcome is Outcome.INCONCLUSIVE
    lost = (
        AccessDirection(0, 1, Access.ENABLED, proven=True),
        AccessDirection(1, 0, Access.ENABLED, proven=False),
    )
    required = replace(access, peer_access_required=True)
    broken = judge(Measurement(access.cell, access=lost), required, HEALTHY)
    assert (broken.outcome, broken.reason) == (Outcome.FAIL, Reason.ACCESS_NOT_PROVEN)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"access": both(Access.REFUSED)}, "topo -p2p"),
        ({"signals": (OFF_NVLINK,)}, "fabric"),
        ({"integrity": Integrity(8, WRONG)}, "drain"),
        ({"samples": at(*[38.0] * 9)}, "matrix"),
        ({"failure": Failure(FailureKind.NOT_READY, "x")}, "nvidia-fabricmanager"),
    ],
)
def test_a_red_cell_gets_a_cause_and_a_next_step(changes: dict[str, object], words: str) -> None:
    measurement = replace(GOOD, **changes)  # type: ignore[arg-type]
    verdict = judge(measurement, WANTED, HEALTHY)
    assert words in diagnose(measurement, WANTED, verdict)[0].next_step


def test_a_green_cell_has_no_cause() -> None:
    assert diagnose(GOOD, WANTED, judge(GOOD, WANTED, HEALTHY)) == ()


@pytest.mark.parametrize("signals", [(BY_NVLINK, UNREAD), (UNREAD, BY_NVLINK)])
def test_a_witness_that_was_read_once_and_once_not_proves_nothing(
    signals: tuple[Signal, ...],
) -> None:
    assert silent(signals, [SignalName.COUNTERS]) == (f"counters: {UNREAD.words}",)


numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -1.0, math.inf, math.nan])
)
samples = st.lists(
    st.builds(Sample, numbers, st.integers(-1, 2**40), st.integers(-1, 64)), max_size=12
)


@given(
    samples,
    st.sampled_from([None, Integrity(0), Integrity(8), Integrity(8, WRONG)]),
    st.lists(st.sampled_from([BY_NVLINK, OFF_NVLINK, UNREAD]), max_size=3),
    st.sampled_from([(), both(Access.ENABLED), both(Access.OFF)]),
    st.sampled_from([None, LIMIT, Limit(CHECK, HERE, unlimited="x")]),
)
def test_judge_is_total_and_green_only_for_what_was_measured(
    taken: list[Sample],
    integrity: Integrity | None,
    signals: list[Signal],
    access: tuple[AccessDirection, ...],
    limit: Limit | None,
) -> None:
    measured = Measurement(
        CELL, samples=tuple(taken), integrity=integrity, signals=tuple(signals), access=access
    )
    verdict = judge(measured, replace(WANTED, limit=limit), None)
    if not verdict.outcome.red:
        assert taken
        assert all(s.moved_bytes > 0 and 0 < s.elapsed_ns < math.inf for s in taken)
        assert integrity == Integrity(8)
        assert set(signals) == {BY_NVLINK}
        assert limit is not None
