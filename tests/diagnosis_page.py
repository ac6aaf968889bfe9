"""The table of causes for a person: `python -m tests.diagnosis_page` writes docs/diagnosis.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pytest_gpuxfer.model.diagnosis import known_causes
from tests.fault_table import CAUSES

PAGE: Final = Path(__file__).parents[1] / "docs" / "diagnosis.md"
_HEAD: Final = """# Causes, and what to do next

A red or degraded cell names its likely causes, the likeliest first: the first of this table that
fits what was measured, then the others that fit. The last column names faults of simulated machines
that show it: `pytest --pyargs pytest_gpuxfer.suites --gpuxfer-hw=auto --gpuxfer-sim=hgx-h200
--gpuxfer-fault=NAME`. Which fault is told by what: [faults.md](faults.md).

| Cause | Next step | To see it |
| --- | --- | --- |
"""


def page() -> str:
    return _HEAD + "".join(
        f"| {cause.name} | {cause.next_step} | {_shown_by(cause.name)} |\n"
        for cause in known_causes()
    )


def _shown_by(cause: str) -> str:
    return ", ".join(f"`{fault}`" for fault, words in CAUSES.items() if words in cause)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
