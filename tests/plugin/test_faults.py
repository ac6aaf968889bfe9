"""Every fault is seen and its cause named, as docs/faults.md says; what is healthy is not red."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.hardware.simulated import fault_kinds
from pytest_gpuxfer.model.verdict import Outcome
from pytest_gpuxfer.transfer import isolation
from tests.fault_table import CAUSES, HEALTHY, PAGE, Row, line_of, rows

_LEAST_NAMED = 0.95


@pytest.fixture(autouse=True)
def _short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "CELL_S", 5.0)
    monkeypatch.setattr(isolation, "_SLOWEST_BYTES_PER_S", 1e12)


def test_every_fault_has_its_cause_or_is_healthy() -> None:
    assert CAUSES.keys() | HEALTHY == {kind.name for kind in fault_kinds()}


@pytest.mark.parametrize("machine", ["h200-alone", "dgx-a100"])  # the page has all of them
def test_every_fault_is_caught_and_its_cause_named(machine: str) -> None:
    found: list[Row] = list(rows(machine))
    assert [row for row in found if row.healthy and row.caught and Outcome(row.outcome).red] == []
    faults = [row for row in found if not row.healthy]
    assert [row for row in faults if not row.caught] == []
    assert sum(row.named for row in faults) >= _LEAST_NAMED * len(faults)
    page = PAGE.read_text(encoding="utf-8").splitlines()
    of_machine = [line for line in page if f"| {machine} |" in line]
    assert of_machine == [line_of(row) for row in found], "python -m tests.fault_table"
