"""The figures of a run: matrices for what matters most or is red, one line a check for the rest."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import Check, Place
from pytest_gpuxfer.model.fit import fit_transfer_time
from pytest_gpuxfer.model.verdict import Outcome, Reason
from pytest_gpuxfer.report.failure import WIDTH, rates_of
from pytest_gpuxfer.report.records import CellLine, count_outcomes

NOT_RUN: Final = "."
MARKS: Final[Mapping[Outcome, str]] = {
    Outcome.DEGRADED: "d", Outcome.FAIL: "*", Outcome.ABSENT: "A", Outcome.ERROR: "E",
    Outcome.INCONCLUSIVE: "?", Outcome.NOT_EXPECTED: "-", Outcome.WAIVED: "w",
}  # fmt: skip
WRONG_DATA: Final = "!"
_MAIN: Final = ("peer_copy", "kernel_copy")  # by copy engine, and by kernel
_FEWEST_SIZES: Final = 3  # what makes a sweep
_MOST_PLACES: Final = 6

Group = Sequence[CellLine]


def figure_lines(cells: Group) -> list[str]:
    """Lines, then matrices, then sweeps over sizes."""
    moving = [line for line in cells if not line.expectation.cell.check.of_machine]
    sweeps = _sweeps(moving)
    swept = {line.cell for series in sweeps.values() for line in series[:-1]}
    lines: list[str] = []
    matrices: list[str] = []
    for title, group in _by_check_and_size([x for x in moving if x.cell not in swept]).items():
        if _wants_matrix(group):
            matrices += _matrix(title, group)
        else:
            lines += _describe(title, group)
    return [*lines, *matrices, *_sweep_tables(sweeps)]


def _by_check_and_size(cells: Group) -> dict[str, list[CellLine]]:
    groups: dict[str, list[CellLine]] = {}
    for line in cells:
        cell = line.expectation.cell
        size = f" {units.format_size(cell.size_bytes)}" if cell.size_bytes else ""
        groups.setdefault(f"{cell.check}{size}", []).append(line)
    return groups


def _wants_matrix(group: Group) -> bool:
    check = group[0].expectation.cell.check
    if not all(line.expectation.cell.place.is_pair for line in group):
        return False
    plain = check.access and not check.memory and not check.pattern
    several = len(group) > 1  # the sizes of a sweep have a table of their own
    return (check.method in _MAIN and plain and several) or any(map(_stands_out, group))


def _stands_out(line: CellLine) -> bool:
    return line.verdict.outcome.red or line.verdict.outcome is Outcome.DEGRADED


def _describe(title: str, group: Group) -> list[str]:
    """One line: how many came to what, the range of their figures, and where it is not well."""
    counts = ", ".join(f"{count} {word}" for word, count in count_outcomes(group).items())
    text = ", ".join([counts, *_figures(group)])
    odd = [line for line in group if line.verdict.outcome is not Outcome.PASS]
    if odd and len(group) > 1:
        named = [f"{line.expectation.cell.place} {_figure(line)}" for line in odd[:_MOST_PLACES]]
        text += f": {', '.join(named)}{', ...' if len(odd) > _MOST_PLACES else ''}"
    return textwrap.wrap(
        f"{title}: {text}", WIDTH, subsequent_indent="    ", break_on_hyphens=False
    )


def _figures(group: Group) -> Iterator[str]:
    """The range over a group's cells; of many flows the slowest and all together."""
    check = group[0].expectation.cell.check
    sound = [line for line in group if rates_of(line) is not None]
    if refused := sum(line.verdict.reason is Reason.REFUSED for line in group):
        yield "refused" if refused == len(group) else f"{refused} refused"
    if not sound:
        return
    values = [_median(line) for line in sound]
    totals = [_total(line) for line in sound if line.measurement and line.measurement.flows]
    if check.pattern == "bidirectional" and totals:
        for way, index in (("forth", 0), ("back", 1)):
            yield f"{way} {_range(check, [_flow(line, index) for line in sound])}"
        yield f"sum {_range(check, totals)}"
    elif any(line.measurement and len(line.measurement.flows) > 1 for line in sound):
        yield f"the slowest flow {_range(check, values)}"
        yield f"total {_range(check, totals)}"
    else:
        yield _range(check, values)


def _range(check: Check, values: Sequence[float]) -> str:
    show = units.format_duration if check.is_latency else units.format_rate
    low, high = show(min(values)), show(max(values))
    if low == high:
        return low
    (least, unit), (_, most_unit) = low.split(), high.split()
    return f"{least if unit == most_unit else low} to {high}"


