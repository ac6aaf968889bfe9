"""The suites on healthy and on broken machines: letters, words, exit status."""

from __future__ import annotations

import pytest

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
            "peer_copy.write 512 MiB, GB/s, source down, destination across",
            "gpu0     27*",
            "Not checked:",
            "*traffic between nodes*",
            f"PARTIAL {PAIR_CELLS} of {CELLS} cells were selected: no acceptance of the machine",
            f"SIMULATED {PAIR_CELLS} pass; exit status 0",
        ]
    )


def test_whole_machine_is_not_partial(suites: Run) -> None:
    result = suites(profile="auto", machine="hgx-h200")
    assert result.ret == 0
    result.assert_outcomes(passed=2138)  # one NUMA node: nothing is far
    result.stdout.no_fnmatch_line("*PARTIAL*")
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
    result.assert_outcomes(errors=17)
    result.stdout.fnmatch_lines(
        ["no hardware profile: run pytest --gpuxfer-hw=NAME (profiles: a100-nvlink, *), or auto"]
    )
