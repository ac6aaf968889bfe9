"""Further witnesses: the pair's own staging, health around a cell, sisters held together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuxfer.hardware import open_simulated
from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.hardware.telemetry import GpuStatus, Telemetry
from pytest_gpuxfer.model.cell import Cell, Check, Place, parse_cell
from pytest_gpuxfer.model.expectation import Expectation
from pytest_gpuxfer.model.machine import Gpu
from pytest_gpuxfer.model.measurement import (
    Access,
    Health,
    Measurement,
    PathKind,
    Reading,
    SignalName,
)
from pytest_gpuxfer.model.statistics import outliers
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.model.verdict import Outcome, Reason, judge
from pytest_gpuxfer.transfer.bench import Bench
from pytest_gpuxfer.transfer.health import HealthWatch
from pytest_gpuxfer.transfer.staging import Staging

QUIET = GpuStatus((), 0, 0, 0, (), 0, confidential=False)


def bench(*faults: str) -> Bench:
    hardware = open_simulated("dgx-a100", faults)
    return Bench(hardware, discover(hardware))


def test_a_staged_copy_takes_as_long_for_few_bytes_with_access_as_without() -> None:
    lab = bench("staged-despite-access:gpu0-gpu1")
    measured = lab.measure(parse_cell("peer_copy.write/gpu0-gpu1/512MiB"))
    told = {signal.name: signal for signal in measured.signals}
    assert told[SignalName.LATENCY].agrees_with == (PathKind.STAGED,)
    assert "without access" in told[SignalName.STAGED_RATE].words
    assert [side.answer for side in measured.access] == [Access.ENABLED] * 2


def test_a_direct_copy_is_quick_and_access_is_as_before() -> None:
    lab = bench()
    lab.peer_access.enable(0, 1)
    latency, rate = Staging(lab.arena, lab.peer_access).signals([(0, 1)], 275e9)
    assert latency.agrees_with == (PathKind.NVLINK, PathKind.PCIE_P2P)
    assert rate.agrees_with == tuple(PathKind)  # a ratio proves nothing
    assert [side.answer for side in lab.peer_access.state(0, 1)] == [Access.ENABLED] * 2


def test_one_staged_pair_of_several_is_what_is_told() -> None:
    lab = bench("staged-despite-access:gpu2-gpu3")
    for pair in ((0, 1), (2, 3)):
        lab.peer_access.enable(*pair)
    staging = Staging(lab.arena, lab.peer_access)
    latency, _ = staging.signals([(0, 1), (2, 3)], 275e9)
    assert latency.agrees_with == (PathKind.STAGED,)


def test_staging_is_unknown_where_others_keep_access_on() -> None:
    lab = bench()
    contexts = [lab.arena.context(gpu) for gpu in (0, 1)]
    lab.arena.driver.enable_peer_access(*contexts)
    for signal in Staging(lab.arena, lab.peer_access).signals([(0, 1)], 275e9):
        assert isinstance(signal.agrees_with, Unknown)


class _Telemetry:
    """One GPU's statuses, one after the other."""

    def __init__(self, *statuses: GpuStatus) -> None:
        self._statuses = iter(statuses)

    def status(self, uuid: str) -> GpuStatus:
        return next(self._statuses)


def health(before: GpuStatus, after: GpuStatus) -> Health:
    gpu: Gpu = bench()._machine.gpus[3]
    telemetry: Telemetry = _Telemetry(before, after)  # type: ignore[assignment]
    return HealthWatch(telemetry, [gpu]).health()


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (QUIET, Health()),
        (replace(QUIET, nvlink_errors=12), Health(risen=("NVLink errors of gpu3 rose by 12",))),
        (replace(QUIET, pcie_replays=1), Health(risen=("PCIe replays of gpu3 rose by 1",))),
        (replace(QUIET, xids=(74,)), Health(xids=("Xid 74 on gpu3",))),
        (
            replace(QUIET, throttle_reasons=("power brake slowdown",)),
            Health(concerns=("gpu3 throttled: power brake slowdown",)),
        ),
        (
            replace(QUIET, nvlink_errors=Unknown("not supported")),
            Health(unread=("NVLink errors of gpu3: not supported",)),
        ),
    ],
)
def test_what_changed_meanwhile_is_told(after: GpuStatus, told: Health) -> None:
    assert health(QUIET, after) == told


def test_what_was_wrong_before_is_not_this_cells_doing() -> None:
    old = replace(QUIET, nvlink_errors=900, xids=(31,), remapped_rows=2)
    assert health(old, old) == Health()


SISTERS = tuple(Cell(Check("peer_copy"), Place.pair(a, b)) for a in range(4) for b in range(4))
UNIFORM = Expectation(Cell(Check("uniformity.peer_copy"), Place((), "NV18")), members=SISTERS)


def compared(slow: Sequence[str], rate: float = 325e9) -> Measurement:
    medians = {
        f"gpu{a}-gpu{b}": 396e9 + a * 1e7 + b * 2e7 for a in range(4) for b in range(4) if a != b
    }
    return Measurement(UNIFORM.cell, reading=Reading(medians=medians | dict.fromkeys(slow, rate)))


def test_a_pair_at_82_percent_of_its_sisters_is_degraded_though_it_clears_the_floor() -> None:
    verdict = judge(compared(["gpu1-gpu2"]), UNIFORM, Health())
    assert (verdict.outcome, verdict.reason) == (Outcome.DEGRADED, Reason.OUTLIER)
    assert verdict.words.startswith("gpu1-gpu2 325.0 GB/s against a median of 396.0 GB/s")
    assert judge(compared([]), UNIFORM, Health()).outcome is Outcome.PASS
    assert judge(compared(["gpu1-gpu2"], 390e9), UNIFORM, Health()).outcome is Outcome.PASS


def test_what_outliers_have_in_common_is_said() -> None:
    row = judge(compared(["gpu1-gpu2", "gpu1-gpu3"]), UNIFORM, Health()).words
    assert row.endswith("all with gpu1 as source")
    column = judge(compared(["gpu0-gpu2", "gpu1-gpu2"]), UNIFORM, Health()).words
    assert column.endswith("all with gpu2 as destination")
    both = judge(compared(["gpu0-gpu2", "gpu2-gpu1"]), UNIFORM, Health()).words
    assert both.endswith("all of gpu2")


def test_too_few_figures_compare_nothing() -> None:
    few = Measurement(UNIFORM.cell, reading=Reading(medians={"gpu0-gpu1": 1.0, "gpu1-gpu0": 9.0}))
    assert judge(few, UNIFORM, Health()).outcome is Outcome.INCONCLUSIVE


@given(st.dictionaries(st.text(max_size=3), st.floats(1e9, 1e12), min_size=1, max_size=20))
def test_outliers_are_never_most_of_the_group(values: dict[str, float]) -> None:
    assert len(outliers(values)) <= len(values) / 2


def test_errors_that_rose_mark_a_good_figure_and_an_xid_fails_it() -> None:
    equal = compared([])
    risen = Health(risen=("NVLink errors of gpu3 rose by 12",))
    assert judge(equal, UNIFORM, risen).reason is Reason.ERRORS_ROSE
    fallen = judge(equal, UNIFORM, Health(xids=("Xid 79 on gpu3",)))
    assert (fallen.outcome, fallen.reason) == (Outcome.FAIL, Reason.XID)
    assert "Xid 79 on gpu3" in fallen.words
