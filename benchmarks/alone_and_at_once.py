"""Every ordered pair alone and beside disjoint pairs, from the record of a whole run.

    python benchmarks/alone_and_at_once.py RECORD

Prints both matrices of `unified_copy.write` at one size, in GB/s, the pair that lost most, and what
each pattern of many flows reaches in all. Ends with status 1 where a pair is more than 1% off.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from pytest_gpuxfer.model.cell import Cell, parse_cell
from pytest_gpuxfer.model.measurement import Measurement
from pytest_gpuxfer.model.units import GB, MIB
from pytest_gpuxfer.report.records import RecordError, read

NEAR = 0.01
SIZE_BYTES = 512 * MIB  # of both, as the suites measure them
Rates = Mapping[str, float]  # GB/s, by "gpu0-gpu1"


def matrix(title: str, rates: Rates) -> None:
    gpus = sorted({gpu for pair in rates for gpu in pair.split("-")}, key=lambda gpu: int(gpu[3:]))
    print(f"{title}, GB/s; from the row's GPU to the column's")
    print(" " * 6 + "".join(f"{gpu:>8}" for gpu in gpus))
    for source in gpus:
        row = (rates.get(f"{source}-{other}") for other in gpus)
        print(f"{source:<6}" + "".join(f"{'-' if r is None else f'{r:.1f}':>8}" for r in row))


def main(path: Path) -> int:
    """The exit status."""
    measured: dict[Cell, Measurement] = {
        parse_cell(line.cell): line.measurement
        for line in read(path).cells
        if line.measurement is not None and line.measurement.samples
    }
    alone: dict[str, float] = {}
    at_once: dict[str, float] = {}
    patterns: dict[str, list[tuple[int, float, float]]] = {}
    for cell, measurement in measured.items():
        rates, totals = measurement.rates(), measurement.totals()
        assert rates is not None
        if str(cell.check) == "unified_copy.write" and cell.size_bytes == SIZE_BYTES:
            alone[str(cell.place)] = rates.median / GB
        elif str(cell.check) == "unified_copy.write.disjoint-pairs":
            medians = (flow.median / GB for flow in measurement.flow_rates())
            at_once.update(zip(measurement.flows, medians, strict=True))
        elif len(measurement.flows) > 2 and totals is not None:
            found = rates.median / GB, totals.median / GB
            patterns.setdefault(str(cell.check), []).append((len(measurement.flows), *found))
    for check, figures in patterns.items():
        flows, slowest, totals_of_all = zip(*figures, strict=True)
        print(
            f"{check:<40} at {len(figures)} places, {flows[0]} flows: the slowest"
            f" {min(slowest):.2f}, in all {min(totals_of_all):.1f} to {max(totals_of_all):.1f} GB/s"
        )
    matrix("alone", alone)
    matrix("beside disjoint pairs", at_once)
    ratios = {pair: at_once[pair] / alone[pair] for pair in alone if pair in at_once}
    if not ratios:
        print(f"nothing to compare: {len(alone)} pairs alone, {len(at_once)} at once")
        return 1
    if lost := len(alone.keys() | at_once.keys()) - len(ratios):
        print(f"{lost} pairs were measured alone, or beside others, and not both")
        return 1
    worst = max(ratios, key=lambda pair: abs(ratios[pair] - 1))
    print(
        f"{len(ratios)} pairs; {worst} differs most: {ratios[worst]:.4f} of what it reaches alone"
    )
    return int(abs(ratios[worst] - 1) > NEAR)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        sys.exit(main(Path(sys.argv[1])))
    except (OSError, RecordError) as error:
        sys.exit(str(error))
