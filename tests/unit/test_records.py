"""The kept records of two real H200: judged again, and the simulated HGX H200 held against them."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("name", records.NAMES)
def test_and_shows_the_same_evidence(name: str) -> None:
    record = records.records()[records.NAMES.index(name)]
    simulated = records.measured()
    for line in record.cells:
        if line.measurement is not None:
            assert seen(simulated[line.cell]) == seen(line.measurement), line.cell


@pytest.mark.parametrize("name", records.NAMES)
def test_a_record_is_judged_again_the_same(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", str(records.unpacked(name, tmp_path))]) == 0
    assert "152 pass" in capsys.readouterr().out
