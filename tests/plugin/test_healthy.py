"""A few healthy runs of each machine, with and without noise, show nothing red."""

from __future__ import annotations

import pytest

from benchmarks.healthy_runs import healthy_run
from pytest_gpuxfer.hardware.simulated import machine_names


@pytest.mark.parametrize("machine", machine_names())
def test_a_healthy_machine_is_not_failed(machine: str) -> None:
    for seed in (100, 101):  # a quiet one and a noisy one, each with a group of equals
        tally = healthy_run(machine, seed, cells=6)
        assert tally.cells >= 6
        assert tally.red == ()
