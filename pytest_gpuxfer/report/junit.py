"""How a cell stands in JUnit XML: its class and its properties, figures with units."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.evidence import conclude
from pytest_gpuxfer.report.failure import rates_of
from pytest_gpuxfer.report.records import CellLine, GateLine, Header


def classname(header: Header, method: str) -> str:
    """`gpuxfer.<profile>.<host>.<method>`; a dot within a part would make a level of its own."""
    root = "gpuxfer-SIMULATED" if header.simulated else "gpuxfer"
    parts = (root, header.profile_name, header.host, method)
    return ".".join(re.sub(r"[^\w-]", "_", part) for part in parts)


def properties(header: Header, line: CellLine) -> Iterator[tuple[str, str]]:
    """Names and values of the test case's properties."""
    yield "verdict", str(line.verdict.outcome)
    yield "reason", str(line.verdict.reason)
    if header.simulated:
        yield "SIMULATED", " ".join((header.simulated, *header.faults))
    rates, limit = rates_of(line), line.expectation.limit
    if rates is not None:
        yield "rate_gb_per_s", f"{rates.median / units.GB:.3f}"
        yield "samples", str(rates.count)
    if limit is not None and limit.floor is not None:
        if limit.floor.of_check is None:
            yield "floor_gb_per_s", f"{limit.floor.value / units.GB:.3f}"
        yield "floor_at", str(limit.floor.location)
    if line.measurement is not None and line.measurement.signals:
        yield "path", str(conclude(line.measurement.signals))
    gpus = header.machine.gpus if header.machine else ()
    for index in line.expectation.cell.place.gpus:
        if index < len(gpus):
            yield f"gpu{index}", f"{gpus[index].uuid} {gpus[index].pci_address}"


def gate_properties(header: Header, line: GateLine) -> Iterator[tuple[str, str]]:
    """As `properties`, of a gate of the self-test."""
    yield "done", line.done
    yield "wanted", line.wanted
    if line.verdict is not None:
        yield "given", f"{line.verdict.outcome} {line.verdict.reason}"
    if header.simulated:
        yield "SIMULATED", " ".join((header.simulated, *header.faults))
