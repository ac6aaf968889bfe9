"""Every fault of the simulated machines against the suites' cells: what is seen of it, and by what.

`docs/faults.md` is this table; `python -m tests.fault_table` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gpuxfer.hardware.simulated import fault_kinds
from pytest_gpuxfer.model.cell import UNIFORMITY
from pytest_gpuxfer.model.diagnosis import diagnose
from pytest_gpuxfer.model.expectation import Expectation
from pytest_gpuxfer.model.verdict import Outcome
from pytest_gpuxfer.report.records import CellLine
from pytest_gpuxfer.run import OperatorError, Run, open_run
from pytest_gpuxfer.settings import Settings
from pytest_gpuxfer.transfer import isolation
from tests.unit.test_machines_and_profiles import MADE_FOR

PAGE: Final = Path(__file__).parents[1] / "docs" / "faults.md"
HEALTHY: Final = frozenset({"pcie-idle", "noise"})  # what a healthy machine does: never red

# What the first cause that a red or degraded cell names must say of each fault.
CAUSES: Final[Mapping[str, str]] = {
    "peer-access-refused": "offers no peer access",
    "enable-fails": "offers peer access and then denies it",
    "access-one-way": "peer access one way only",
    "staged-despite-access": "does not use NVLink although peer access is enabled",
    "link-down": "NVLinks are down",
    "link-half-rate": "NVLinks run below their rate",
    "flapping-link": "a link is failing",
    "fabric-dropout": "out of the NVSwitch fabric",
    "fabric-in-progress": "the NVSwitch fabric is not ready",
    "pair-slow": "slower than its sisters",
    "staging-latency": "copies start as late as staged ones",
    "switch-collapse": "flows at once share",
    "pcie-generation": "the PCIe link trained below",
    "pcie-width": "the PCIe link trained below",
    "numa-far": "NUMA node",
    "writes-dropped": "stores from kernels are lost",
    "zeros": "writes are lost or go astray",
    "nan": "data is corrupted on the way",
    "stale": "writes are lost or go astray",
    "flipped-bit": "a bit was flipped",
    "one-page": "a page of memory",
    "kernel-hangs": "kernels cannot reach the peer's memory",
    "copy-hangs": "the transfer never ended",
    "call-hangs": "the transfer never ended",
    "sticky-error": "ended all work of its process",
    "crash": "brought the measuring process down",
    "xid": "the driver reported an Xid",
    "errors-rising": "a link is failing",
    "throttled": "throttles",
    "gpu-busy": "other processes use the GPU",
    "counters-missing": "a witness of the path",
    "counters-stuck": "a witness of the path",
    "counters-moved": "a witness of the path",
    "gpu-missing": "a GPU has left the bus",
    "other-product": "this machine has",
    "mig": "MIG mode is on",
    "confidential-computing": "confidential computing",
    "driver-gone": "the driver failed",
}

_MACHINE_FIRST: Final = "machine."
_COPIES: Final = (
    "host_to_device", "host_to_device.far-node", "device_to_host", "peer_copy.write",
    "kernel_copy.sm.write", "kernel_copy.sm.read", "small_copy_latency",
)  # fmt: skip
_WHOLE: Final = ("unified_copy.write.ring", "unified_copy.write.disjoint-pairs")
_GROUPS: Final = (f"{UNIFORMITY}.peer_copy.write", f"{UNIFORMITY}.host_to_device")
# What strikes the process that meets it is measured in another, and each cell may cost a time-out.
STRIKING: Final = frozenset({"kernel-hangs", "copy-hangs", "call-hangs", "sticky-error", "crash"})
_STRUCK: Final = ("peer_copy.write", "kernel_copy.sm.write", "host_to_device")


@dataclass(frozen=True, slots=True)
class Row:
    """What the suites make of one fault on one machine."""

    fault: str
    machine: str
    place: str
    cell: str  # "" where nothing is red or degraded
    outcome: str
    signal: str
    cause: str

    @property
    def healthy(self) -> bool:
        return self.fault in HEALTHY

    @property
    def caught(self) -> bool:
        return bool(self.cell)

    @property
    def named(self) -> bool:
        return self.caught and CAUSES.get(self.fault, "none") in self.cause


def rows(machine: str, faults: Sequence[str] = ()) -> Iterator[Row]:
    """A row for each fault, or each of `faults`, that the machine can have."""
    for kind in fault_kinds():
        if not faults or kind.name in faults:
            row = _row(machine, kind.name)
            if row is not None:
                yield row


def _row(machine: str, fault: str) -> Row | None:
    try:
        run = open_run(settings(machine, fault))
    except OperatorError as error:
        if str(error).startswith(f"fault {fault}: "):
            return None  # the machine cannot have it
        return Row(fault, machine, "", "the start", "operator error", "gpu names", str(error))
    try:
        place = run.machine.faults[0].partition(":")[2] if run.machine else "all"
        row = Row(fault, machine, place, "", "", "", "")
        for line in _findings(run):
            told = _tell(fault, machine, place, line)
            row = told if told.named or not row.caught else row
            if row.named:
                break
        return row
    finally:
        run.finish(0)


def _tell(fault: str, machine: str, place: str, line: CellLine) -> Row:
    assert line.measurement is not None
    causes = diagnose(line.measurement, line.expectation, line.verdict)
    failure = line.measurement.failure
    signal = f"{line.verdict.reason}: {failure.kind}" if failure else str(line.verdict.reason)
    first = causes[0].name if causes else ""
    return Row(fault, machine, place, line.cell, str(line.verdict.outcome), signal, first)


def settings(machine: str, *faults: str) -> Settings:
    """A run of the machine's profile on it, as the suites' options would ask for."""
    return Settings(
        hardware=MADE_FOR[machine], simulated=machine, faults=faults, out=None, gpus=None,
        degraded_fails=False, isolate=None, deadline_ns=None, lock=None, selftest=False,
        judges=True, prints_only=False, distributed=False,
    )  # fmt: skip


def _findings(run: Run) -> Iterator[CellLine]:
    """The red and degraded cells near the fault's place, cheap ones first, for as long as asked."""
    near = {int(gpu) for gpu in re.findall(r"gpu(\d+)", " ".join(_faults(run)))}
    near |= {0, 1} if len(near) < 2 else set()
    for wanted in _in_order(run):
        if near.issuperset(wanted.cell.place.gpus) and _shows(line := run.judge(wanted)):
            yield line


