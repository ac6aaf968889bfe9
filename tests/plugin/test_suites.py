"""The suites on healthy and on broken machines: letters, words, exit status."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuxfer.hardware import Hardware
from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.report.records import read
from pytest_gpuxfer.transfer import opening
from tests.plugin.conftest import CELLS, ONE, PAIR, PAIR_CELLS, Run


def test_healthy_machine_is_green_and_partial_is_said(suites: Run) -> None:
    result = suites("-k", PAIR)
    assert result.ret == 0
    result.assert_outcomes(passed=PAIR_CELLS, deselected=CELLS - PAIR_CELLS)
    result.stdout.fnmatch_lines(
        [
            "gpuxfer: SIMULATED machine dgx-a100",
            "gpuxfer: host dgx-a100: 8 x NVIDIA A100-SXM4-80GB, NV12, PCIe Gen4 x16, driver*",
            "gpuxfer: profile a100-nvlink: *thresholds/a100-nvlink.yaml)",
            "SIMULATED machine dgx-a100",
            "gpu0-gpu1, GB/s by size*",
            "peer_copy.write * 275.0 *",
            "Not checked:",
            "*traffic between nodes*",
            f"PARTIAL {PAIR_CELLS} of {CELLS} cells were selected: no acceptance of the machine",
            f"SIMULATED {PAIR_CELLS} pass; exit status 0",
        ]
    )


def test_whole_machine_is_not_partial(suites: Run) -> None:
    result = suites(profile="auto", machine="h200-alone")
    assert result.ret == 0
    result.assert_outcomes(passed=20, skipped=11)
    result.stdout.no_fnmatch_line("*PARTIAL*")
    result.stdout.fnmatch_lines(["gpuxfer: auto: h200-single: it alone fits 1 x NVIDIA H200*"])


def test_every_check_is_green_on_a_healthy_machine(suites: Run) -> None:
    """One pair, one GPU and all together: a whole run has more of the same."""
    chosen = "gpu0-gpu1/ or /gpu0/ or /all"
    result = suites("-k", chosen, profile="auto", machine="hgx-h200")
    assert result.ret == 0
    assert set(result.parseoutcomes()) == {"passed", "deselected"}
    result.stdout.fnmatch_lines(["gpuxfer: auto: h200-nvlink: it alone fits 8 x NVIDIA H200*"])


def test_cells_run_in_the_order_of_the_plan(suites: Run) -> None:
    """Peer access is enabled once, after all that is measured without it."""
    result = suites("-k", "gpu0-gpu1 and (machine or peer_copy or unified_copy)", "-v")
    ids = [line.split("[")[1].split("]")[0] for line in result.outlines if " PASSED " in line]
    access_on = ids.index("machine.peer_access/gpu0-gpu1")
    assert sum(".no-access" in cell for cell in ids[:access_on]) == 6
    assert {cell.split("/")[0] for cell in ids[access_on + 1 :]} >= {
        "machine.handshake",
        "peer_copy.read",
    }
    assert not any(".no-access" in cell for cell in ids[access_on:])


def test_every_planned_cell_is_collected_by_exactly_one_test(suites: Run) -> None:
    result = suites("--collect-only", "-q")
    ids = [line.split("[")[1].removesuffix("]") for line in result.outlines if "::" in line]
    assert len(ids) == len(set(ids)) == CELLS


@pytest.mark.parametrize(
    ("fault", "cells", "words"),
    [
        (
            "link-down:gpu3/link7",
            "nvlink/gpu3",
            ["FAIL machine.nvlink/gpu3: 11 of 12 NVLinks are up (down: link 7)", "*asked by*:*"],
        ),
        (
            "peer-access-refused:gpu0-gpu1",
            ONE,
            ["ABSENT peer_copy.write/gpu0-gpu1/512MiB: no peer access: *", "*nvidia-smi topo*"],
        ),
        (
            "staged-despite-access:gpu0-gpu1",
            ONE,
            [
                "FAIL peer_copy.write/gpu0-gpu1/512MiB: the bytes took staged*",
                "*measured*GB/s, from * samples*",
                "*floor*240.0 GB/s (80% of nvlink), *a100-nvlink.yaml:*",
                "*path*staged; the profile asks for nvlink",
                "*counters*NVLink carried 0 B of *out of gpu0*",
                "*cause*the driver does not use NVLink*",
                "*next*",
                "gpu0  *[*]19*",
            ],
        ),
        (
            "flipped-bit:gpu0-gpu1",
            ONE,
            ["FAIL peer_copy.write/*: wrong data, its rate is void: *", "*! wrong data*"],
        ),
    ],
)
def test_fault_is_red_with_its_next_step(
    suites: Run, fault: str, cells: str, words: list[str]
) -> None:
    result = suites(f"--gpuxfer-fault={fault}", "-k", cells)
    assert result.ret == 1
    result.assert_outcomes(failed=1, deselected=CELLS - 1)
    result.stdout.fnmatch_lines([f"*SIMULATED machine dgx-a100, faults: {fault}", *words])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_degraded_passes_with_a_letter_of_its_own(suites: Run) -> None:
    chosen = ("--gpuxfer-fault=link-down:gpu1/link7", "-k", ONE)
    result = suites(*chosen)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_peer_copy.py d *", "gpu0 *d25*", "*1 degraded*status 0"])


def test_degraded_fails_where_the_operator_says_so(suites: Run) -> None:
    chosen = ("--gpuxfer-fault=link-down:gpu1/link7", "-k", ONE)
    result = suites("--gpuxfer-degraded=fail", *chosen)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["DEGRADED peer_copy.write/gpu0-gpu1/512MiB: *below*expected*"])


def test_many_red_cells_are_told_briefly_after_the_tenth(suites: Run) -> None:
    result = suites("--gpuxfer-fault=link-down:gpu3", "-k", "peer_access and gpu3")
    result.assert_outcomes(failed=14, deselected=CELLS - 14)
    assert sum(line.startswith("ABSENT machine.peer_access") for line in result.outlines) == 10
    assert sum(line.startswith("no peer access: ") for line in result.outlines) == 4


SITE = """
schema: 1
name: site
title: One of ours
extends: a100-nvlink
"""


def test_unproven_path_is_inconclusive_and_an_error(suites: Run, pytester: pytest.Pytester) -> None:
    proof = "classes: {NV12: {path: nvlink, peer_access: required, proof: [counters, latency]}}\n"
    pytester.path.joinpath("site.yaml").write_text(SITE + proof)
    chosen = ("-k", ONE, "--junitxml=j.xml")
    result = suites(*chosen, profile="./site.yaml")
    assert result.ret == 6
    result.assert_outcomes(errors=1, deselected=CELLS - 1)
    result.stdout.fnmatch_lines(
        [
            "*test_peer_copy.py I *",
            "INCONCLUSIVE peer_copy.write/gpu0-gpu1/512MiB: the path is not proven to be nvlink: *",
            "gpu0  *[?]27*",
            "SIMULATED 1 inconclusive; exit status 6",
        ]
    )
    (case,) = ET.parse(pytester.path / "j.xml").iter("testcase")
    assert case.find("error") is not None
    assert case.find("failure") is None


def test_waived_cell_is_a_skip_with_its_reason(suites: Run, pytester: pytest.Pytester) -> None:
    waiver = (
        "waivers:\n  - cells: machine.nvlink/gpu3\n    owner: ops\n    reason: board is ordered\n"
        "    until: 2999-01-01\n"
    )
    pytester.path.joinpath("site.yaml").write_text(SITE + waiver)
    fault = "--gpuxfer-fault=link-down:gpu3/link7"
    result = suites(fault, "-k", "nvlink/gpu3", "-rs", profile="./site.yaml")
    assert result.ret == 0
    result.assert_outcomes(skipped=1, deselected=CELLS - 1)
    result.stdout.fnmatch_lines(["*1 waived*status 0", "SKIPPED*waived: 11 of 12 NVLinks are up*"])


def test_what_the_profile_does_not_have_is_a_skip_with_its_reason(
    suites: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def discover_single(hardware: Hardware) -> Machine:
        machine = discover(hardware)
        return replace(machine, gpus=(replace(machine.gpus[0], nvlinks=()),))

    monkeypatch.setattr(opening, "discover", discover_single)
    result = suites("-rs", profile="auto", machine="hgx-h200")
    assert result.ret == 0
    result.assert_outcomes(passed=20, skipped=11)
    words = "SKIPPED*not_expected: profile h200-single has no cells of peer_copy"
    result.stdout.fnmatch_lines(["SIMULATED 20 pass; exit status 0", words])


def test_missing_gpus_are_absent_and_a_declared_part_is_not(
    suites: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def discover_two(hardware: Hardware) -> Machine:
        machine = discover(hardware)
        return replace(machine, gpus=machine.gpus[:2])

    monkeypatch.setattr(opening, "discover", discover_two)
    result = suites("-k", "machine.gpus")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["ABSENT machine.gpus/all: 2 of 8 GPUs are there"])
    result = suites("-k", "machine.gpus", "--gpuxfer-gpus=visible")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["gpuxfer: PARTIAL: 2 of 8 GPUs, as declared", "PARTIAL machine: 2 of 8 GPUs, as declared"]
    )


def test_one_gpu_makes_no_pair_and_says_so(
    suites: Run, monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester
) -> None:
    def discover_one(hardware: Hardware) -> Machine:
        machine = discover(hardware)
        return replace(machine, gpus=machine.gpus[:1], ancestors={}, peer_access_offered={})

    monkeypatch.setattr(opening, "discover", discover_one)
    result = suites("-k", "no-gpus", "-rs")
    assert result.ret == 6
    result.stdout.fnmatch_lines(["SKIPPED*absent: 1 of 8 GPUs are here"])
    pytester.makepyfile("def test(gpu_pair): ...")
    result = pytester.runpytest_inprocess("--gpuxfer-sim=dgx-a100")
    assert result.ret == 6
    result.stdout.fnmatch_lines(["a pair needs two GPUs, and this process sees one"])


def test_interrupted_run_leaves_a_record_that_says_so(
    pytester: pytest.Pytester, record_file: Callable[[], Path]
) -> None:
    pytester.makepyfile(
        impatient="""
        def pytest_runtest_setup(item):
            if "device_to_host" in item.name:
                raise KeyboardInterrupt
        """
    )
    result = pytester.runpytest_subprocess(
        "-p", "impatient", "--pyargs", "pytest_gpuxfer.suites", "--gpuxfer-hw=a100-nvlink",
        "--gpuxfer-sim=dgx-a100", "--gpuxfer-out=out",
        "-k", "host_to_device/gpu0/ or device_to_host/gpu0/",
    )  # fmt: skip
    assert result.ret == pytest.ExitCode.INTERRUPTED
    end = read(record_file()).end
    assert end is not None
    assert (end.exit_status, end.selected, end.judged) == (2, 2, 1)


def test_nothing_selected_is_not_green(suites: Run) -> None:
    result = suites("-k", "nothing_is_called_so")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["SIMULATED nothing was judged; exit status 5"])


def test_selected_but_skipped_by_someone_is_not_green(
    suites: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        skipper="""
        import pytest

        def pytest_collection_modifyitems(items):
            items[0].add_marker(pytest.mark.skip(reason="not today"))
        """
    )
    pytester.syspathinsert()
    result = suites("-p", "skipper", "-k", "host_to_device and (gpu0 or gpu1)")
    assert result.ret == 6
    result.stdout.fnmatch_lines(["NOT JUDGED *"])


def test_xfail_does_not_make_a_red_machine_green(suites: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        forgiver="""
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.xfail)
        """
    )
    pytester.syspathinsert()
    fault = "--gpuxfer-fault=link-down:gpu3/link7"
    assert suites("-p", "forgiver", fault, "-k", "nvlink/gpu3").ret == 1


def test_collect_only_judges_nothing_and_is_no_failure(
    suites: Run, pytester: pytest.Pytester
) -> None:
    result = suites(
        "--collect-only", "-q", "-k", "host_relay/gpu0-gpu1/128MiB", "--gpuxfer-out=out"
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*::test_host_relay[[]host_relay/gpu0-gpu1/128MiB]"])
    assert not list(pytester.path.glob("out/*"))


def test_setup_plan_judges_nothing_and_is_no_failure(suites: Run) -> None:
    assert suites("--setup-plan", "-k", "host_relay/gpu0-gpu1/128MiB").ret == 0


def test_suites_without_a_profile_say_what_to_type(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--pyargs", "pytest_gpuxfer.suites")
    assert result.ret == 6
    result.assert_outcomes(errors=18)
    result.stdout.fnmatch_lines(
        ["no hardware profile: run pytest --gpuxfer-hw=NAME (profiles: a100-nvlink, *), or auto"]
    )
