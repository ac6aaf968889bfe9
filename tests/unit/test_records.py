"""The kept records of two real H200: judged again, and the simulated HGX H200 held against them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_gpuxfer.cli import main
from pytest_gpuxfer.model.measurement import Measurement
from tests import records
from tests.records import Figure

FIGURES = records.figures()


def test_there_is_something_to_hold_it_against() -> None:
    assert len(FIGURES) >= 90
    assert all(not record.header.simulated for record in records.records())


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_the_simulated_machine_is_within_5_percent(figure: Figure) -> None:
    assert abs(figure.off) <= records.NEAR, figure


def seen(measurement: Measurement) -> object:
    """All that a verdict rests on besides figures."""
    witnesses = {signal.name: signal.agrees_with for signal in measurement.signals}
    access = [(side.mapper, side.owner, side.answer) for side in measurement.access]
    return witnesses, access, measurement.gated, measurement.lacking, measurement.failure


kept = pytest.mark.parametrize("number", range(len(records.NAMES)))


@kept
def test_and_shows_the_same_evidence(number: int) -> None:
    simulated = records.measured()
    for line in records.records()[number].cells:
        if line.measurement is not None and line.measurement.failure is None:
            assert seen(simulated[line.cell]) == seen(line.measurement), line.cell


@kept
def test_a_record_is_judged_again_the_same(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = records.unpacked(records.NAMES[number], tmp_path)
    assert main(["judge", str(record)]) == (0, 6)[number]
    assert records.SUMMARIES[number] in capsys.readouterr().out


@kept
def test_junit_has_a_case_for_every_cell_and_is_red_where_the_record_is(
    number: int, tmp_path: Path
) -> None:
    name = records.NAMES[number].replace(".jsonl.", ".junit.xml.")
    cases = ElementTree.parse(records.unpacked(name, tmp_path)).iter("testcase")
    red = {
        case.attrib["name"]: case.find("error") is not None
        for case in cases
        if case.find("skipped") is None
    }
    lines = records.records()[number].cells
    assert red == {line.cell: line.verdict.outcome.red for line in lines}
