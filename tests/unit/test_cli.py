"""The command: what it prints, and its exit status; the operator's mistakes are one line."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pytest_gpuxfer.cli import main
from pytest_gpuxfer.hardware.simulated import fault_lines, machine_names
from pytest_gpuxfer.model.measurement import PathKind
from pytest_gpuxfer.model.verdict import Outcome
from pytest_gpuxfer.report.records import CellLine, End, Line, encode
from tests.unit.report_cases import copy, counts, header

Capture = pytest.CaptureFixture[str]


def write(folder: Path, *cells: CellLine, end: bool = True) -> str:
    path = folder / "host.jsonl"
    closing: list[Line] = [End(0, counts(*cells), 4, len(cells), len(cells))] if end else []
    path.write_text("".join(f"{encode(line)}\n" for line in (header(), *cells, *closing)))
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND"),
        (["prdict"], "invalid choice"),
        (["topo", "--sim", "dgx-a10"], "dgx-a100"),
        (["topo", "--fault", "link-down"], "add --sim=MACHINE"),
        (["topo", "--sim", "dgx-a100", "--fault", "link-dwn"], "link-down"),
        (["lint", "a100-nvlnk"], "did you mean 'a100-nvlink'"),
        (["judge", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        (["predict", "nowhere.jsonl", "--size", "1 MiB", "--pair", "0,1"], "cannot be read"),
        (["predict", "RECORD", "--size", "300", "--pair", "0,1"], "the unit is missing"),
        (["predict", "RECORD", "--size", "1 MiB", "--pair", "0,0"], "no pair of two GPUs"),
        (["predict", "RECORD", "--size", "1 MiB", "--pair", "gpu0"], "no pair of two GPUs"),
        (["predict", "RECORD", "--size", "1 MiB", "--pair", "6,7"], "no sound figure of gpu6-gpu7"),
    ],
)
def test_a_mistake_is_one_line_and_status_4(
    tmp_path: Path, capsys: Capture, arguments: list[str], words: str
) -> None:
    path = write(tmp_path, copy(0, 1, 88e9))
    given = [path if argument == "RECORD" else argument for argument in arguments]
    try:
        status: object = main(given)
    except SystemExit as error:
        status = error.code
    out, err = capsys.readouterr()
    assert (status, out) == (4, "")
    (line,) = err.splitlines()
    assert line.startswith("gpuxfer")
    assert words in line


def test_topo_draws_the_machine(capsys: Capture) -> None:
    assert main(["topo", "--sim", "dgx-a100", "--fault", "link-down:gpu1/link2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "SIMULATED machine dgx-a100, faults: link-down:gpu1/link2"
    assert "gpu1  0000:0f:00.0  NVIDIA A100-SXM4-80GB, 11 of 12 NVLinks up" in lines[3]
    assert lines[-8].split() == ["gpu0", "NV11", *["NV12"] * 6]


def test_lists_name_what_can_be_simulated(capsys: Capture) -> None:
    assert main(["faults"]) == main(["machines"]) == 0
    assert capsys.readouterr().out.splitlines() == [*fault_lines(), *machine_names()]


def test_lint_passes_a_shipped_profile_and_lists_what_has_no_limit(
    tmp_path: Path, capsys: Capture
) -> None:
    assert main(["lint", "h200-nvlink"]) == 0
    assert "thresholds/h200-nvlink.yaml: " in capsys.readouterr().out
    path = tmp_path / "bare.yaml"
    path.write_text(
        "schema: 1\nname: bare\ntitle: Hardly a limit\nmatch: {gpus: [T]}\ngpus: 1\ntolerance: 5%\n"
        "links: {nvlink: none, pcie: none}\nclasses: none\npairs: none\n"
        "limits:\n  - {check: host_relay, not_expected: one GPU has no peer}\n"
    )
    assert main(["lint", str(path)]) == 4
    assert f"{path}: local_copy has no limit; " in capsys.readouterr().out


def test_judging_a_record_again_gives_its_verdicts_and_status(
    tmp_path: Path, capsys: Capture
) -> None:
    assert main(["judge", write(tmp_path, copy(0, 1, 88e9))]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 pass"
    assert main(["judge", write(tmp_path, copy(0, 1, 20e9, PathKind.STAGED))]) == 1
    assert "FAIL peer_copy.write/gpu0-gpu1/64MiB" in capsys.readouterr().out


def test_a_record_that_was_tampered_with_is_judged_by_its_measurement(
    tmp_path: Path, capsys: Capture
) -> None:
    red = copy(0, 1, 20e9, PathKind.STAGED)
    green = msgspec.structs.replace(red, verdict=replace(red.verdict, outcome=Outcome.PASS))
    assert main(["judge", write(tmp_path, green)]) == 1
    assert f"{red.cell}: recorded as pass, judged fail now" in capsys.readouterr().out


def test_a_record_that_was_not_closed_is_not_green(tmp_path: Path, capsys: Capture) -> None:
    assert main(["judge", write(tmp_path, copy(0, 1, 88e9), end=False)]) == 6
    assert "NOT CLOSED: the run did not end in order" in capsys.readouterr().out


def test_a_reader_that_has_enough_gets_no_traceback_and_no_green() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = "from pytest_gpuxfer.cli import main; raise SystemExit(main(['faults']))"
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, "")
