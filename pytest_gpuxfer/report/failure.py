"""What one red cell says to a person: the figure, the limit, the path, and the next step."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import parse_check
from pytest_gpuxfer.model.diagnosis import Cause, diagnose
from pytest_gpuxfer.model.evidence import conclude
from pytest_gpuxfer.model.expectation import Bound, Limit, Source
from pytest_gpuxfer.model.measurement import Measurement, SignalName
from pytest_gpuxfer.model.statistics import Summary
from pytest_gpuxfer.model.verdict import Reason
from pytest_gpuxfer.report.records import CellLine

WIDTH: Final = 100
_LABEL: Final = 12
_MOST_CAUSES: Final = 3


def rates_of(line: CellLine) -> Summary | None:
    """The cell's rates in bytes per second; None where nothing sound was measured."""
    measurement = line.measurement
    if measurement is None or not measurement.samples or line.verdict.reason is Reason.WRONG_DATA:
        return None
    usable = all(sample.possible for sample in measurement.samples)
    return measurement.rates() if usable else None


def failure_lines(line: CellLine) -> list[str]:
    """The whole block for a red cell, within `WIDTH` columns."""
    headline = f"{line.verdict.outcome.upper()} {line.cell}: {line.verdict.words}"
    block = _wrap(headline, "", "  ")
    for label, text in _facts(line):
        block += _wrap(text, f"  {label:<{_LABEL}}", " " * (_LABEL + 2))
    return block


def _wrap(text: str, first: str, later: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False
    )


def _facts(line: CellLine) -> Iterator[tuple[str, str]]:
    rates, measurement, wanted = rates_of(line), line.measurement, line.expectation
    if rates is not None:
        yield "measured", _describe_samples(rates, line)
    if wanted.limit is not None and measurement is not None and measurement.samples:
        yield from _describe_limit(wanted.limit, line)
    elif wanted.location is not None:
        yield "asked by", str(wanted.location)
    if measurement is None:
        return
    yield from _describe_path(measurement, line)
    if measurement.health.concerns:
        yield "meanwhile", "; ".join(measurement.health.concerns)
    if measurement.crash:
        yield "before", f"{measurement.crash}; this is the second attempt"
    if measurement.discarded:
        yield "discarded", "; ".join(dict.fromkeys(measurement.discarded))
    failure = measurement.failure
    if failure is not None and failure.remedy:
        yield "do", failure.remedy
    causes = diagnose(measurement, wanted, line.verdict)
    for number, cause in enumerate(causes[:_MOST_CAUSES]):
        yield from _describe_cause(cause, "cause" if number == 0 else "or")


def _describe_samples(rates: Summary, line: CellLine) -> str:
    assert line.measurement is not None
    is_latency = line.expectation.cell.check.is_latency
    show = units.format_duration if is_latency else units.format_rate
    summary = (line.measurement.latencies() if is_latency else None) or rates
    how = "behind a gate" if line.measurement.gated else "without a gate"
    count = f"{summary.count} sample{'s' if summary.count > 1 else ''}"
    figures = f"{show(summary.median)}, from {show(summary.least)} to {show(summary.most)}"
    return f"{figures}, {count} {how}"


def _describe_limit(limit: Limit, line: CellLine) -> Iterator[tuple[str, str]]:
    for name, bound in (("floor", limit.floor), ("ceiling", limit.ceiling)):
        if bound is not None:
            yield name, _describe_bound(bound, line, is_duration=name == "ceiling")
    if limit.expect is not None:
        text = _describe_bound(limit.expect, line, is_duration=limit.ceiling is not None)
        yield "expected", f"{text}, tolerance {line.expectation.tolerance:.0%}"
    if limit.unlimited is not None:
        yield "limit", f"none: {limit.unlimited}, {limit.location}"
    if limit.source is not None:
        yield "source", _describe_source(limit.source)


def _describe_bound(bound: Bound, line: CellLine, *, is_duration: bool) -> str:
    value = bound.resolve({parse_check(name): rate for name, rate in line.baselines.items()})
    if value is None:
        return f"{bound.text}, {bound.location}"
    figure = units.format_duration(value) if is_duration else units.format_rate(value)
    return f"{figure}{f' ({bound.text})' if bound.is_relative else ''}, {bound.location}"


def _describe_source(source: Source) -> str:
    provisional = "PROVISIONAL, " if source.provisional else ""
    date = f", {source.date}" if source.date else ""
    return f"{provisional}{source.kind}: {source.where}{date}"


def _describe_path(measurement: Measurement, line: CellLine) -> Iterator[tuple[str, str]]:
    if measurement.signals:
        asked = f"; the profile asks for {line.expectation.path}" if line.expectation.path else ""
        yield "path", f"{conclude(measurement.signals)}{asked}"
    for signal in measurement.signals:
        yield str(signal.name), signal.words
    if not any(signal.name is SignalName.ACCESS for signal in measurement.signals):
        for side in measurement.access:
            yield "access", str(side)


def _describe_cause(cause: Cause, label: str) -> Iterator[tuple[str, str]]:
    yield label, cause.name
    yield "next", cause.next_step
