"""The record: one JSON Lines file a host and run, flushed line by line, read back typed.

A header, a line for each cell or for each gate of a self-test, and a closing line. Every report
is a view of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from pytest_gpuxfer.model.cell import CellError, parse_check
from pytest_gpuxfer.model.expectation import Expectation, Profile
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import Failure, Measurement
from pytest_gpuxfer.model.verdict import Outcome, Reason, Verdict, judge

SCHEMA: Final = 1
SCHEMA_FILE: Final = Path(__file__).with_name("record.schema.json")


class RecordError(Exception):
    """A file that is no record of ours; the message is one line, safe to print."""

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else "?" for c in message))


class Header(msgspec.Struct, frozen=True, tag="header", tag_field="kind"):
    """What was known before the first byte moved. The profile says file and line of each limit."""

    schema: int
    tool: str  # our name and version
    started: str  # UTC, ISO 8601
    host: str
    machine: Machine | None  # None: it could not be opened, `failure` says why
    failure: Failure | None
    profile: Profile | None  # None: none was named, or `auto` found no machine to choose by
    chosen: str | None  # why `auto` took this profile
    expected: tuple[str, ...]  # cell ids of the plan
    selected: int
    simulated: str | None = None
    faults: tuple[str, ...] = ()

    @property
    def profile_name(self) -> str:
        return self.profile.name if self.profile else "none"


class CellLine(msgspec.Struct, frozen=True, tag="cell", tag_field="kind"):
    """One cell. `measurement` is None where none was to be made; baselines in bytes per second."""

    cell: str
    measurement: Measurement | None
    expectation: Expectation
    verdict: Verdict
    baselines: Mapping[str, float] = {}
    selected: bool = True  # False: measured because another cell's limit rests on it

    def judge_again(self) -> Verdict:
        """The verdict that today's rules give on what was recorded."""
        baselines = {parse_check(check): rate for check, rate in self.baselines.items()}
        health = self.measurement.health if self.measurement else None
        return judge(self.measurement, self.expectation, health, baselines)


class GateLine(msgspec.Struct, frozen=True, tag="gate", tag_field="kind"):
    """One gate of the self-test. It is judged by its measurement alone, without health.

    The verdict must be one of `outcomes` by `reason`, with `says` among its words.
    """

    gate: str
    done: str  # how the measurement or what is asked of it was spoilt
    outcomes: tuple[Outcome, ...]
    reason: Reason
    says: str = ""
    skipped: str | None = None  # why it was not tried; the fields below are None then
    measurement: Measurement | None = None
    expectation: Expectation | None = None
    verdict: Verdict | None = None

    @property
    def holds(self) -> bool:
        """Whether the gate failed as it should."""
        given = self.verdict
        return (
            given is not None
            and given.outcome in self.outcomes
            and given.reason is self.reason
            and self.says in given.words
        )

    @property
    def wanted(self) -> str:
        """The verdict that it must get, for a person."""
        says = f" and say {self.says!r}" if self.says else ""
        return f"{' or '.join(self.outcomes)} {self.reason}{says}"

    @property
    def words(self) -> str:
        """What became of it, for a person."""
        if self.verdict is None:
            return f"not tried: {self.skipped}"
        if self.holds:
            return f"fails as it should: {self.verdict.outcome} {self.verdict.reason}"
        given = f"{self.verdict.outcome} {self.verdict.reason}: {self.verdict.words}"
        what = "FAILS OTHERWISE" if self.verdict.outcome.red else "CANNOT FAIL"
        return f"{what}: {self.done} must be {self.wanted}, and is {given}"


class End(msgspec.Struct, frozen=True, tag="end", tag_field="kind"):
    """How the run came out. `counts` is by outcome, over the cells judged."""

    exit_status: int
    counts: Mapping[str, int]
    expected: int
    selected: int
    judged: int


Line = Header | CellLine | GateLine | End


@dataclass(frozen=True, slots=True)
class Record:
    """A record as read, or as it stands in a run. `broken` tells of a last line cut short."""

    header: Header
    cells: tuple[CellLine, ...]
    end: End | None = None
    broken: str | None = None
    gates: tuple[GateLine, ...] = ()  # of a run that is a self-test


def count_outcomes(cells: Sequence[CellLine]) -> dict[str, int]:
    """How many cells came to each outcome, in the order of Outcome; those with none left out."""
    found = Counter(line.verdict.outcome for line in cells)
    return {str(outcome): found[outcome] for outcome in Outcome if found[outcome]}


def encode(line: Line) -> str:
    """One line of JSON. Raises ValueError for a number that JSON has no word for."""
    # msgspec would write NaN as null, and a reader would take it for a value not given.
    return json.dumps(msgspec.to_builtins(line, str_keys=True), allow_nan=False)


class Writer:
    """Appends lines to a new file and flushes each: what a node knew outlives it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("xb", buffering=0)  # nothing is left to fail at the closing

    def write(self, line: Line) -> None:
        """Raises OSError where the disk is full or gone."""
        rest = (encode(line) + "\n").encode()
        while rest:
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Record:
    """A record from its file; a last line cut short is told in `broken`. Raises RecordError."""
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    lines: list[Line] = []
    broken = None
    for number, text in enumerate(texts, start=1):
        try:
            lines.append(msgspec.json.decode(text, type=Line))
        except (msgspec.MsgspecError, RecursionError) as error:
            if number < len(texts) or number == 1:
                raise RecordError(f"{path}:{number}: no line of a record: {error}") from None
            broken = f"line {number} is cut short: the run did not end in order"
    if not lines or not isinstance(lines[0], Header):
        raise RecordError(f"{path}: no record: it does not begin with a header")
    if lines[0].schema != SCHEMA:
        raise RecordError(f"{path}: schema {lines[0].schema}, this version reads {SCHEMA}")
    cells = tuple(line for line in lines if isinstance(line, CellLine))
    _check_names(path, lines[0], cells)
    gates = tuple(line for line in lines if isinstance(line, GateLine))
    end = lines[-1] if isinstance(lines[-1], End) else None
    return Record(lines[0], cells, end, broken, gates)


def _check_names(path: Path, header: Header, cells: Sequence[CellLine]) -> None:
    """Hold what types cannot say: checks by name, and GPUs by their place. Raises RecordError."""
    gpus = header.machine.gpus if header.machine else ()
    if [gpu.index for gpu in gpus] != list(range(len(gpus))):
        raise RecordError(f"{path}:1: no line of a record: its GPUs are not in order")
    try:
        for name in (name for line in cells for name in line.baselines):
            parse_check(name)
    except CellError as error:
        raise RecordError(f"{path}: no record: {error}") from None


def json_schema() -> dict[str, Any]:
    """JSON Schema of one line of the record, from the types."""
    schema = msgspec.json.schema(Line)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
