"""Profiles, waivers and records from elsewhere are data: no bytes crash us, none make a green."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytest_gpuxfer import cli, profiles
from pytest_gpuxfer.model.cell import Cell, Check, Place
from pytest_gpuxfer.model.expectation import Bound, Expectation, Location, NvlinkSpec, Waiver
from pytest_gpuxfer.model.machine import NvlinkPort
from pytest_gpuxfer.model.measurement import Count, Measurement, PathKind, Reading, Sample
from pytest_gpuxfer.model.verdict import Outcome, Verdict, judge
from pytest_gpuxfer.plan import expect
from pytest_gpuxfer.report.failure import failure_lines
from pytest_gpuxfer.report.records import CellLine, RecordError, encode, read
from pytest_gpuxfer.run import Run
from pytest_gpuxfer.transfer.opening import open_machine
from tests.unit.report_cases import CONTROL, MACHINE, PROFILE, WRITE, copy, gpus_seen, header

HERE = Location("site.yaml", 1)
GREEN = (Outcome.PASS, Outcome.DEGRADED)
fuzz = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))

LINES = (
    gpus_seen("GPU T", "GPU T"),
    copy(0, 1, 15e9, PathKind.STAGED, CONTROL),
    copy(0, 1, 95e9),
    copy(1, 0, 20e9, PathKind.STAGED),
)
TOP = encode(header())
KINDS = (
    "machine.gpus", "machine.nvlink", "machine.pcie", "machine.peer_access", "machine.handshake",
    "machine.atomics", "host_to_device", "host_relay", "small_copy_latency", "load_latency.sm",
    "kernel_copy.sm.write.bidirectional", "uniformity.host_to_device",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    0, -1, 1, 0.5, -0.0, 1e308, -1e308, 5e-324, 2**31, 2**63, -(2**63), 2**64, 10**400, "", "\0",
    "a" * 500, "gpu9-gpu9", None, True, [], {}, [0], [None], {"": 0}, math.nan, math.inf, -math.inf,
)  # fmt: skip


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("untrusted")


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value within some JSON."""
    if path:
        yield path
    if isinstance(node, list):
        node = dict(enumerate(node))
    for key, value in node.items() if isinstance(node, dict) else ():
        yield from leaves(value, (*path, key))


@cache
def lines() -> list[str]:
    """A record of every kind of cell, as a simulated machine makes it."""
    opened = open_machine("dgx-a100", ())
    run = Run(opened, profiles.load("a100-nvlink"), None, None, isolated=False, deadline_ns=None)
    first = {wanted.cell.check: wanted for wanted in reversed(run.plan)}
    kinds = [wanted for check, wanted in first.items() if str(check) in KINDS]
    assert len(kinds) == len(KINDS)
    for wanted in kinds:
        run.judge(wanted)
    found = [TOP, *(encode(line) for line in (*LINES, *run.lines.values()))]
    run.finish(0)
    return found


Change = tuple[int, int, Any]


def spoil(changes: list[Change]) -> str:
    """The record with other values at some places: by row, and by place within it."""
    rows = [json.loads(text) for text in lines()]
    for row, place, value in changes:
        node = rows[row % len(rows)]
        found = list(leaves(node))
        path = found[place % len(found)]
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
    return "\n".join(map(json.dumps, rows)) + "\n"


def judge_all(path: Path) -> None:
    """What can be read can be judged and told, and nothing is green that was not measured."""
    complaint = ""
    try:
        record = read(path)
    except RecordError as error:
        complaint = str(error)
    assert complaint.isprintable()
    if complaint:
        return
    for line in record.cells:
        verdict = line.judge_again()
        failure_lines(CellLine(line.cell, line.measurement, line.expectation, verdict))
        assert verdict.outcome not in GREEN or was_measured(line)
    assert cli.main(["judge", str(path)]) in (cli.OK, cli.RED, cli.UNDECIDED)
    predicted = cli.main(["predict", str(path), "--size=1MiB", "--pair=0,1"])
    assert predicted in (cli.OK, cli.OPERATOR)


def was_measured(line: CellLine) -> bool:
    found = line.measurement
    assert found is not None
    if line.expectation.cell.check.of_machine:
        return bool(found.access) or found.reading not in (None, Reading())
    if found.refusal is not None:
        return not line.expectation.cell.check.access
    checked = found.integrity is not None and found.integrity.checked_bytes > 0
    possible = (0 < s.rate_bytes_per_s < math.inf and s.operations > 0 for s in found.samples)
    return checked and bool(found.samples) and all(possible)


@fuzz
@given(st.binary(max_size=300))
@example(b"[" * 100_000)
@example((TOP[:-1] + ', "x": ' + "[" * 100_000).encode())
@example(TOP.encode() + b"\n\xff\xfe\n")
def test_bytes_are_a_record_or_are_told_in_one_line(scratch: Path, data: bytes) -> None:
    path = scratch / "bytes.jsonl"
    path.write_bytes(data)
    judge_all(path)


@fuzz
@given(
    st.lists(
        st.tuples(st.integers(0, 63), st.integers(0, 2**16), st.sampled_from(ODD)),
        min_size=1, max_size=3,
    )
)  # fmt: skip
def test_a_record_with_odd_values_is_told_or_judged_and_never_green_unmeasured(
    scratch: Path, changes: list[Change]
) -> None:
    path = scratch / "odd.jsonl"
    path.write_text(spoil(changes))
    judge_all(path)


