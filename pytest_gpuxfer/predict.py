"""How long a transfer will take, by each method that a record has figures of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import Check, Place
from pytest_gpuxfer.model.fit import TransferTime, fit_transfer_time
from pytest_gpuxfer.report.failure import rates_of
from pytest_gpuxfer.report.records import CellLine, Record

_ONE_WAY: Final = (None, "pipelined")  # patterns of one transfer, alone


class PredictionError(Exception):
    """What the record cannot tell; the message is one line."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A method's expected time for a size; `notes` say what it rests on beside the pair itself."""

    check: Check
    time_ns: float
    rate_bytes_per_s: float
    fit: TransferTime
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Every method that can be predicted, fastest first, and those that cannot, with the reason."""

    size_bytes: int
    place: Place
    ranked: tuple[Prediction, ...]
    unknown: Mapping[Check, str]


@dataclass(frozen=True, slots=True)
class _Point:
    """One sound cell: how long an operation of its size took."""

    place: Place
    link_class: str | None
    size_bytes: int
    time_ns: float
    is_red: bool


def predict(record: Record, place: Place, size_bytes: int) -> Forecast:
    """What `size_bytes` from one GPU to another will take.

    Where the pair was measured at one size, the start-up time comes from another pair of its link
    class, and the prediction says so. Raises PredictionError where the record has no figure of
    the pair.
    """
    if size_bytes <= 0:
        raise PredictionError("a transfer of 0 B takes no time; give a size like 300 MiB")
    points = _points(record.cells)
    at_pair = {check: [p for p in found if p.place == place] for check, found in points.items()}
    at_pair = {check: found for check, found in at_pair.items() if found}
    if not at_pair:
        known = sorted({str(p.place) for found in points.values() for p in found})
        have = f"{len(known)} pairs, the first {known[0]}" if known else "no pair at all"
        raise PredictionError(f"the record has no sound figure of {place}; it has {have}")
    ranked: list[Prediction] = []
    unknown: dict[Check, str] = {}
    for check, own in at_pair.items():
        fitted = _fit(own, points[check])
        if fitted is None:
            unknown[check] = "measured at one size alone"
        else:
            ranked.append(_prediction(check, size_bytes, *fitted))
    ranked.sort(key=lambda prediction: prediction.time_ns)
    return Forecast(size_bytes, place, tuple(ranked), unknown)


def _points(cells: Iterable[CellLine]) -> dict[Check, list[_Point]]:
    """The sound figures of one transfer between two GPUs, by check."""
    points: dict[Check, list[_Point]] = {}
    for line in cells:
        cell, measurement = line.expectation.cell, line.measurement
        check = cell.check
        alone = check.access and not check.is_latency and check.pattern in _ONE_WAY
        if not (alone and cell.place.is_pair and cell.size_bytes) or rates_of(line) is None:
            continue
        assert measurement is not None
        times = measurement.latencies()
        assert times is not None
        point = _Point(
            cell.place,
            line.expectation.link_class,
            cell.size_bytes,
            times.median,
            line.verdict.outcome.red,
        )
        points.setdefault(check, []).append(point)
    return points


def _fit(own: list[_Point], every: list[_Point]) -> tuple[TransferTime, tuple[str, ...]] | None:
    """The times of a pair's own sizes; of one size alone, with another pair's start-up time."""
    red = ("some of its cells are red",) if any(point.is_red for point in own) else ()
    fit = _fit_points(own)
    if fit is not None:
        return fit, red
    lender = _lender(own[0], every)
    lent = _fit_points(lender)
    fit = lent.through(own[0].size_bytes, own[0].time_ns) if lent else None
    if fit is None:
        return None
    return fit, (f"start-up from {lender[0].place} ({lender[0].link_class})", *red)


def _fit_points(points: list[_Point]) -> TransferTime | None:
    return fit_transfer_time((point.size_bytes, point.time_ns) for point in points)


def _lender(own: _Point, every: list[_Point]) -> list[_Point]:
    """The figures of the pair of the same class that has most of them."""
    by_place: dict[Place, list[_Point]] = {}
    for point in every:
        if point.link_class is not None and point.link_class == own.link_class:
            by_place.setdefault(point.place, []).append(point)
    return max(by_place.values(), key=lambda points: len(points), default=[])


def _prediction(
    check: Check, size_bytes: int, fit: TransferTime, notes: tuple[str, ...]
) -> Prediction:
    time_ns = fit.predict_ns(size_bytes)
    if not fit.least_bytes <= size_bytes <= fit.most_bytes:
        measured = f"{units.format_size(fit.least_bytes)} to {units.format_size(fit.most_bytes)}"
        notes = (*notes, f"extrapolated from {measured}")
    return Prediction(check, time_ns, units.rate_of(size_bytes, time_ns), fit, notes)


def forecast_lines(forecast: Forecast, record: Record) -> Iterator[str]:
    """The forecast for a person, fastest first."""
    header = record.header
    simulated = "SIMULATED, " if header.simulated else ""
    source, destination = (f"gpu{gpu}" for gpu in forecast.place.gpus)
    size = units.format_size(forecast.size_bytes)
    yield f"{size} from {source} to {destination} on {header.host} ({simulated}{header.started})"
    notes: dict[str, list[str]] = {}
    for found in forecast.ranked:
        time, rate = units.format_duration(found.time_ns), units.format_rate(found.rate_bytes_per_s)
        startup = units.format_duration(found.fit.startup_ns)
        most = units.format_rate(found.fit.rate_bytes_per_s)
        fit = f"start-up {startup}, at most {most}, fitted within {found.fit.worst_part_off:.0%}"
        yield f"{time:>10}{rate:>12}  {found.check!s:<22}{fit}"
        for note in found.notes:
            notes.setdefault(note, []).append(str(found.check))
    for note, checks in notes.items():
        yield f"{note}: {'all' if len(checks) == len(forecast.ranked) else ', '.join(checks)}"
    why: dict[str, list[str]] = {}
    for check, reason in forecast.unknown.items():
        why.setdefault(reason, []).append(str(check))
    for reason, checks in why.items():
        yield f"not predicted, {reason}: {', '.join(checks)}"