def _median(line: CellLine) -> float:
    """Nanoseconds for a latency, bytes per second for all else; for sound cells alone."""
    assert line.measurement is not None
    check = line.expectation.cell.check
    summary = line.measurement.latencies() if check.is_latency else line.measurement.rates()
    assert summary is not None
    return summary.median


def _total(line: CellLine) -> float:
    assert line.measurement is not None
    summary = line.measurement.totals()
    assert summary is not None
    return summary.median


def _flow(line: CellLine, index: int) -> float:
    """The median rate of one of the flows; the cell's own where flows were not told apart."""
    assert line.measurement is not None
    flows = line.measurement.flow_rates()
    return flows[index].median if index < len(flows) else _median(line)


def _matrix(title: str, group: Group) -> Iterator[str]:
    figures = {line.expectation.cell.place.gpus: _figure(line) for line in group}
    sources, destinations = (sorted(set(gpus)) for gpus in zip(*figures, strict=True))
    unit = "us" if group[0].expectation.cell.check.is_latency else "GB/s"
    yield ""
    yield f"{title}, {unit}, source down, destination across"
    yield _row("", [f"gpu{index}" for index in destinations])
    for source in sources:
        row = (
            "" if source == destination else figures.get((source, destination), NOT_RUN)
            for destination in destinations
        )
        yield _row(f"gpu{source}", list(row))


def _row(label: str, figures: Sequence[str]) -> str:
    return f"{label:<6}{''.join(f'{figure:>8}' for figure in figures)}".rstrip()


def _figure(line: CellLine) -> str:
    """A figure with the mark of its outcome before it; the mark alone where there is none."""
    if line.verdict.reason is Reason.WRONG_DATA:
        return WRONG_DATA
    mark = MARKS.get(line.verdict.outcome, "")
    if rates_of(line) is None:
        return mark
    if line.expectation.cell.check.is_latency:
        return f"{mark}{_median(line) / units.NS_PER_US:.2f}"
    return f"{mark}{_short_rate(_median(line))}"


def _short_rate(rate_bytes_per_s: float) -> str:
    rate = rate_bytes_per_s / units.GB
    return f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}"


def _sweeps(cells: Group) -> dict[tuple[Place, Check], list[CellLine]]:
    """The checks that one place measured at several sizes, smallest first."""
    series: dict[tuple[Place, Check], list[CellLine]] = {}
    for line in cells:
        cell = line.expectation.cell
        series.setdefault((cell.place, cell.check), []).append(line)
    return {
        key: sorted(lines, key=lambda line: line.expectation.cell.size_bytes or 0)
        for key, lines in series.items()
        if len(lines) >= _FEWEST_SIZES
    }


def _sweep_tables(sweeps: Mapping[tuple[Place, Check], Group]) -> Iterator[str]:
    """A table a place: the rate at each size, and the start-up time and rate that fit them."""
    for place in dict.fromkeys(place for place, _ in sweeps):
        of_place = {check: lines for (where, check), lines in sweeps.items() if where == place}
        sizes = sorted({_size(line) for lines in of_place.values() for line in lines})
        yield ""
        yield f"{place}, GB/s by size; start-up time and rate at most, fitted to all sizes"
        yield _sweep_row(
            "", [units.format_size(size, separator="") for size in sizes], "start-up", "at most"
        )
        for check, lines in of_place.items():
            yield _sweep_line(check, lines, sizes)


def _size(line: CellLine) -> int:
    return line.expectation.cell.size_bytes or 0


def _sweep_line(check: Check, lines: Group, sizes: Sequence[int]) -> str:
    figures = {_size(line): _figure(line) for line in lines}
    sound = [line for line in lines if rates_of(line) is not None]
    times = [(_size(line), _operation_ns(line)) for line in sound]
    fit = fit_transfer_time(times)
    startup = units.format_duration(fit.startup_ns) if fit else NOT_RUN
    rate = _short_rate(fit.rate_bytes_per_s) if fit else NOT_RUN
    return _sweep_row(str(check), [figures.get(size, "") for size in sizes], startup, rate)


def _sweep_row(label: str, figures: Sequence[str], startup: str, rate: str) -> str:
    return f"{label:<21}{''.join(f'{figure:>7}' for figure in figures)}{startup:>10}{rate:>8}"


def _operation_ns(line: CellLine) -> float:
    assert line.measurement is not None
    summary = line.measurement.latencies()
    assert summary is not None
    return summary.median
