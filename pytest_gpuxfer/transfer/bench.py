"""Measures one cell at a time: frozen values in, frozen values out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pytest_gpuxfer.hardware import Hardware
from pytest_gpuxfer.hardware.driver import DriverError, PeerProcessError
from pytest_gpuxfer.model.cell import Cell
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import (
    AccessDirection,
    Failure,
    FailureKind,
    Integrity,
    Measurement,
    PathKind,
    Signal,
)
from pytest_gpuxfer.transfer import evidence, methods
from pytest_gpuxfer.transfer.arena import Arena, CannotAllocateError
from pytest_gpuxfer.transfer.health import HealthWatch
from pytest_gpuxfer.transfer.machine_checks import MachineChecks
from pytest_gpuxfer.transfer.methods.base import Route
from pytest_gpuxfer.transfer.peer_access import PeerAccess
from pytest_gpuxfer.transfer.sampling import PROBE_BYTES, Sampler
from pytest_gpuxfer.transfer.staging import Staging
from pytest_gpuxfer.transfer.waiting import HangError

_INVALID_VALUE: Final = 1


class Bench:
    """Owns what measuring holds on a machine; close it to give everything back."""

    def __init__(self, hardware: Hardware, machine: Machine) -> None:
        self._machine = machine
        self._telemetry = hardware.telemetry
        self._clock = hardware.clock
        self.arena = Arena(hardware, machine)
        self.peer_access = PeerAccess(self.arena, machine)
        self._checks = MachineChecks(machine, self._telemetry, self.arena, self.peer_access)
        self._staging = Staging(self.arena, self.peer_access)
        self._hung: set[int] = set()

    def measure(self, cell: Cell, decide_at_bytes_per_s: float | None = None) -> Measurement:
        """Measure `cell`; what the machine cannot do is the measurement's `failure`.

        Sampling goes on until the median is precise and its interval is clear of
        `decide_at_bytes_per_s`, or the most samples are taken.
        Raises KeyError for a check or GPU that does not exist: that is the caller's mistake.
        """
        started_ns = self._clock.now_ns()
        gpus = cell.place.gpus or tuple(range(len(self._machine.gpus)))
        watch = HealthWatch(self._telemetry, [self._machine.gpus[gpu] for gpu in gpus])
        if hung := self._hung.intersection(gpus):
            words = f"not tried: gpu{min(hung)} has hung before"
            measurement = Measurement(cell, failure=Failure(FailureKind.HANG, words))
        else:
            measurement = self._attempt(cell, decide_at_bytes_per_s)
        duration_ns = float(self._clock.now_ns() - started_ns)
        return replace(measurement, health=watch.health(), duration_ns=duration_ns)

    def close(self) -> None:
        """Put peer access back and free everything. A GPU that hung is left to process end."""
        if self._hung:
            return
        self.peer_access.restore()
        self.arena.close()

    def _attempt(self, cell: Cell, decide_at: float | None) -> Measurement:
        try:
            if cell.check.of_machine:
                return self._checks.measure(cell)
            return self._transfer(cell, decide_at)
        except HangError as error:
            self._hung.add(error.gpu)
            return Measurement(cell, failure=Failure(FailureKind.HANG, str(error)))
        except PeerProcessError as error:
            return Measurement(cell, failure=Failure(FailureKind.DRIVER_ERROR, str(error)))
        except CannotAllocateError as error:
            return Measurement(cell, failure=Failure(FailureKind.CANNOT_ALLOCATE, str(error)))
        except DriverError as error:
            return Measurement(cell, failure=Failure(_kind_of(error), str(error)))

    def _transfer(self, cell: Cell, decide_at: float | None) -> Measurement:
        size_bytes, check = cell.size_bytes, cell.check
        if size_bytes is None:
            raise KeyError(f"{cell.id} needs a size")
        method, routes = (
            methods.named(check.method),
            methods.routes_of(cell, len(self._machine.gpus)),
        )
        lacking = next(filter(None, (method.lacks(check, r, self.arena) for r in routes)), None)
        if lacking is not None:
            return Measurement(cell, lacking=lacking)
        access = self._switch_access(cell, routes)
        if check.access and not all(side.answer.on for side in access):
            return Measurement(cell, access=access)  # what it would be without is another cell
        flows = [method.flow(check, route, self.arena, size_bytes) for route in routes]
        short, long = (
            method.flow(check, routes[0], self.arena, min(probe_bytes, size_bytes))
            for probe_bytes in PROBE_BYTES
        )
        direct = all(flow.direct for flow in flows)
        sampler = Sampler(self.arena, cell.id)
        before_probe = self._counters(routes[:1])
        try:
            probe = sampler.probe(short, long)
        except DriverError as error:
            if check.access or error.code != _INVALID_VALUE:
                raise
            return Measurement(cell, access=access, refusal=str(error))
        gated = not probe.in_pieces
        if gated and direct and size_bytes >= min(PROBE_BYTES):
            # A copy that moved nothing over NVLink may be staged, though its enqueue did not grow.
            seen = before_probe.signal([long], sampler.take_moved_bytes())
            gated = not isinstance(seen.agrees_with, tuple) or PathKind.NVLINK in seen.agrees_with
        sampler.take_moved_bytes()
        counters = self._counters(routes)
        copies = probe.copies_for(flows)
        sampler.sample_until_sure(flows, copies, gated=gated, decide_at=decide_at)
        moved_bytes = sampler.take_moved_bytes()
        measurement = Measurement(
            cell,
            samples=tuple(sampler.samples),
            discarded=tuple(sampler.discarded),
            doubt=sampler.doubt,
            gated=sampler.gated,
            moved_bytes=moved_bytes,
            integrity=Integrity(sampler.checked_bytes, sampler.mismatch),
            access=access,
            flows=tuple(str(route) for route in routes) if len(routes) > 1 else (),
        )
        if not direct:
            return measurement
        counted = counters.signal(flows, moved_bytes)
        return replace(
            measurement,
            traffic=counters.traffic(),
            signals=(
                counted,
                evidence.access_signal(access),
                evidence.enqueue_signal(probe),
                *self._against_staging(measurement, counted, routes),
            ),
        )

    def _against_staging(
        self, measurement: Measurement, counted: Signal, routes: Sequence[Route]
    ) -> list[Signal]:
        """Further witnesses, where counters do not prove NVLink and access can be switched."""
        rates, access = measurement.rates(), measurement.cell.check.access
        if counted.agrees_with == (PathKind.NVLINK,) or rates is None or not access:
            return []
        return self._staging.signals(_pairs(routes), rates.median)

    def _counters(self, routes: Sequence[Route]) -> evidence.Counters:
        gpus = {gpu for route in routes for gpu in (route.source, route.destination)}
        return evidence.Counters(
            self._telemetry, self._machine, sorted(gpu for gpu in gpus if gpu is not None)
        )

    def _switch_access(self, cell: Cell, routes: Sequence[Route]) -> tuple[AccessDirection, ...]:
        """Peer access as the cell's check wants it; () where no pair of GPUs is concerned."""
        if not methods.named(cell.check.method).uses_peer_access:
            return ()
        pairs = _pairs(routes)
        if cell.check.access:
            return self.peer_access.enable_together(pairs)
        return tuple(side for pair in pairs for side in self.peer_access.disable(*pair))


def _pairs(routes: Sequence[Route]) -> list[tuple[int, int]]:
    """Those between two GPUs."""
    return [
        (route.source, route.destination)
        for route in routes
        if route.source is not None and route.destination is not None
    ]


def _kind_of(error: DriverError) -> FailureKind:
    if error.not_ready:
        return FailureKind.NOT_READY
    if error.sticky:
        return FailureKind.STICKY_ERROR
    return FailureKind.CANNOT_ALLOCATE if error.out_of_memory else FailureKind.DRIVER_ERROR
