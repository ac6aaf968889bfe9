"""Measuring in a process of its own, so that a hang or a crash costs its own cell only.

The child (`measuring_process` is its program) owns every CUDA context and answers what it is
asked, one cell at a time. It is replaced past a deadline, after a crash, and after an error that no
later call of its process would survive.
"""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import time
import weakref
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Final

from pytest_gpuxfer.hardware.child import start_child
from pytest_gpuxfer.hardware.telemetry import Telemetry
from pytest_gpuxfer.model.cell import Cell, Engine, Place
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import Failure, FailureKind, Measurement
from pytest_gpuxfer.model.units import NS_PER_S
from pytest_gpuxfer.model.unknown import Unknown

PROGRAM: Final = "pytest_gpuxfer.transfer.measuring_process"
START_S: Final = 60.0  # starting CUDA on a node with many GPUs takes ten
CELL_S: Final = 60.0  # a wait for a GPU ends after 20 s; no cell of the suites takes as long
_SLOWEST_BYTES_PER_S: Final = 10e6  # what the size of a cell adds to that
_END_S: Final = 5.0
_MOST_HANGS: Final = 2  # at one place and by one engine
_REPLACED_AFTER: Final = (FailureKind.HANG, FailureKind.CRASH, FailureKind.STICKY_ERROR)


class MeasuringError(Exception):
    """A mistake of ours in the child; the message is its traceback."""


class Isolated:
    """What a Bench does, in a child process. Times are of the host's clock."""

    def __init__(
        self,
        machine: Machine,
        ends_at_ns: int | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`telemetry` has listened for Xids since before the first cell."""
        self._machine = machine
        self._ends_at_ns = ends_at_ns
        self._telemetry = telemetry
        self._child: _Child | None = None
        self._lost: Failure | None = None  # why there will be no other child
        self._hangs: Counter[tuple[Place, Engine]] = Counter()

    def measure(self, cell: Cell, decide_at_bytes_per_s: float | None = None) -> Measurement:
        """As `Bench.measure`; a child that hangs, or crashes twice, is a failure as well.

        After two hangs at a place by an engine, the rest there is not tried. Raises MeasuringError.
        """
        where = (cell.place, cell.check.engine)
        if self._hangs[where] >= _MOST_HANGS:
            words = f"not tried: {_MOST_HANGS} cells at {cell.place} by {where[1]} have hung before"
            return Measurement(cell, failure=Failure(FailureKind.HANG, words))
        first = self._attempt(cell, decide_at_bytes_per_s)
        if first.failure is None or first.failure.kind is not FailureKind.CRASH or self._lost:
            return first
        if xids := self._xids(cell):
            words = f"{first.failure.message}, and the driver has reported {', '.join(xids)}"
            return replace(first, failure=replace(first.failure, message=words))
        return replace(self._attempt(cell, decide_at_bytes_per_s), crash=first.failure.message)

    def _xids(self, cell: Cell) -> list[str]:
        """What the driver has reported of the cell's GPUs in this run: no crash of a library's."""
        if self._telemetry is None:
            return []
        gpus = [self._machine.gpus[index] for index in cell.place.gpus] or self._machine.gpus
        heard = ((gpu, self._telemetry.status(gpu.uuid).xids) for gpu in gpus)
        return [
            f"Xid {code} on {gpu.label}"
            for gpu, codes in heard
            if not isinstance(codes, Unknown)
            for code in codes
        ]

    def _attempt(self, cell: Cell, decide_at_bytes_per_s: float | None) -> Measurement:
        started_ns = time.monotonic_ns()
        answer = self._lost or self._started() or self._ask((cell, decide_at_bytes_per_s), cell)
        if isinstance(answer, Measurement):
            measurement = answer
        else:
            took_ns = float(time.monotonic_ns() - started_ns)
            measurement = Measurement(cell, failure=answer, duration_ns=took_ns)
        failure = measurement.failure
        if failure is not None and failure.kind in _REPLACED_AFTER:
            self._hangs[cell.place, cell.check.engine] += failure.kind is FailureKind.HANG
            self.close()
        return measurement

    def close(self) -> None:
        """End the child, in order where it waits for us; again is harmless."""
        child, self._child = self._child, None
        if child is not None and not child.end():
            words = f"process {child.pid} hangs in the driver, and not even SIGKILL ends it"
            remedy = "look for Xid in `dmesg -T`; a reset of the GPU or of the node frees it"
            self._lost = Failure(FailureKind.HANG, f"not tried: {words}", remedy)

    def _started(self) -> Failure | None:
        """Why there is no child, once it was tried to start one; twice where the first crashed."""
        if self._child is not None:
            return None
        failure = self._start()
        if failure is not None and failure.kind is FailureKind.CRASH:
            self.close()
            failure = self._lost or self._start()
        if failure is not None:
            # Before the child is closed, which may have a worse one.
            self._lost = self._lost or failure
            self.close()
        return failure

    def _start(self) -> Failure | None:
        self._child = _Child()
        failure: Failure | None = self._ask(self._machine, None)
        if failure is not None and failure.kind is FailureKind.CRASH:
            return replace(failure, message=f"not tried: as it started, {failure.message}")
        return failure

    def _ask(self, request: Any, cell: Cell | None) -> Any:
        """The child's answer, or the failure that stands in its place. Raises MeasuringError."""
        assert self._child is not None
        allowed_s = left_s = START_S if cell is None else _allowed_s(cell)
        if self._ends_at_ns is not None:
            left_s = min(allowed_s, (self._ends_at_ns - time.monotonic_ns()) / NS_PER_S)
        try:
            answer = self._child.ask(request, left_s)
        except TimeoutError:
            if left_s < allowed_s:
                return Failure(FailureKind.DEADLINE, "given up: the run's time ended meanwhile")
            doing = "start" if cell is None else "measure this"
            words = f"the measuring process did not {doing} within {allowed_s:.0f} s, and was ended"
            return Failure(FailureKind.HANG, words)
        except (EOFError, OSError):
            return Failure(FailureKind.CRASH, self._child.last_words())
        if isinstance(answer, MeasuringError):
            self.close()
            raise answer
        return answer


def _allowed_s(cell: Cell) -> float:
    return CELL_S + (cell.size_bytes or 0) / _SLOWEST_BYTES_PER_S


class _Child:
    """The process and our end of the pipe to it."""

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = start_child(PROGRAM, theirs.fileno())
        self._busy = False
        # Also at exit, and when nobody has this object any more.
        self._kill = weakref.finalize(self, _kill, self._process, self._connection)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Any, timeout_s: float) -> Any:
        """Raises TimeoutError, and EOFError or OSError where the process is gone."""
        self._busy = True
        self._connection.send(request)
        if not self._connection.poll(max(0.0, timeout_s)):
            raise TimeoutError
        answer = self._connection.recv()
        self._busy = False
        return answer

    def last_words(self) -> str:
        """How the process ended; for one that closed its end of the pipe."""
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "the measuring process broke off"
        if status < 0:
            return f"the measuring process was ended by {_signal_name(-status)}"
        return f"the measuring process ended with status {status}"

    def end(self) -> bool:
        """Whether it has ended: in order where it was idle, else killed."""
        if not self._busy:
            self._connection.close()  # what it reads as our goodbye
            with suppress(subprocess.TimeoutExpired):  # giving the GPUs back may hang as well
                self._process.wait(_END_S)
        return bool(self._kill())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


def _kill(process: subprocess.Popen[bytes], connection: Connection) -> bool:
    """Whether the process has ended: one that hangs in the kernel's driver outlives SIGKILL."""
    connection.close()
    process.kill()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        return False
    return True
