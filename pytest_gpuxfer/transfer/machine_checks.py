"""Checks of the machine itself: its GPUs, their links, peer access. They read, and move little."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, permutations
from typing import Final

from pytest_gpuxfer.hardware.driver import AtomicAdd, Handshake, Memory
from pytest_gpuxfer.hardware.telemetry import Telemetry
from pytest_gpuxfer.model.cell import Cell, Check, Place
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import Count, Measurement, Reading
from pytest_gpuxfer.model.pattern import Pattern
from pytest_gpuxfer.model.units import MIB, NS_PER_S
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import Route, write
from pytest_gpuxfer.transfer.methods.host_link import HostToDevice
from pytest_gpuxfer.transfer.peer_access import PeerAccess
from pytest_gpuxfer.transfer.waiting import wait_idle

GPUS: Final = Check("machine.gpus")
NVLINK: Final = Check("machine.nvlink")
PCIE: Final = Check("machine.pcie")
PEER_ACCESS: Final = Check("machine.peer_access")
HANDSHAKE: Final = Check("machine.handshake")
ATOMICS: Final = Check("machine.atomics")
BETWEEN_PEERS: Final = (PEER_ACCESS, HANDSHAKE, ATOMICS)
ALL: Final = (GPUS, NVLINK, PCIE, *BETWEEN_PEERS)

_LOAD_BYTES: Final = 64 * MIB  # 1 ms on PCIe Gen5 x16
_LOAD_COPIES: Final = 32
_WORDS_BYTES: Final = 256
_ROUNDS: Final = 1000
_ADDS: Final = 2**20
_KERNEL_LIMIT_NS: Final = int(NS_PER_S)


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
            HANDSHAKE: self._handshake,
            ATOMICS: self._atomics,
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
        links, fabric = self._telemetry.nvlinks(uuid), self._telemetry.fabric_state(uuid)
        return Measurement(cell, reading=Reading(nvlinks=links, fabric=fabric))

    def _pcie(self, cell: Cell) -> Measurement:
        """The link's width and generation while copies run: at idle it is trained down."""
        (gpu,) = cell.place.gpus
        load = Check(HostToDevice.name)
        flow = HostToDevice().flow(load, Route(None, gpu), self._arena, _LOAD_BYTES)
        source = flow.load(Pattern(0))
        for _ in range(_LOAD_COPIES):
            flow.enqueue(source)
        link = self._telemetry.pcie_link(self._machine.gpus[gpu].uuid)
        wait_idle(self._arena, gpu)
        return Measurement(cell, reading=Reading(pcie_under_load=link))

    def _peer_access(self, cell: Cell) -> Measurement:
        source, destination = cell.place.gpus
        self._access.enable_together([(source, destination)])
        return Measurement(cell, access=self._access.prove(source, destination))

    def _handshake(self, cell: Cell) -> Measurement:
        """Kernels on both GPUs answer each other's flags while both run: what collectives do."""
        lead, follow = cell.place.gpus
        access = self._access.enable_together([(lead, follow)])
        if not all(side.answer.on for side in access):
            return Measurement(cell, access=access)
        flags = {gpu: self._words_of(gpu) for gpu in (lead, follow)}
        for gpu, peer in ((lead, follow), (follow, lead)):
            kernel = Handshake(
                flags[gpu], flags[peer], _ROUNDS, leads=gpu == lead, limit_ns=_KERNEL_LIMIT_NS
            )
            self._arena.driver.launch(kernel, self._arena.stream(gpu))
        for gpu in (lead, follow):
            wait_idle(self._arena, gpu)
        answered = min(self._arena.driver.read_words(flags[gpu], 2)[1] for gpu in (lead, follow))
        return Measurement(cell, access=access, reading=Reading(answered=Count(answered, _ROUNDS)))

    def _atomics(self, cell: Cell) -> Measurement:
        """Many threads of one GPU add to a word of another, which then counts for itself."""
        adder, owner = cell.place.gpus
        gpus = self._machine.gpus
        access = self._access.enable_together([(adder, owner)])
        if not all(side.answer.on for side in access):
            return Measurement(cell, access=access)
        if not self._arena.driver.native_atomics(gpus[adder].ordinal, gpus[owner].ordinal):
            why = f"no native atomics between gpu{adder} and gpu{owner}"
            return Measurement(cell, access=access, lacking=why)
        word = self._words_of(owner)
        self._arena.driver.launch(AtomicAdd(word, _ADDS), self._arena.stream(adder))
        wait_idle(self._arena, adder)
        (counted,) = self._arena.driver.read_words(word, 1)
        return Measurement(cell, access=access, reading=Reading(added=Count(counted, _ADDS)))

    def _words_of(self, gpu: int) -> Memory:
        """A few words of a GPU's memory, zeroed by itself."""
        return write(self._arena, self._arena.device(gpu, "words", _WORDS_BYTES), gpu, 0)


def cells(machine: Machine, *, with_nvlink: bool, with_pairs: bool) -> Iterator[Cell]:
    """The machine cells that a profile with NVLink, or with pairs, asks for."""
    indices = range(len(machine.gpus))
    yield Cell(GPUS, Place.all())
    if with_nvlink:
        yield from (Cell(NVLINK, Place.gpu(index)) for index in indices)
    yield from (Cell(PCIE, Place.gpu(index)) for index in indices)
    if with_pairs:
        for check in (PEER_ACCESS, ATOMICS):
            yield from (Cell(check, Place.pair(*pair)) for pair in permutations(indices, 2))
        yield from (Cell(HANDSHAKE, Place.pair(*pair)) for pair in combinations(indices, 2))
