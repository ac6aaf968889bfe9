"""What a run says on a terminal, as lines of text within 100 columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from pytest_gpuxfer.model.machine import Gpu, Machine
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.model.verdict import Reason
from pytest_gpuxfer.report.failure import WIDTH
from pytest_gpuxfer.report.figures import MARKS, NOT_RUN, WRONG_DATA, figure_lines
from pytest_gpuxfer.report.four_ways import four_ways
from pytest_gpuxfer.report.records import CellLine, Header, Record, count_outcomes

_OUT_OF_SCOPE: Final = "traffic between nodes (RDMA), collectives (NCCL), GPU memory, compute"


def header_lines(header: Header) -> list[str]:
    """Which machine is held against which profile; leaves room for a prefix."""
    return [part for line in _header(header) for part in textwrap.wrap(line, WIDTH - 10)]


def _header(header: Header) -> list[str]:
    lines = [_simulated(header)] if header.simulated else []
    if header.machine is not None:
        lines.append(_describe_machine(header.machine))
    elif header.failure is not None:
        lines.append(f"host {header.host}: {header.failure.kind}: {header.failure.message}")
    profile = header.profile
    if header.chosen is not None:
        lines.append(f"auto: {header.chosen}")
    if profile is not None:
        lines.append(f"profile {profile.name}: {profile.title} ({profile.file})")
        if profile.partial:
            lines.append(f"PARTIAL: {profile.partial}")
    return lines


def _simulated(header: Header) -> str:
    faults = f", faults: {', '.join(header.faults)}" if header.faults else ""
    return f"SIMULATED machine {header.simulated}{faults}"


def _describe_machine(machine: Machine) -> str:
    products = Counter(gpu.name for gpu in machine.gpus)
    gpus = ", ".join(f"{count} x {name}" for name, count in products.items()) or "no GPU"
    pairs = [str(machine.link_class(a.index, b.index)) for a, b in combinations(machine.gpus, 2)]
    links = sorted({_describe_pcie(gpu) for gpu in machine.gpus})
    parts = [gpus, *_tally(pairs), *links]
    versions = f"driver {machine.driver_version}, CUDA {machine.cuda_version}"
    return f"host {machine.host.hostname}: {', '.join([*parts, versions])}"


def _tally(words: Sequence[str]) -> list[str]:
    found = Counter(words)
    if len(found) <= 1:
        return list(found)
    return [
        f"{word} ({count} pair{'s' if count > 1 else ''})" for word, count in found.most_common()
    ]


def _describe_pcie(gpu: Gpu) -> str:
    def best(most: int | Unknown, now: int | Unknown) -> str:
        if not isinstance(most, Unknown):
            return str(most)
        return "?" if isinstance(now, Unknown) else str(now)

    link = gpu.pcie
    return (
        f"PCIe Gen{best(link.max_generation, link.generation)} x{best(link.max_width, link.width)}"
    )


def summary_lines(record: Record) -> list[str]:
    """Figures, what was not checked, and the counts; the last line is the result."""
    lines = [_simulated(record.header)] if record.header.simulated else []
    lines += _machine_checks(record.cells)
    lines += figure_lines(record.cells)
    lines += _legend(record.cells)
    lines += _marked(record.cells)
    lines += four_ways(record)
    lines += ["", *_not_checked(record), *_partial(record), _counts(record)]
    return lines


def selftest_lines(record: Record) -> list[str]:
    """A line a gate, and what the self-test does not say; the last line is the result."""
    lines = [_simulated(record.header)] if record.header.simulated else []
    for gate in record.gates:
        lines += textwrap.wrap(
            f"{gate.gate:<20}{gate.words}", WIDTH, subsequent_indent=" " * 20, max_lines=4
        )
    holding = sum(gate.holds for gate in record.gates)
    skipped = sum(gate.verdict is None for gate in record.gates)
    rest = f", {skipped} not tried" if skipped else ""
    other = len(record.gates) - holding - skipped
    wrong = f", {other} {'does' if other == 1 else 'do'} not" if other else ""
    simulated = "SIMULATED " if record.header.simulated else ""
    result = f"{simulated}self-test: {holding} gates fail as they should{wrong}{rest}"
    return [*lines, "", *_partial(record), result]


def _machine_checks(cells: Sequence[CellLine]) -> Iterator[str]:
    """One line a check: how many came to what, and where it is red."""
    by_check: dict[str, list[CellLine]] = {}
    for line in cells:
        if line.expectation.cell.check.of_machine:
            by_check.setdefault(str(line.expectation.cell.check), []).append(line)
    for check, group in by_check.items():
        counts = ", ".join(f"{count} {word}" for word, count in count_outcomes(group).items())
        red = [str(line.expectation.cell.place) for line in group if line.verdict.outcome.red]
        where = f": {', '.join(red[:8])}{', ...' if len(red) > 8 else ''}" if red else ""
        yield f"{check:<20}{counts}{where}"


def _legend(cells: Sequence[CellLine]) -> Iterator[str]:
    """What the marks that stand before figures mean."""
    moving = [line for line in cells if not line.expectation.cell.check.of_machine]
    outcomes = {line.verdict.outcome for line in moving}
    marks = [f"{mark} {outcome}" for outcome, mark in MARKS.items() if outcome in outcomes]
    if any(line.verdict.reason is Reason.WRONG_DATA for line in moving):
        marks.append(f"{WRONG_DATA} wrong data")
    if marks:
        yield f"{', '.join(marks)}, {NOT_RUN} not run"


def _marked(cells: Sequence[CellLine]) -> Iterator[str]:
    """Why figures that are good are not as good as they look."""
    for line in cells:
        if line.verdict.reason in (Reason.CRASHED_ONCE, Reason.ERRORS_ROSE):
            yield from _item(f"{line.cell}: {line.verdict.words}")


def _not_checked(record: Record) -> Iterator[str]:
    where: dict[str, list[str]] = {}
    for line in record.cells:
        for words in line.verdict.unchecked:
            where.setdefault(words, []).append(line.cell)
    yield "Not checked:"
    for words, cells in where.items():
        rest = f" and {len(cells) - 1} more cells" if len(cells) > 1 else ""
        yield from _item(f"{words} [{cells[0]}{rest}]")
    yield from _provisional(record.cells)
    yield from _item(_OUT_OF_SCOPE)


def _provisional(cells: Sequence[CellLine]) -> Iterator[str]:
    limits = (line.expectation.limit for line in cells)
    places = {x.location for x in limits if x and x.source and x.source.provisional}
    for file in sorted({place.file for place in places}):
        lines = ", ".join(str(n) for n in sorted({p.line for p in places if p.file == file}))
        yield from _item(f"provisional limits, not yet confirmed: {file}:{lines}")


def _item(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )


def _partial(record: Record) -> Iterator[str]:
    profile, expected = record.header.profile, len(record.header.expected)
    planned = set(record.header.expected)
    selected = (
        len(planned.intersection(line.cell for line in record.cells if line.selected))
        if record.end is None
        else min(record.end.selected, expected)
    )
    if profile is not None and profile.partial:
        yield f"PARTIAL machine: {profile.partial}"
    if selected < expected:
        yield f"PARTIAL {selected} of {expected} cells were selected: no acceptance of the machine"
    if record.end is not None and record.end.judged < record.end.selected:
        yield f"NOT JUDGED {record.end.selected - record.end.judged} of the selected cells"


def _counts(record: Record) -> str:
    counts = count_outcomes([line for line in record.cells if line.selected])
    words = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    simulated = "SIMULATED " if record.header.simulated else ""
    return f"{simulated}{words or 'nothing was judged'}"