# What JSON cannot say, and what a caller in this process still can.
numbers = st.one_of(
    st.floats(), st.sampled_from([0.0, -1.0, 5e-324, 1e308, math.inf, -math.inf, math.nan])
)
whole = st.one_of(st.integers(-1, 2**40), st.just(10**400))
RELAY = Check("host_relay")


@fuzz
@given(
    st.lists(
        st.builds(Sample, numbers, whole, whole, st.lists(numbers, max_size=2).map(tuple)),
        min_size=1, max_size=12,
    ),
    numbers, numbers, numbers, numbers, st.one_of(st.none(), numbers), st.booleans(),
)  # fmt: skip
def test_no_number_in_samples_or_limits_is_green_unless_it_is_inside(
    samples: list[Sample], floor: float, wanted: float, physical: float, tolerance: float,
    relay: float | None, ceiling: bool,
) -> None:  # fmt: skip
    line = LINES[2]
    assert line.measurement is not None
    assert line.expectation.limit is not None
    measurement = replace(line.measurement, samples=tuple(samples))
    bound = Bound(floor, "a bound", HERE, None if relay is None else RELAY)
    limit = replace(
        line.expectation.limit,
        floor=None if ceiling else bound,
        ceiling=bound if ceiling else None,
        expect=Bound(wanted, "a wish", HERE),
    )
    expectation = replace(
        line.expectation, limit=limit, physical=Bound(physical, "a link", HERE), tolerance=tolerance
    )
    baselines = {} if relay is None else {RELAY: relay}
    verdict = judge(measurement, expectation, None, baselines)
    if verdict.outcome in GREEN:
        rates, times = measurement.rates(), measurement.latencies()
        value = bound.resolve(baselines)
        assert rates is not None
        assert times is not None
        assert value is not None
        assert 0 < rates.median <= physical < math.inf
        assert 0 < value < math.inf
        assert times.low <= value if ceiling else rates.high >= value
        assert math.isfinite(wanted * (1 - tolerance))


MACHINE_CELL = Cell(Check("machine.nvlink"), Place.gpu(0))


def judge_reading(reading: Reading, **asked: Any) -> Verdict:
    expectation = Expectation(MACHINE_CELL, **asked)
    return judge(Measurement(MACHINE_CELL, reading=reading), expectation, None)


@pytest.mark.parametrize(
    "reading",
    [
        Reading(),
        Reading(gpus=()),
        Reading(nvlinks=()),
        Reading(answered=Count(0, 0)),
        Reading(added=Count(-5, -5)),
    ],
)
def test_a_reading_of_nothing_is_not_green(reading: Reading) -> None:
    assert judge_reading(reading).outcome is Outcome.INCONCLUSIVE


def test_a_link_rate_that_is_no_number_is_short() -> None:
    ports = (NvlinkPort(0, active=True, rate_bytes_per_s=math.nan, generation=4),)
    spec = NvlinkSpec(4, 1, 25e9, HERE)
    assert judge_reading(Reading(nvlinks=ports), nvlink=spec).outcome is Outcome.FAIL


def test_medians_of_others_are_no_measurement_of_a_copy() -> None:
    line = LINES[2]
    medians = {f"gpu0-gpu{n}": 95e9 for n in range(1, 5)}
    measurement = Measurement(line.expectation.cell, reading=Reading(medians=medians))
    bare = replace(line.expectation, path=None)
    assert judge(measurement, bare, None).outcome is Outcome.ERROR


@fuzz
@given(st.lists(numbers, min_size=4, max_size=6))
def test_cells_are_held_against_each_other_by_rates_alone(medians: list[float]) -> None:
    group = Cell(Check(f"uniformity.{WRITE}"), Place((), "NV4"))
    members = tuple(Cell(WRITE, Place.pair(0, n)) for n in range(1, len(medians) + 1))
    found = {str(cell.place): rate for cell, rate in zip(members, medians, strict=True)}
    measurement = Measurement(group, reading=Reading(medians=found))
    verdict = judge(measurement, Expectation(group, members=members), None)
    if verdict.outcome in GREEN:
        assert all(0 < rate < math.inf for rate in medians)


@fuzz
@given(st.text(max_size=200), st.text(max_size=12))
@example("[z-a]", "9999")
@example("[" * 200, "9999-12-31")
@example("*a" * 100, "9999-12-31")
def test_no_waiver_crashes_or_makes_wrong_data_green(cells: str, until: str) -> None:
    waiver = Waiver(cells, "ops", "RMA", until, HERE)
    line = LINES[2]
    wanted = expect(
        replace(PROFILE, waivers=(waiver,)), MACHINE, line.expectation.cell, "2026-11-30"
    )
    assert wanted.waiver in (None, waiver)
    verdict = judge(None, replace(line.expectation, waiver=wanted.waiver))
    assert verdict.outcome not in GREEN


SITE = """schema: 1
name: site
title: Ours
extends: h200-nvlink
waivers:
  - {cells: %s, owner: %s, reason: %s, until: %s}
"""


@fuzz
@given(st.lists(st.text(max_size=30), min_size=4, max_size=4), st.sampled_from(["%s", '"%s"']))
@example(["[" * 5000, "a", "b", "2999-01-01"], '"%s"')
def test_a_written_waiver_is_read_or_told_in_one_line(
    scratch: Path, words: list[str], quotes: str
) -> None:
    path = scratch / "site.yaml"
    text = SITE % tuple(quotes % word for word in words)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    told = ""
    try:
        (waiver,) = profiles.load(str(path)).waivers
        told = waiver.cells
    except profiles.ProfileError as error:
        told = str(error)
    assert told
    assert told.isprintable()
