"""The page of causes is the table that runs, and a fault's cause is one of them."""

from __future__ import annotations

from pytest_gpuxfer.model.diagnosis import known_causes
from tests.diagnosis_page import PAGE, page
from tests.fault_table import CAUSES


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.diagnosis_page"


def test_every_fault_of_a_machine_that_runs_has_a_cause_of_the_table() -> None:
    names = [cause.name for cause in known_causes()]
    lacking = [fault for fault, words in CAUSES.items() if not any(words in n for n in names)]
    assert lacking == ["other-product"]  # no run: the operator is told at once
