"""Runs whose measuring process hangs, crashes or finds nothing: what is red, what is written."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpuxfer.report.records import read
from pytest_gpuxfer.run import Run, open_run
from pytest_gpuxfer.settings import read_settings
from tests.plugin.conftest import Run as RunSuites

COPIES = "(gpu0-gpu1 or gpu0-gpu2) and peer_copy.write/ and 512MiB"  # two cells
SIMULATED = ("--gpuxfer-hw=a100-nvlink", "--gpuxfer-sim=dgx-a100")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("crash", "crash: the measuring process was ended by SIGABRT"),
        ("copy-hangs", "hang: *had not ended after 20 s"),
        ("sticky-error", "sticky GPU error: *"),
    ],
)
def test_trouble_of_one_pair_leaves_the_others_judged_and_written(
    suites: RunSuites,
    pytester: pytest.Pytester,
    record_file: Callable[[], Path],
    fault: str,
    words: str,
) -> None:
    result = suites(
        f"--gpuxfer-fault={fault}:gpu0-gpu1", "-k", COPIES, "--gpuxfer-out=out", "--junitxml=j.xml"
    )
    assert result.ret == 6
    assert result.parseoutcomes()["passed"] == 1
    assert result.parseoutcomes()["errors"] == 1
    result.stdout.fnmatch_lines(
        [f"ERROR peer_copy.*/gpu0-gpu1/512MiB: {words}", "*cause*", "*next*"]
    )
    cases = ET.parse(pytester.path / "j.xml").iter("testcase")
    assert Counter(case.find("error") is None for case in cases) == {True: 1, False: 1}
    record = read(record_file())
    assert record.broken is None
    assert record.end is not None
    assert (record.end.judged, record.end.exit_status) == (2, 6)


def test_a_driver_that_is_gone_is_the_reason_of_every_cell(
    suites: RunSuites, record_file: Callable[[], Path]
) -> None:
    options = ("-k", COPIES, "--gpuxfer-out=out", "--gpuxfer-isolate=yes")
    assert suites("--gpuxfer-fault=driver-gone", *options).ret == 6
    record = read(record_file())
    assert [line.verdict.outcome for line in record.cells] == ["error"] * 2
    assert record.end is not None


def test_a_deadline_bounds_the_run(suites: RunSuites, record_file: Callable[[], Path]) -> None:
    result = suites("--gpuxfer-deadline=1us", "-k", COPIES, "--gpuxfer-out=out")
    assert result.ret == 6
    result.stdout.fnmatch_lines(["ERROR peer_copy.*: deadline: not tried: *", "*gpuxfer-deadline*"])
    assert len(read(record_file()).cells) == 2


def isolated(pytester: pytest.Pytester, *options: str) -> bool:
    """Whether a run with these options measures a cell in another process."""
    run: Run = open_run(read_settings(pytester.parseconfig(*SIMULATED, *options)))
    wanted = next(wanted for wanted in run.plan if wanted.cell.check.method == "host_relay")
    assert run.judge(wanted).measurement
    used = run._isolation is not None
    assert (run._bench is None) == used  # a run that isolates makes no context of its own
    run.finish(0)
    return used


def test_simulated_machines_are_isolated_where_a_fault_strikes_the_process(
    pytester: pytest.Pytester,
) -> None:
    assert not isolated(pytester)
    assert not isolated(pytester, "--gpuxfer-fault=link-down")
    assert isolated(pytester, "--gpuxfer-fault=link-down", "--gpuxfer-fault=crash:gpu2-gpu3")
    assert isolated(pytester, "--gpuxfer-isolate=yes")
    assert not isolated(pytester, "--gpuxfer-isolate=no", "--gpuxfer-fault=crash:gpu2-gpu3")


def test_a_tests_own_transfers_stay_in_its_process(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from tests.processes import measuring_children

        def test_own(topology, transfer, thresholds):
            import os

            pair = topology.gpus[:2]
            thresholds.require(transfer.peer_copy(pair, size="512 MiB"))
            assert measuring_children(os.getpid()) == []
        """
    )
    options = (*SIMULATED, "--gpuxfer-isolate=yes")
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=1)