def _faults(run: Run) -> tuple[str, ...]:
    return run.machine.faults if run.machine else ()


def _shows(line: CellLine) -> bool:
    return line.verdict.outcome.red or line.verdict.outcome is Outcome.DEGRADED


def _in_order(run: Run) -> Iterator[Expectation]:
    by_check = [(str(wanted.cell.check), wanted) for wanted in run.plan]
    if any(fault.partition(":")[0] in STRIKING for fault in _faults(run)):
        yield from [wanted for check, wanted in by_check if check in _STRUCK]
        return
    yield from [wanted for check, wanted in by_check if check.startswith(_MACHINE_FIRST)]
    yield from [wanted for check, wanted in by_check if check in _COPIES]
    yield from [wanted for check, wanted in by_check if check in _WHOLE]
    yield from [wanted for check, wanted in by_check if check in _GROUPS]


def table(found: Sequence[Row]) -> str:
    """The page: totals, then a line for each fault on each machine."""
    faults = [row for row in found if not row.healthy]
    caught, named = sum(row.caught for row in faults), sum(row.named for row in faults)
    healthy = [row for row in found if row.healthy]
    red = sum(row.caught and Outcome(row.outcome).red for row in healthy)
    head = f"""# Faults, and what the suites see of them

Each fault of `gpuxfer faults`, at its default place on each simulated machine that can have it.
The cells are those of the suites, near the fault; where a cheaper check of the machine tells it,
that one is shown. `python -m tests.fault_table` writes this page, and a test holds it to what runs.

- Caught (red or degraded): **{caught} of {len(faults)}**
- Cause named, as the first of the causes told: **{named} of {len(faults)}**
- What healthy machines do as well ({", ".join(sorted(HEALTHY))}): **{red} red of {len(healthy)}**

| Fault | Machine | Caught | By | Signal | First cause |
| --- | --- | --- | --- | --- | --- |
"""
    return head + "".join(f"{line_of(row)}\n" for row in found)


def line_of(row: Row) -> str:
    """Its line of the page."""
    if not row.caught:
        caught = "green, as it should be" if row.healthy else "**no**"
    else:
        caught = row.outcome
    cause = row.cause if row.named or row.healthy else f"{row.cause} (**not the cause**)"
    cells = (f"{row.fault}:{row.place}" if row.place else row.fault, row.machine, caught)
    return f"| {' | '.join((*cells, row.cell, row.signal, cause))} |"


def measure(machine: str) -> list[Row]:
    """The machine's rows. Time-outs of hanging processes are cut short."""
    isolation.CELL_S, isolation._SLOWEST_BYTES_PER_S = 5.0, 1e12  # type: ignore[misc]
    return list(rows(machine))


if __name__ == "__main__":
    with ProcessPoolExecutor() as pool:
        found = [row for rows_of_one in pool.map(measure, MADE_FOR) for row in rows_of_one]
    PAGE.write_text(table(found), encoding="utf-8")
