"""Checks of the machine itself: its GPUs, their links, peer access. They read, and move little."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import Final

from pytest_gpuxfer.hardware.telemetry import Telemetry
from pytest_gpuxfer.model.cell import Cell, Check, Place
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import Measurement, Reading
from pytest_gpuxfer.model.pattern import Pattern
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.host_link import HostToDevice
from pytest_gpuxfer.transfer.peer_access import PeerAccess
from pytest_gpuxfer.transfer.waiting import wait_idle

GPUS: Final = Check("machine.gpus")
NVLINK: Final = Check("machine.nvlink")
PCIE: Final = Check("machine.pcie")
PEER_ACCESS: Final = Check("machine.peer_access")
ALL: Final = (GPUS, NVLINK, PCIE, PEER_ACCESS)

_LOAD_BYTES: Final = 64 * MIB  # 1 ms on PCIe Gen5 x16
_LOAD_COPIES: Final = 32


class MachineChecks:
    """Answers the `machine.*` cells."""

    def __init__(
        self, machine: Machine, telemetry: Telemetry, arena: Arena, access: PeerAccess
    ) -> None:
        self._machine = machine
        self._telemetry = telemetry
        self._arena = arena
        self._access = access
        self._answers: Mapping[Check, Callable[[Cell], Measurement]] = {
            GPUS: self._gpus,
            NVLINK: self._nvlink,
            PCIE: self._pcie,
            PEER_ACCESS: self._peer_access,
        }

    def measure(self, cell: Cell) -> Measurement:
        """What the machine says to `cell`. Raises HangError, DriverError, KeyError."""
        return self._answers[cell.check](cell)

    def _gpus(self, cell: Cell) -> Measurement:
        gpus = self._machine.gpus
        mig = tuple(gpu.label for gpu in gpus if gpu.mig_enabled is True)
        return Measurement(cell, reading=Reading(tuple(gpu.name for gpu in gpus), mig))

    def _nvlink(self, cell: Cell) -> Measurement:
        uuid = self._machine.gpus[cell.place.gpus[0]].uuid
        return Measurement(cell, reading=Reading(nvlinks=self._telemetry.nvlinks(uuid)))

    def _pcie(self, cell: Cell) -> Measurement:
        """The link's width and generation while copies run: at idle it is trained down."""
        (gpu,) = cell.place.gpus
        transfer = HostToDevice().prepare(cell, self._arena, _LOAD_BYTES)
        source = transfer.load(Pattern(0))
        for _ in range(_LOAD_COPIES):
            transfer.enqueue(source)
        link = self._telemetry.pcie_link(self._machine.gpus[gpu].uuid)
        wait_idle(self._arena, gpu)
        return Measurement(cell, reading=Reading(pcie_under_load=link))

    def _peer_access(self, cell: Cell) -> Measurement:
        source, destination = cell.place.gpus
        self._access.enable(source, destination)
        return Measurement(cell, access=self._access.prove(source, destination))


def cells(machine: Machine, *, with_nvlink: bool, with_pairs: bool) -> Iterator[Cell]:
    """The machine cells that a profile with NVLink, or with pairs, asks for."""
    indices = range(len(machine.gpus))
    yield Cell(GPUS, Place.all())
    if with_nvlink:
        yield from (Cell(NVLINK, Place.gpu(index)) for index in indices)
    yield from (Cell(PCIE, Place.gpu(index)) for index in indices)
    if with_pairs:
        yield from (Cell(PEER_ACCESS, Place.pair(*pair)) for pair in permutations(indices, 2))
