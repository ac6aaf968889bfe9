"""The only code that touches a machine, real or simulated, and the bundle it hands out."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuxfer.hardware.clock import Clock
from pytest_gpuxfer.hardware.driver import Driver
from pytest_gpuxfer.hardware.placement import CpuPlacement
from pytest_gpuxfer.hardware.telemetry import Telemetry
from pytest_gpuxfer.model.machine import HostFacts


class HardwareError(Exception):
    """The machine cannot be measured at all: what is missing, and what to do about it."""

    def __init__(self, message: str, remedy: str, *, not_ready: bool = False) -> None:
        super().__init__(message)
        self.message, self.remedy, self.not_ready = message, remedy, not_ready


@dataclass(frozen=True, slots=True)
class Hardware:
    """One machine behind the seam. `simulated` names the model, or is None on a real machine."""

    driver: Driver
    telemetry: Telemetry
    clock: Clock
    placement: CpuPlacement
    host: HostFacts
    simulated: str | None = None
    faults: tuple[str, ...] = ()


def open_hardware() -> Hardware:
    """The machine that this process runs on. Raises HardwareError with what to install."""
    from pytest_gpuxfer.hardware.clock import SystemClock
    from pytest_gpuxfer.hardware.cpu_placement import SystemPlacement
    from pytest_gpuxfer.hardware.cuda import open_driver
    from pytest_gpuxfer.hardware.host import read_host
    from pytest_gpuxfer.hardware.nvml import open_telemetry

    return Hardware(open_driver(), open_telemetry(), SystemClock(), SystemPlacement(), read_host())


def open_simulated(name: str, faults: tuple[str, ...] = ()) -> Hardware:
    """A simulated machine by its name. Raises SimulationError for an unknown machine or fault."""
    from pytest_gpuxfer.hardware.simulated import open_machine

    return open_machine(name, faults)
