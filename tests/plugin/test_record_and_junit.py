"""What a run leaves behind: the record, valid and judged again; JUnit, parsed."""

from __future__ import annotations

import errno
import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from pytest_gpuxfer.cli import main
from pytest_gpuxfer.report.records import SCHEMA_FILE, Line, Writer, read
from tests.plugin.conftest import CELLS, ONE, PAIR, PAIR_CELLS, Run

Find = Callable[[], Path]


def test_record_is_valid_and_judged_again_says_the_same(suites: Run, record_file: Find) -> None:
    fault = "--gpuxfer-fault=staged-despite-access:gpu0-gpu1"
    suites(fault, "-k", f"{PAIR} or machine.nvlink or machine.pcie", "--gpuxfer-out=out")
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    for text in record_file().read_text(encoding="utf-8").splitlines():
        validator.validate(json.loads(text))
    record = read(record_file())
    assert record.broken is None
    assert len(record.cells) == PAIR_CELLS + 16
    # Staged copies hold whoever enqueues them, and so end before the loads beside them.
    by_cell = {line.cell: line.verdict.outcome for line in record.cells}
    assert by_cell.pop("load_latency.sm.under-load/gpu0-gpu1/512KiB") == "inconclusive"
    assert set(by_cell.values()) == {"pass", "fail"}
    for line in record.cells:
        assert line.judge_again() == line.verdict, line.cell


def test_record_says_what_was_expected_selected_and_judged(suites: Run, record_file: Find) -> None:
    suites("-k", PAIR, "--gpuxfer-fault=link-down:gpu5/link1", "--gpuxfer-out=out")
    record = read(record_file())
    header, end = record.header, record.end
    assert header.simulated == "dgx-a100"
    assert header.faults == ("link-down:gpu5/link1",)
    assert len(header.expected) == CELLS
    assert header.selected == PAIR_CELLS
    assert header.profile is not None
    assert all(limit.location.line > 0 for limit in header.profile.limits)
    assert end is not None
    assert (end.exit_status, end.expected) == (0, CELLS)
    assert end.selected == end.judged == PAIR_CELLS
    assert end.counts == {"pass": PAIR_CELLS}


def test_a_cell_pulls_what_its_limit_rests_on(
    suites: Run, record_file: Find, pytester: pytest.Pytester
) -> None:
    pytester.path.joinpath("site.yaml").write_text(
        "schema: 1\nname: site\ntitle: One of ours\nextends: a100-nvlink\n"
        "limits:\n"
        "  - check: peer_copy\n    floor: 3x host_relay\n    sizes: 64 MiB to 1 GiB\n"
        "    source: {kind: derived, where: what peer access is for}\n"
    )
    chosen = ("-k", ONE, "--gpuxfer-out=out")
    result = suites(*chosen, profile="./site.yaml")
    assert result.ret == 0
    record = read(record_file())
    assert {line.cell: line.selected for line in record.cells} == {
        "peer_copy.write/gpu0-gpu1/512MiB": True,
        "host_relay/gpu0-gpu1/128MiB": False,
    }
    (line,) = (line for line in record.cells if line.selected)
    assert line.baselines.keys() == {"host_relay"}
    assert line.judge_again() == line.verdict


def test_junit_names_cells_and_tells_errors_from_failures(
    suites: Run, pytester: pytest.Pytester
) -> None:
    fault = "--gpuxfer-fault=staged-despite-access:gpu0-gpu1"
    suites(
        fault, "-k", "gpu0-gpu1/512MiB and write", "--junitxml=j.xml", "-o", "junit_family=xunit2"
    )
    cases = {case.get("name"): case for case in ET.parse(pytester.path / "j.xml").iter("testcase")}
    case = cases["peer_copy.write/gpu0-gpu1/512MiB"]
    assert case.get("classname") == "gpuxfer-SIMULATED.a100-nvlink.dgx-a100.peer_copy"
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "the bytes took staged, the profile asks for nvlink"
    assert "a100-nvlink.yaml:" in (failure.text or "")
    found = {p.get("name"): p.get("value") or "" for p in case.iter("property")}
    assert found["verdict"] == "fail"
    assert found["reason"] == "other-path"
    assert found["path"] == "staged"
    assert found["floor_gb_per_s"] == "240.000"
    assert 19 < float(found["rate_gb_per_s"]) < 21
    assert found["SIMULATED"] == "dgx-a100 staged-despite-access:gpu0-gpu1"
    assert found["gpu1"].startswith("GPU-")


@pytest.mark.parametrize("written", [0, 1, 2], ids=["header", "cell", "end"])
def test_disk_that_fills_up_costs_the_record_and_is_not_green(
    suites: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    left = iter(range(written))

    def write(writer: Writer, line: Line) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Writer, "write", write)
    result = suites("-k", "host_relay/gpu0-gpu1/128MiB", "--gpuxfer-out=out")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.assert_outcomes(passed=1, deselected=CELLS - 1)
    result.stdout.fnmatch_lines(
        [
            "record: *.jsonl ends before the run does: No space left on device; make room*",
            "SIMULATED 1 pass; exit status 3",
        ]
    )


def test_a_record_of_the_suites_predicts_and_is_judged_again(
    suites: Run, record_file: Find, capsys: pytest.CaptureFixture[str]
) -> None:
    suites("-k", "gpu0-gpu1/ and (peer_copy.write or host_relay)", "--gpuxfer-out=out")
    capsys.readouterr()
    assert main(["predict", str(record_file()), "--size", "300 MiB", "--pair", "0,1"]) == 0
    title, fastest, *_ = capsys.readouterr().out.splitlines()
    assert title.startswith("300 MiB from gpu0 to gpu1 on dgx-a100 (SIMULATED, ")
    assert "peer_copy.write" in fastest
    assert "start-up 2." in fastest
    assert main(["judge", str(record_file())]) == 0
    assert "recorded as" not in capsys.readouterr().out
