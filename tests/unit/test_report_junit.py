"""Names and properties of a JUnit test case."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuxfer.model.measurement import Corruption, Integrity, Mismatch, PathKind
from pytest_gpuxfer.report.junit import classname, properties
from tests.unit.report_cases import MACHINE, copy, header


def test_host_with_dots_is_one_part_of_the_class() -> None:
    assert classname(header(), "peer_copy") == "gpuxfer.two.node_one.peer_copy"


def test_method_with_a_dot_and_no_profile() -> None:
    name = classname(header(profile=None), "machine.gpus")
    assert name == "gpuxfer.none.node_one.machine_gpus"


def test_figures_carry_their_units() -> None:
    found = dict(properties(header(), copy(0, 1, 88.1234e9)))
    assert found == {
        "verdict": "pass",
        "reason": "inside-limits",
        "rate_gb_per_s": "88.123",
        "samples": "7",
        "floor_gb_per_s": "80.000",
        "floor_at": "thresholds/two.yaml:21",
        "path": "nvlink",
        "gpu0": "GPU-0 0000:00:00.0",
        "gpu1": "GPU-1 0000:01:00.0",
    }


def test_simulated_is_said_in_class_and_properties() -> None:
    simulated = header(replace(MACHINE, simulated="toy", faults=("flipped-bit:gpu0-gpu1",)))
    assert classname(simulated, "peer_copy").startswith("gpuxfer-SIMULATED.")
    found = dict(properties(simulated, copy(0, 1, 20e9, PathKind.STAGED)))
    assert found["SIMULATED"] == "toy flipped-bit:gpu0-gpu1"


def test_wrong_data_has_no_rate() -> None:
    wrong = Mismatch(1, 64, 64, 1, 3, Corruption.FLIPPED_BIT)
    line = copy(0, 1, 88e9, integrity=Integrity(64, wrong))
    assert "rate_gb_per_s" not in dict(properties(header(), line))
