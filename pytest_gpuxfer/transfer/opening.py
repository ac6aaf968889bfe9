"""Opening a machine, for the run and again for the process that measures."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuxfer.hardware import Hardware, HardwareError, open_hardware, open_simulated
from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.hardware.driver import DriverError
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import Failure, FailureKind


@dataclass(frozen=True, slots=True)
class Opened:
    """A machine opened, or the failure that stands in its place."""

    hardware: Hardware | None
    machine: Machine | None
    failure: Failure | None = None


def open_machine(simulated: str | None, faults: tuple[str, ...]) -> Opened:
    """This machine, or a simulated one by its name; makes no CUDA context.

    Raises SimulationError for a simulated machine or a fault that does not exist.
    """
    try:
        hardware = open_hardware() if simulated is None else open_simulated(simulated, faults)
        return Opened(hardware, discover(hardware))
    except HardwareError as error:
        kind = FailureKind.NOT_READY if error.not_ready else FailureKind.NO_DRIVER
        return Opened(None, None, Failure(kind, error.message, error.remedy))
    except DriverError as error:
        kind = FailureKind.NOT_READY if error.not_ready else FailureKind.DRIVER_ERROR
        return Opened(None, None, Failure(kind, str(error)))
