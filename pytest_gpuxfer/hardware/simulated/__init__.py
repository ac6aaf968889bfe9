"""A machine model behind the hardware Protocols, over virtual time."""

from __future__ import annotations

from pytest_gpuxfer.hardware import Hardware
from pytest_gpuxfer.hardware.simulated.driver import SimulatedDriver
from pytest_gpuxfer.hardware.simulated.errors import SimulationError
from pytest_gpuxfer.hardware.simulated.faults import FaultKind, fault_kinds, fault_lines, inflict
from pytest_gpuxfer.hardware.simulated.machine_reader import (
    load_machine,
    machine_names,
    short_name,
)
from pytest_gpuxfer.hardware.simulated.node import Node
from pytest_gpuxfer.hardware.simulated.placement import SimulatedPlacement
from pytest_gpuxfer.hardware.simulated.telemetry import SimulatedTelemetry
from pytest_gpuxfer.model.machine import HostFacts
from pytest_gpuxfer.model.unknown import Unknown

__all__ = (
    "FaultKind",
    "SimulationError",
    "fault_kinds",
    "fault_lines",
    "machine_names",
    "open_machine",
)


def open_machine(machine: str, faults: tuple[str, ...], seed: int = 0) -> Hardware:
    """The machine of that name, or of that file, with those faults. Raises SimulationError.

    A fault without its place gets the default one, and `Hardware.faults` says so. Runs with the
    same `seed` are the same; with another one, no two copies take as long as there.
    """
    name = short_name(machine)
    described, defects, placed = inflict(faults, load_machine(machine))
    node = Node(name, described, defects, seed)
    none = Unknown("a simulated machine has none")
    host = HostFacts(name, none, none, none, none, none)
    return Hardware(
        SimulatedDriver(node),
        SimulatedTelemetry(node),
        node.clock,
        SimulatedPlacement(node),
        host,
        machine,
        placed,
    )
