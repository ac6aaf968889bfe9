"""Records and JUnit of real machines that are kept, and the simulated HGX H200 held against them.

Two pairs of H200, by the first step of `benchmarks/on_gpus.sh`. In the second run the measuring
process crashed once. `python -m tests.records` prints a line for each figure.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import yaml

from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.hardware.simulated import open_machine
from pytest_gpuxfer.model.cell import parse_cell
from pytest_gpuxfer.model.measurement import Measurement
from pytest_gpuxfer.model.units import GB
from pytest_gpuxfer.report.records import Record, read
from pytest_gpuxfer.transfer.bench import Bench

FOLDER: Final = Path(__file__).parent
NAMES: Final = tuple(sorted(path.name for path in FOLDER.glob("*.jsonl.gz")))
SUMMARIES: Final = ("152 pass", "151 pass, 1 error")
NEAR: Final = 0.05
_MACHINES: Final = files("pytest_gpuxfer.hardware.simulated.machines")


@dataclass
class Figure:
    """One check and size: what each of its places showed, on real GPUs and on simulated ones."""

    name: str
    unit: str
    real: list[float] = field(default_factory=list)
    simulated: list[float] = field(default_factory=list)

    @property
    def off(self) -> float:
        """How far the simulated median is from all that was real, as a part of it."""
        ours, low, high = median(self.simulated), min(self.real), max(self.real)
        return min(0.0, ours / low - 1) + max(0.0, ours / high - 1)


def unpacked(name: str, folder: Path) -> Path:
    """A kept file as it was written."""
    path = folder / name.removesuffix(".gz")
    path.write_bytes(gzip.decompress((FOLDER / name).read_bytes()))
    return path


@cache
def records() -> tuple[Record, ...]:
    with TemporaryDirectory() as folder:
        return tuple(read(unpacked(name, Path(folder))) for name in NAMES)


@cache
def measured() -> dict[str, Measurement]:
    """The records' cells on a simulated HGX H200 that has two GPUs, as the real machines had."""
    machine = yaml.safe_load((_MACHINES / "hgx-h200.yaml").read_text("utf-8"))
    machine["gpus"] = machine["gpus"][:2]
    with TemporaryDirectory() as folder:
        path = Path(folder, "two-h200.yaml")
        path.write_text(yaml.safe_dump(machine), encoding="utf-8")
        hardware = open_machine(str(path), ())
    bench = Bench(hardware, discover(hardware))
    cells = [line.cell for line in records()[0].cells if line.measurement is not None]
    return {cell: bench.measure(parse_cell(cell)) for cell in cells}


def figures() -> list[Figure]:
    """Every figure that both have."""
    found: dict[str, Figure] = {}
    for record in records():
        for line in record.cells:
            if line.measurement is not None and line.measurement.samples:
                _figure(found, line.measurement).real.append(_value(line.measurement))
    for measurement in measured().values():
        if measurement.samples:
            _figure(found, measurement).simulated.append(_value(measurement))
    return [figure for figure in found.values() if figure.real and figure.simulated]


def _figure(found: dict[str, Figure], measurement: Measurement) -> Figure:
    cell = measurement.cell
    name = f"{cell.check} {cell.id.rpartition('/')[2]}"
    return found.setdefault(name, Figure(name, "ns" if cell.check.is_latency else "GB/s"))


def _value(measurement: Measurement) -> float:
    if measurement.cell.check.is_latency:
        latencies = measurement.latencies()
        assert latencies is not None
        return latencies.median
    rates = measurement.rates()
    assert rates is not None
    return rates.median / GB
