"""Runs of the suites on simulated machines, from an empty folder as an operator has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., pytest.RunResult]
PAIR = "gpu0-gpu1/"  # -k: the copies of one ordered pair, and its sizes
PAIR_CELLS = 68
CELLS = 2351  # of the whole machine
ONE = "peer_copy.write/gpu0-gpu1/512MiB"  # -k: one of them


@pytest.fixture
def suites(pytester: pytest.Pytester) -> Run:
    """Run the installed suites on a simulated DGX A100, with more options as given."""

    def run(
        *options: str, profile: str = "a100-nvlink", machine: str = "dgx-a100"
    ) -> pytest.RunResult:
        return pytester.runpytest_inprocess(
            "--pyargs",
            "pytest_gpuxfer.suites",
            f"--gpuxfer-hw={profile}",
            f"--gpuxfer-sim={machine}",
            *options,
        )

    return run


@pytest.fixture
def record_file(pytester: pytest.Pytester) -> Callable[[], Path]:
    """The one record of a run with --gpuxfer-out=out."""

    def find() -> Path:
        (path,) = (pytester.path / "out").glob("*.jsonl")
        return path

    return find
