"""One run on one machine: what is planned, measured, judged and recorded. No pytest in here."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpuxfer import __version__
from pytest_gpuxfer.model.cell import Cell, Check, Place
from pytest_gpuxfer.model.expectation import Expectation, Profile
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import Failure, FailureKind, Measurement, Reading
from pytest_gpuxfer.model.units import NS_PER_S
from pytest_gpuxfer.model.verdict import judge
from pytest_gpuxfer.report.records import (
    SCHEMA,
    CellLine,
    End,
    GateLine,
    Header,
    Line,
    Record,
    Writer,
    count_outcomes,
)
from pytest_gpuxfer.settings import AUTO, VISIBLE, Settings
from pytest_gpuxfer.transfer.opening import Opened, open_machine

if TYPE_CHECKING:
    from pytest_gpuxfer.transfer.bench import Bench
    from pytest_gpuxfer.transfer.isolation import Isolated


# Faults of simulated machines that strike the process which meets them.
_STRIKING_FAULTS: Final = frozenset(
    {"call-hangs", "copy-hangs", "kernel-hangs", "sticky-error", "crash"}
)


class OperatorError(Exception):
    """What was asked for cannot be: one line for the person who asked."""


def open_run(settings: Settings) -> Run:
    """Open the machine, read the profile and hold one against the other. Raises OperatorError."""
    from pytest_gpuxfer.profiles import ProfileError, choose, load

    try:
        named = settings.hardware not in (None, AUTO)
        profile = load(settings.hardware) if named and settings.hardware else None
        opened = _open_machine(settings)
        chosen = None
        if settings.hardware == AUTO and opened.machine is not None:
            choice = choose(opened.machine)
            profile, chosen = choice.profile, choice.words
        if profile is not None:
            profile = _fit(settings, profile, opened.machine)
        if settings.out is not None:
            _check_writable(settings.out)
        return Run(
            opened, profile, chosen, settings.out,
            isolated=_isolates(settings), deadline_ns=settings.deadline_ns,
        )  # fmt: skip
    except ProfileError as error:
        raise OperatorError(str(error)) from None


def _open_machine(settings: Settings) -> Opened:
    from pytest_gpuxfer.hardware.simulated import SimulationError

    try:
        return open_machine(settings.simulated, settings.faults)
    except SimulationError as error:
        raise OperatorError(str(error)) from None


def _isolates(settings: Settings) -> bool:
    """Whether the plan's cells are measured in a process of their own.

    A simulated machine is measured here, for speed, unless one of its faults strikes a process.
    """
    if settings.isolate is not None:
        return settings.isolate
    kinds = {fault.partition(":")[0] for fault in settings.faults}
    return settings.simulated is None or not _STRIKING_FAULTS.isdisjoint(kinds)


def _fit(settings: Settings, profile: Profile, machine: Machine | None) -> Profile:
    """The profile, cut to the part declared.

    Raises ProfileError if it is for another machine, OperatorError if more is there than declared.
    """
    from pytest_gpuxfer.profiles import check_match, declare_partial

    visible = len(machine.gpus) if machine else 0
    gpus = visible if settings.gpus == VISIBLE else settings.gpus
    if isinstance(settings.gpus, int) and visible > settings.gpus:
        raise OperatorError(
            f"--gpuxfer-gpus={settings.gpus}, but this process sees {visible} GPUs; hide the"
            " others (CUDA_VISIBLE_DEVICES) or say --gpuxfer-gpus=visible"
        )
    if gpus:  # with nothing visible, what is missing is the whole machine
        profile = declare_partial(profile, int(gpus))
    if machine is not None:
        check_match(profile, machine)
    return profile


def _check_writable(folder: Path) -> None:
    """Find out before the first measurement, not after the last. Raises OperatorError."""
    probe = folder / f".gpuxfer-probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise OperatorError(
            f"--gpuxfer-out={folder} cannot be written: {error.strerror}; name another folder"
        ) from None


class Run:
    """Measurements and verdicts by cell id, each made once; the record is written as they come.

    `isolated`: the plan's cells are measured in a process of their own. `deadline_ns`: how long
    after its making the run still measures.
    """

    def __init__(
        self, opened: Opened, profile: Profile | None, chosen: str | None, out: Path | None,
        *, isolated: bool, deadline_ns: float | None,
    ) -> None:  # fmt: skip
        self.hardware, self.machine, self.failure = opened.hardware, opened.machine, opened.failure
        self.profile, self._chosen = profile, chosen
        self.selected: set[str] = set()  # cell ids that the verdict on the run rests on
        self.lines: dict[str, CellLine] = {}
        self.gates: list[GateLine] = []  # of a run that is a self-test
        self.end: End | None = None
        self._measured: dict[str, Measurement] = {}
        self._out = out
        self.record_error: str | None = None  # why the record is not whole
        self._isolated, self._deadline_ns = isolated, deadline_ns
        self._ends_at_ns = None if deadline_ns is None else time.monotonic_ns() + int(deadline_ns)
        self._started = datetime.now(UTC)
        self._today = self._started.date().isoformat()
        self.plan = self._make_plan()
        self._expected = tuple(wanted.cell.id for wanted in self.plan)
        self._writer: Writer | None = None
        self._bench: Bench | None = None
        self._isolation: Isolated | None = None

    def _make_plan(self) -> tuple[Expectation, ...]:
        from pytest_gpuxfer.plan import make_plan

        if self.profile is not None:
            return make_plan(self.profile, self.machine, self._today)
        if self.failure is not None:
            return (Expectation(Cell(Check("machine.gpus"), Place.all())),)
        return ()

    @property
    def host(self) -> str:
        return self.machine.host.hostname if self.machine else platform.node() or "unknown-host"

    @property
    def header(self) -> Header:
        return Header(
            schema=SCHEMA,
            tool=f"pytest-gpuxfer {__version__}",
            started=self._started.isoformat(timespec="seconds"),
            host=self.host,
            machine=self.machine,
            failure=self.failure,
            profile=self.profile,
            chosen=self._chosen,
            expected=self._expected,
            selected=len(self.selected),
            simulated=self.machine.simulated if self.machine else None,
            faults=self.machine.faults if self.machine else (),
        )

    @property
    def record(self) -> Record:
        lines, gates = tuple(self.lines.values()), tuple(self.gates)
        return Record(self.header, lines, self.end, gates=gates)

    @property
    def record_path(self) -> Path | None:
        return self._writer.path if self._writer else None

    @property
    def measured_any(self) -> bool:
        measured = [line.measurement for line in self.lines.values()]
        measured += [line.measurement for line in self.gates]
        return any(found is not None and found.failure is None for found in measured)

    @property
    def unjudged(self) -> tuple[str, ...]:
        return tuple(sorted(self.selected - self.lines.keys()))

    def begin(self, selected: Iterable[str]) -> None:
        """Say which cells the run is about, and write the record's header."""
        self.selected.update(selected)
        if self._out is not None and self._writer is None and self.record_error is None:
            stamp = self._started.strftime("%Y%m%dT%H%M%SZ")
            path = self._out / f"{self.host}-{stamp}-{os.getpid()}.jsonl"
            with self._recording(path):
                self._writer = Writer(path)
                self._writer.write(self.header)

    def expect(self, cell: Cell) -> Expectation:
        """What the profile asks of any cell. Needs a profile and a machine."""
        from pytest_gpuxfer.plan import expect

        assert self.profile is not None
        assert self.machine is not None
        return expect(self.profile, self.machine, cell, self._today)

    @property
    def bench(self) -> Bench:
        """What measures and allocates in this process; needs a machine."""
        from pytest_gpuxfer.transfer.bench import Bench

        if self._bench is None:
            assert self.hardware is not None
            assert self.machine is not None
            self._bench = Bench(self.hardware, self.machine)
        return self._bench

    @property
    def isolation(self) -> Isolated:
        """What measures in a process of its own; needs a machine."""
        from pytest_gpuxfer.transfer.isolation import Isolated

        if self._isolation is None:
            assert self.machine is not None
            telemetry = self.hardware.telemetry if self.hardware else None
            self._isolation = Isolated(self.machine, self._ends_at_ns, telemetry)
        return self._isolation

    def measure(
        self,
        cell: Cell,
        baselines: Mapping[Check, float] | None = None,
        *,
        in_process: bool = False,
    ) -> Measurement:
        """The cell's one measurement in this run, for whoever asks first: clear of its floor.

        `in_process`: beside a test's own buffers.
        """
        failure = self.failure or self._too_late()
        if cell.id not in self._measured:
            if failure is not None:
                return Measurement(cell, failure=failure)
            bench = self.isolation if self._isolated and not in_process else self.bench
            self._measured[cell.id] = bench.measure(cell, self._floor(cell, baselines or {}))
        return self._measured[cell.id]

    def _floor(self, cell: Cell, baselines: Mapping[Check, float]) -> float | None:
        limit = self.expect(cell).limit if self.profile else None
        return limit.floor.resolve(baselines) if limit and limit.floor else None

    def _too_late(self) -> Failure | None:
        if self._ends_at_ns is None or time.monotonic_ns() < self._ends_at_ns:
            return None
        assert self._deadline_ns is not None
        words = f"not tried: the run's {self._deadline_ns / NS_PER_S:g} s are over"
        return Failure(FailureKind.DEADLINE, words)

    def judge(self, expectation: Expectation) -> CellLine:
        """The cell's one verdict in this run; recorded, with the cells that it rests on."""
        cell = expectation.cell
        if cell.id in self.lines:
            return self.lines[cell.id]
        needed = self._needs(expectation)
        baselines = {} if expectation.members else self._medians(needed)
        measurement = None
        if expectation.members:
            measurement = self._compare(expectation)
        elif expectation.not_expected is None:
            measurement = self.measure(cell, baselines)
        verdict = judge(
            measurement, expectation, measurement.health if measurement else None, baselines
        )
        by_name = {str(check): rate for check, rate in baselines.items()}
        chosen = cell.id in self.selected
        line = CellLine(cell.id, measurement, expectation, verdict, by_name, chosen)
        self.lines[cell.id] = line
        self._write(line)
        for other in needed:  # after its own line: two checks may rest on each other
            self.judge(self.expect(other))
        return line

    def note(self, line: GateLine) -> None:
        """Keep and record what became of one gate of the self-test."""
        self.gates.append(line)
        self._write(line)

    def _needs(self, expectation: Expectation) -> tuple[Cell, ...]:
        from pytest_gpuxfer.plan import needs

        if self.machine is None or expectation.not_expected is not None:
            return ()
        return (*expectation.members, *needs(expectation, len(self.machine.gpus)))

    def _medians(self, cells: Iterable[Cell]) -> dict[Check, float]:
        """The slowest median of each check; none where one of its cells has no sound one."""
        medians: dict[Check, list[float | None]] = {}
        for cell in cells:
            medians.setdefault(cell.check, []).append(self._median(cell))
        return {
            check: min(median for median in found if median is not None)
            for check, found in medians.items()
            if None not in found
        }

    def _compare(self, expectation: Expectation) -> Measurement:
        """The figures of cells that should be equal, side by side."""
        medians = ((str(cell.place), self._median(cell)) for cell in expectation.members)
        found = {place: median for place, median in medians if median is not None}
        return Measurement(expectation.cell, reading=Reading(medians=found))

    def _median(self, cell: Cell) -> float | None:
        """The median rate of a cell, where its data was right."""
        measurement = self.measure(cell)
        integrity, rates = measurement.integrity, measurement.rates()
        sound = measurement.failure is None and integrity is not None and rates is not None
        return rates.median if sound and rates and integrity and not integrity.mismatch else None

    def _write(self, line: Line) -> None:
        self.begin(())
        if self._writer is not None and self.record_error is None:
            with self._recording(self._writer.path):
                self._writer.write(line)

    @contextmanager
    def _recording(self, path: Path) -> Iterator[None]:
        """What cannot be written ends the record, and never the run."""
        try:
            yield
        except OSError as error:
            self.record_error = (
                f"{path} ends before the run does: {error.strerror}; make room, or name another"
                " folder"
            )

    def finish(self, exit_status: int) -> None:
        """Close the record and give the machine back."""
        judged = [line for line in self.lines.values() if line.cell in self.selected]
        # Cells of people's own tests stand for none of the plan's.
        planned = self.selected.intersection(wanted.cell.id for wanted in self.plan)
        self.end = End(
            exit_status=exit_status,
            counts=count_outcomes(judged),
            expected=len(self.plan),
            selected=len(planned),
            judged=len(planned.intersection(self.lines)),
        )
        self._write(self.end)
        if self._writer is not None:
            self._writer.close()
        for bench in (self._bench, self._isolation):
            if bench is not None:
                bench.close()
