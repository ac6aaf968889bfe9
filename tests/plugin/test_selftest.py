"""--gpuxfer-selftest: every gate fails as it should, and one that cannot makes the run red."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_gpuxfer import selftest
from pytest_gpuxfer.model.verdict import Outcome, Reason, Verdict, judge
from pytest_gpuxfer.profiles import load
from pytest_gpuxfer.report.records import read
from pytest_gpuxfer.run import Run as GpuxferRun
from pytest_gpuxfer.transfer.opening import open_machine
from tests.plugin.conftest import Run

BETWEEN_GPUS = ("access-off", "staged", "unread-counters")
ANYWHERE = ("wrong-data", "raised-floor", "lowered-link", "hidden-gpu")


def test_every_gate_fails_on_what_was_spoilt(
    suites: Run, pytester: pytest.Pytester, record_file: Callable[[], Path]
) -> None:
    result = suites("--gpuxfer-selftest", "--gpuxfer-out=out", "--junitxml=j.xml")
    assert result.ret == 0
    outcomes = result.parseoutcomes()
    assert outcomes.keys() == {"passed", "deselected"}
    assert outcomes["passed"] == len(BETWEEN_GPUS + ANYWHERE)
    result.stdout.fnmatch_lines(
        [
            "wrong-data *fails as it should: fail wrong-data",
            "PARTIAL 0 of * cells were selected: no acceptance of the machine",
            "SIMULATED self-test: 7 gates fail as they should; exit status 0",
        ]
    )
    record = read(record_file())
    assert record.cells == ()
    assert [line.gate for line in record.gates] == [*BETWEEN_GPUS, *ANYWHERE]
    given = {line.gate: line.verdict and str(line.verdict.reason) for line in record.gates}
    assert given == {
        "access-off": "no-peer-access",
        "staged": "other-path",
        "unread-counters": "path-not-proven",
        "wrong-data": "wrong-data",
        "raised-floor": "below-floor",
        "lowered-link": "above-physical-link",
        "hidden-gpu": "gpu-missing",
    }
    assert record.end is not None
    assert (record.end.exit_status, record.end.selected) == (0, 0)
    cases = ElementTree.parse(pytester.path / "j.xml").iter("testcase")
    assert {case.get("classname") for case in cases} == {
        "gpuxfer-SIMULATED.a100-nvlink.dgx-a100.selftest"
    }


def on_one_gpu(suites: Run, *options: str) -> pytest.RunResult:
    return suites("--gpuxfer-selftest", *options, profile="h200-single", machine="h200-alone")


def test_gates_that_need_a_pair_are_skipped_on_one_gpu(suites: Run) -> None:
    result = on_one_gpu(suites)
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] == len(ANYWHERE)
    result.stdout.fnmatch_lines(
        [
            *(f"{gate} *not tried: a pair needs two GPUs*" for gate in BETWEEN_GPUS),
            "SIMULATED self-test: 4 gates fail as they should, 3 not tried; exit status 0",
        ]
    )


def without(reason: Reason) -> Callable[..., Verdict]:
    """A judge that has lost one gate, and says pass in its place."""

    def judged(*args: Any) -> Verdict:
        verdict = judge(*args)
        return verdict if verdict.reason is not reason else Verdict(Outcome.PASS, Reason.INSIDE, "")

    return judged


def test_no_gate_holds_once_its_verdict_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    run = GpuxferRun(
        open_machine("dgx-a100", ()), load("a100-nvlink"), None, None,
        isolated=False, deadline_ns=None,
    )  # fmt: skip
    for gate in selftest.GATES:
        monkeypatch.setattr(selftest, "judge", without(gate.reason))
        line = selftest.try_gate(run, gate)
        assert not line.holds
        assert line.words.startswith(f"CANNOT FAIL: {gate.done}")
    run.finish(1)


def test_a_gate_that_cannot_fail_makes_the_run_red(
    suites: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "judge", without(Reason.BELOW_FLOOR))
    result = on_one_gpu(suites)
    assert result.ret == 1
    assert result.parseoutcomes()["failed"] == 1
    words = "self-test: 3 gates fail as they should, 1 does not, 3 not tried; exit status 1"
    result.stdout.fnmatch_lines(["raised-floor *CANNOT FAIL: a copy judged by*", f"*{words}"])


def test_wrong_data_told_of_another_place_is_no_proof(
    suites: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Verdict(Outcome.FAIL, Reason.WRONG_DATA, "wrong, the first at byte 0: expected")
    monkeypatch.setattr(selftest, "judge", lambda *_: elsewhere)
    result = on_one_gpu(suites, "-k", "wrong-data")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["gate wrong-data: FAILS OTHERWISE: *must be fail wrong-data and say *"]
    )


def test_a_machine_that_cannot_be_measured_is_undecided(suites: Run) -> None:
    result = on_one_gpu(suites, "--gpuxfer-fault=sticky-error", "-k", "raised-floor")
    assert result.ret == 6


def test_a_pair_that_the_driver_refuses_fails_of_itself(suites: Run) -> None:
    result = suites(
        "--gpuxfer-selftest",
        "--gpuxfer-fault=peer-access-refused",
        "-k",
        "access or counters",
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "access-off *fails as it should: absent no-peer-access",
            "unread-counters *not tried: peer access could not be enabled",
        ]
    )


def test_without_the_option_it_is_no_part_of_a_run(suites: Run, pytester: pytest.Pytester) -> None:
    listed = suites("--collect-only", "-q", profile="h200-single", machine="h200-alone")
    assert "test_selftest" not in listed.stdout.str()
    file = Path(selftest.__file__).parents[1] / "suites" / "test_selftest.py"
    asked = pytester.runpytest_inprocess(file)
    assert asked.parseoutcomes() == {"skipped": 1}


def test_waived_cells_are_tried_as_any_other(suites: Run, pytester: pytest.Pytester) -> None:
    waiver = '{cells: "*", owner: ops, reason: all of it, until: 2999-01-01}'
    site = f"schema: 1\nname: site\ntitle: Ours\nextends: h200-single\nwaivers: [{waiver}]\n"
    pytester.path.joinpath("site.yaml").write_text(site)
    result = suites("--gpuxfer-selftest", profile="./site.yaml", machine="h200-alone")
    assert result.ret == 0
