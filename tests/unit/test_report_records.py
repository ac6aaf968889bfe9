"""The record: written line by line, read back typed, judged again, never with a NaN."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest

from pytest_gpuxfer.model.measurement import PathKind, Sample
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.report.records import (
    SCHEMA_FILE,
    End,
    RecordError,
    Writer,
    encode,
    json_schema,
    read,
)
from tests.unit.report_cases import CONTROL, copy, gpus_seen, header

CELLS = (
    gpus_seen("GPU T"),
    copy(0, 1, 15e9, PathKind.STAGED, CONTROL),
    copy(0, 1, 20e9, PathKind.STAGED),
    copy(1, 0, 88e9, Unknown("not supported")),
)
END = End(1, {"fail": 1}, expected=4, selected=4, judged=4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A whole record."""
    writer = Writer(tmp_path / "node-run.jsonl")
    for line in (header(), *CELLS, END):
        writer.write(line)
    writer.close()
    return writer.path


def test_what_is_read_is_what_was_written(path: Path) -> None:
    record = read(path)
    assert (record.header, record.cells, record.end) == (header(), CELLS, END)
    assert record.broken is None


def test_unknown_comes_back_as_unknown(path: Path) -> None:
    gpu = read(path).header.machine.gpus[0]  # type: ignore[union-attr]
    assert gpu.fabric == Unknown("not read")


def test_judging_again_gives_the_same(path: Path) -> None:
    lines = read(path).cells
    assert {line.verdict.outcome for line in lines} == {"absent", "pass", "fail", "inconclusive"}
    assert [line.judge_again() for line in lines] == [line.verdict for line in CELLS]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_no_number_that_json_cannot_say(wrong: float) -> None:
    line = copy(0, 1, 88e9, duration_ns=wrong)
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode(line)


def test_each_line_is_on_disk_when_it_was_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "run.jsonl")
    writer.write(header())
    writer.write(CELLS[0])
    record = read(writer.path)  # not closed: as after a crash
    writer.close()
    assert record.cells == CELLS[:1]
    assert record.end is None


def test_last_line_cut_short_is_told_and_the_rest_is_kept(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.rindex("{") + 20], encoding="utf-8")
    record = read(path)
    assert record.cells == CELLS
    assert record.end is None
    assert record.broken == "line 6 is cut short: the run did not end in order"


def test_a_record_is_never_overwritten(path: Path) -> None:
    with pytest.raises(FileExistsError):
        Writer(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it does not begin with a header"),
        ("{}\n", ":1: no line of a record"),
        (encode(END) + "\n", "it does not begin with a header"),
        (encode(header()) + "\n{\n" + encode(END) + "\n", ":2: no line of a record"),
        (encode(header()).replace('"schema": 1', '"schema": 2'), "schema 2, this version reads 1"),
    ],
    ids=["empty", "other JSON", "no header", "broken within", "newer schema"],
)
def test_what_is_no_record_is_told_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecordError) as raised:
        read(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read: No such file"):
        read(tmp_path / "gone.jsonl")


def test_schema_in_the_package_is_current() -> None:
    shipped = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    current = json.loads(json.dumps(json_schema()))
    assert shipped == current, "run tools/build_schema.py"


def test_schema_takes_our_lines_and_no_others(path: Path) -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    for line in path.read_text(encoding="utf-8").splitlines():
        validator.validate(json.loads(line))
    assert not validator.is_valid({"kind": "cell"})
    assert not validator.is_valid({**json.loads(encode(END)), "judged": None})


def test_samples_survive_to_the_last_bit(path: Path) -> None:
    measurement = read(path).cells[2].measurement
    assert measurement is not None
    assert measurement.samples[0] == Sample(64 * 2**20 / 20e9 * 1e9, 64 * 2**20, 1)
