"""Times of transfers from a record: the fit, what it is lent, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuxfer.model.cell import Cell, Place, parse_check
from pytest_gpuxfer.model.expectation import Expectation
from pytest_gpuxfer.model.fit import fit_transfer_time
from pytest_gpuxfer.model.measurement import (
    Corruption,
    Integrity,
    Measurement,
    Mismatch,
    Sample,
)
from pytest_gpuxfer.model.units import GIB, KIB, MIB
from pytest_gpuxfer.model.verdict import judge
from pytest_gpuxfer.predict import PredictionError, forecast_lines, predict
from pytest_gpuxfer.report.records import CellLine, Record
from tests.unit.report_cases import CONTROL_LIMIT, header

SIZES = (KIB, 16 * KIB, 256 * KIB, 4 * MIB, 64 * MIB)
SWEPT, OTHER = Place.pair(0, 1), Place.pair(1, 0)


def at(check: str, place: Place, size: int, time_ns: float, link_class: str = "NV4") -> CellLine:
    cell = Cell(parse_check(check), place, size)
    wanted = Expectation(cell, link_class=link_class, limit=CONTROL_LIMIT)
    measured = Measurement(
        cell, samples=(Sample(time_ns * 4, size * 4, 4),) * 9, integrity=Integrity(size)
    )
    return CellLine(cell.id, measured, wanted, judge(measured, wanted))


def sweep(check: str, startup_ns: float, ns_per_byte: float) -> list[CellLine]:
    return [at(check, SWEPT, size, startup_ns + size * ns_per_byte) for size in SIZES]


def record(*lines: CellLine) -> Record:
    return Record(header(), lines)


@given(
    startup_ns=st.floats(0, 1e6),
    ns_per_byte=st.floats(1e-4, 10),
    sizes=st.sets(st.integers(1, GIB), min_size=2, max_size=8),
)
def test_a_fit_finds_the_line_that_times_lie_on(
    startup_ns: float, ns_per_byte: float, sizes: set[int]
) -> None:
    times = [(size, startup_ns + size * ns_per_byte) for size in sizes]
    fit = fit_transfer_time(times)
    if fit is None:  # sizes so near to each other that rounding hides the slope
        assert max(sizes) / min(sizes) < 1.001
        return
    assert all(fit.predict_ns(size) == pytest.approx(time, rel=1e-3) for size, time in times)
    assert fit.startup_ns >= 0


@given(
    st.lists(st.tuples(st.integers(1, GIB), st.floats(1, 1e12)), min_size=2, max_size=8),
    st.integers(1, GIB),
    st.integers(1, GIB),
)
def test_whatever_was_measured_more_bytes_never_take_less_time(
    points: list[tuple[int, float]], one: int, other: int
) -> None:
    fit = fit_transfer_time(points)
    if fit is not None:
        low, high = sorted((one, other))
        assert 0 <= fit.predict_ns(low) <= fit.predict_ns(high)


def test_the_startup_time_is_not_lost_in_the_noise_of_the_largest_size() -> None:
    times = [(size, 2_500 + size / 300) for size in SIZES]
    size, time_ns = times[-1]
    fit = fit_transfer_time([*times[:-1], (size, time_ns * 1.02)])
    assert fit is not None
    assert fit.startup_ns == pytest.approx(2_500, rel=0.03)


@pytest.mark.parametrize("points", [[], [(KIB, 5.0)], [(KIB, 5.0), (KIB, 6.0)]])
def test_one_size_is_no_line(points: list[tuple[int, float]]) -> None:
    assert fit_transfer_time(points) is None


def test_methods_are_ranked_for_the_size_asked() -> None:
    """By way of the host starts sooner here, and loses where bytes count."""
    cells = (*sweep("peer_copy.write", 9_000, 0.004), *sweep("host_relay", 4_000, 0.04))
    small, large = (predict(record(*cells), SWEPT, size) for size in (4 * KIB, 300 * MIB))
    assert [str(found.check) for found in small.ranked] == ["host_relay", "peer_copy.write"]
    assert [str(found.check) for found in large.ranked] == ["peer_copy.write", "host_relay"]
    assert large.ranked[0].time_ns == pytest.approx(9_000 + 300 * MIB * 0.004, rel=1e-6)


def test_a_pair_measured_at_one_size_keeps_its_own_rate_and_says_whose_startup_it_has() -> None:
    own = at("peer_copy.write", OTHER, 512 * MIB, 5_000 + 512 * MIB * 0.008)
    forecast = predict(record(*sweep("peer_copy.write", 5_000, 0.004), own), OTHER, 256 * MIB)
    (found,) = forecast.ranked
    assert found.time_ns == pytest.approx(5_000 + 256 * MIB * 0.008, rel=1e-6)
    assert found.notes == ("start-up from gpu0-gpu1 (NV4)",)


def test_a_pair_of_another_class_lends_nothing() -> None:
    own = at("peer_copy.write", OTHER, 512 * MIB, 1e7, link_class="PIX")
    forecast = predict(record(*sweep("peer_copy.write", 5_000, 0.004), own), OTHER, MIB)
    assert not forecast.ranked
    assert forecast.unknown == {own.expectation.cell.check: "measured at one size alone"}


def test_wrong_data_predicts_nothing() -> None:
    line = at("peer_copy.write", SWEPT, MIB, 5_000)
    assert line.measurement is not None
    wrong = Mismatch(1, 0, 0, 1, 2, Corruption.OTHER)
    measured = replace(line.measurement, integrity=Integrity(MIB, wrong))
    verdict = judge(measured, line.expectation)
    broken = CellLine(line.cell, measured, line.expectation, verdict)
    with pytest.raises(PredictionError, match="no sound figure of gpu0-gpu1; it has no pair"):
        predict(record(broken), SWEPT, MIB)


@pytest.mark.parametrize(
    "check",
    ["peer_copy.write.no-access", "unified_copy.write.bidirectional", "small_copy_latency"],
)
def test_what_is_no_transfer_of_its_own_is_not_ranked(check: str) -> None:
    cells = (*sweep("peer_copy.write", 5_000, 0.004), *sweep(check, 100, 0.001))
    forecast = predict(record(*cells), SWEPT, MIB)
    assert [found.check for found in forecast.ranked] == [parse_check("peer_copy.write")]


def test_red_cells_are_said() -> None:
    swept = sweep("peer_copy.write", 5_000, 0.004)
    unlimited = [replace(line.expectation, limit=None) for line in swept]
    red = [
        CellLine(line.cell, line.measurement, wanted, judge(line.measurement, wanted))
        for line, wanted in zip(swept, unlimited, strict=True)
    ]
    assert predict(record(*red), SWEPT, MIB).ranked[0].notes == ("some of its cells are red",)


def test_sizes_beyond_those_measured_are_said() -> None:
    cells = sweep("peer_copy.write", 5_000, 0.004)
    lines = list(forecast_lines(predict(record(*cells), SWEPT, GIB), record(*cells)))
    assert lines[0].startswith("1 GiB from gpu0 to gpu1 on node.one (")
    assert "extrapolated from 1 KiB to 64 MiB: all" in lines


def test_an_unknown_pair_is_refused_with_what_is_there() -> None:
    cells = sweep("peer_copy.write", 5_000, 0.004)
    with pytest.raises(PredictionError, match="gpu4-gpu5; it has 1 pairs, the first gpu0-gpu1"):
        predict(record(*cells), Place.pair(4, 5), MIB)
