"""A small machine, its profile and some cells, for the tests of the reports."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuxfer.model.cell import Cell, Check, Initiator, Place
from pytest_gpuxfer.model.expectation import (
    Bound,
    ClassSpec,
    Expectation,
    Limit,
    Location,
    Profile,
    Source,
    SourceKind,
)
from pytest_gpuxfer.model.machine import Gpu, HostFacts, Machine, NvlinkPort, PcieLink
from pytest_gpuxfer.model.measurement import (
    Access,
    AccessDirection,
    Health,
    Integrity,
    Measurement,
    PathKind,
    Reading,
    Sample,
    Signal,
    SignalName,
)
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.model.verdict import judge
from pytest_gpuxfer.report.records import SCHEMA, CellLine, Header, count_outcomes

MIB = 2**20
WRITE = Check("peer_copy", initiator=Initiator.WRITE)
CONTROL = replace(WRITE, access=False)


def at(line: int) -> Location:
    return Location("thresholds/two.yaml", line)


LIMIT = Limit(
    WRITE,
    at(20),
    floor=Bound(80e9, "80% of nvlink", at(21)),
    expect=Bound(90e9, "90 GB/s", at(22)),
    source=Source(SourceKind.PUBLISHED, "the maker's data sheet", "2026-07"),
)
CONTROL_LIMIT = Limit(CONTROL, at(30), unlimited="nobody promises it")
PROFILE = Profile(
    name="two", title="Two GPUs", file="thresholds/two.yaml", match_gpus=("GPU T",), gpus=2,
    gpus_location=at(5), nvlink=None, pcie=None,
    classes={"NV4": ClassSpec("NV4", PathKind.NVLINK, True, (SignalName.COUNTERS,), at(12))},
    all_pairs="NV4", pairs={}, limits=(LIMIT, CONTROL_LIMIT), tolerance=0.05,
)  # fmt: skip


def gpu(index: int) -> Gpu:
    ports = tuple(NvlinkPort(link, active=True, remote="switch") for link in range(4))
    address = f"0000:0{index}:00.0"
    pcie = PcieLink(1, 16, max_generation=4, max_width=16)
    return Gpu(index, index, f"GPU-{index}", address, "GPU T", 2**34, ports, pcie)


MACHINE = Machine(HostFacts("node.one"), (gpu(0), gpu(1)), "580.1", "13.0")


def header(machine: Machine | None = MACHINE, profile: Profile | None = PROFILE) -> Header:
    return Header(
        schema=SCHEMA, tool="pytest-gpuxfer test", started="2026-11-30T08:00:00+00:00",
        host="node.one", machine=machine, failure=None, profile=profile, chosen=None,
        expected=("a", "b", "c", "d"), selected=4,
        simulated=machine.simulated if machine else None, faults=machine.faults if machine else (),
    )  # fmt: skip


def copy(
    source: int,
    destination: int,
    rate: float,
    path: PathKind | Unknown = PathKind.NVLINK,
    check: Check = WRITE,
    **changes: object,
) -> CellLine:
    """A cell of `check` measured at `rate` bytes per second, seen to take `path`, and judged."""
    cell = Cell(check, Place.pair(source, destination), 64 * MIB)
    wanted = Expectation(
        cell,
        path=PathKind.NVLINK if check.access else PathKind.STAGED,
        proof=(SignalName.COUNTERS,),
        link_class="NV4",
        peer_access_required=check.access,
        limit=LIMIT if check.access else CONTROL_LIMIT,
        tolerance=0.05,
        location=at(12),
    )
    agrees = path if isinstance(path, Unknown) else (path,)
    answer = Access.ENABLED if check.access else Access.OFF
    measurement = Measurement(
        cell,
        samples=(Sample(64 * MIB / rate * 1e9, 64 * MIB, 1),) * 7,
        gated=True,
        integrity=Integrity(7 * 64 * MIB),
        access=(
            AccessDirection(source, destination, answer),
            AccessDirection(destination, source, answer),
        ),
        signals=(Signal(SignalName.COUNTERS, agrees, "the counters' words"),),
    )
    return judged(wanted, replace(measurement, **changes))  # type: ignore[arg-type]


def gpus_seen(*names: str) -> CellLine:
    cell = Cell(Check("machine.gpus"), Place.all())
    wanted = Expectation(cell, gpus=2, location=at(5))
    return judged(wanted, Measurement(cell, reading=Reading(gpus=names)))


def judged(wanted: Expectation, measurement: Measurement) -> CellLine:
    health: Health = measurement.health
    verdict = judge(measurement, wanted, health)
    return CellLine(wanted.cell.id, measurement, wanted, verdict)


def counts(*lines: CellLine) -> dict[str, int]:
    return count_outcomes(lines)
