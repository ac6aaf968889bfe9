"""Peer access: asked, switched on and off, proven, and put back as it was."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from pytest_gpuxfer.hardware.driver import Comparison, DriverError, Fill
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import NOT_TRIED, Access, AccessDirection
from pytest_gpuxfer.model.pattern import POISON_WORD, Pattern
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.waiting import wait_idle

_PROOF_BYTES: Final = MIB


class PeerAccess:
    """The state of each direction: `mapper` uses memory of `owner`. GPUs are named by index.

    What was on before us (704) is left on, always; what we switched on is ours to switch off.
    """

    def __init__(self, arena: Arena, machine: Machine) -> None:
        self._arena = arena
        self._machine = machine
        self._answers: dict[tuple[int, int], Access] = {}
        self._proven: dict[tuple[int, int], bool | Unknown] = {}

    def state(self, gpu: int, peer: int) -> tuple[AccessDirection, AccessDirection]:
        """Both directions between two GPUs, as far as they were asked for."""
        return self._direction(gpu, peer), self._direction(peer, gpu)

    def enable(self, gpu: int, peer: int) -> tuple[AccessDirection, AccessDirection]:
        """Switch both directions on; the answers say what became of it. Raises DriverError."""
        for mapper, owner in ((gpu, peer), (peer, gpu)):
            if not self._answers.get((mapper, owner), Access.OFF).on:
                self._answers[mapper, owner] = self._ask(mapper, owner)
        return self.state(gpu, peer)

    def disable(self, gpu: int, peer: int) -> tuple[AccessDirection, AccessDirection]:
        """Switch off what we switched on; what others had on is found out and left on."""
        for mapper, owner in ((gpu, peer), (peer, gpu)):
            if (mapper, owner) not in self._answers:
                # Only asking tells whether it was on before.
                self._answers[mapper, owner] = self._ask(mapper, owner)
            if self._answers[mapper, owner] is Access.ENABLED:
                self._switch_off(mapper, owner)
        return self.state(gpu, peer)

    def prove(self, gpu: int, peer: int) -> tuple[AccessDirection, AccessDirection]:
        """Have a kernel of each GPU store to the other's memory; each owner looks for itself."""
        for mapper, owner in ((gpu, peer), (peer, gpu)):
            if self._answers.get((mapper, owner), Access.OFF).on:
                self._proven[mapper, owner] = self._store_and_look(mapper, owner)
        return self.state(gpu, peer)

    def restore(self) -> None:
        """Switch off all that we switched on."""
        for (mapper, owner), answer in list(self._answers.items()):
            if answer is Access.ENABLED:
                with suppress(DriverError):
                    self._switch_off(mapper, owner)

    def _ask(self, mapper: int, owner: int) -> Access:
        driver = self._arena.driver
        gpus = self._machine.gpus
        if not driver.can_access_peer(gpus[mapper].ordinal, gpus[owner].ordinal):
            return Access.REFUSED
        return driver.enable_peer_access(self._arena.context(mapper), self._arena.context(owner))

    def _switch_off(self, mapper: int, owner: int) -> None:
        driver = self._arena.driver
        driver.disable_peer_access(self._arena.context(mapper), self._arena.context(owner))
        self._answers[mapper, owner] = Access.OFF

    def _direction(self, mapper: int, owner: int) -> AccessDirection:
        answer = self._answers.get((mapper, owner), Access.OFF)
        proven = self._proven.get((mapper, owner), NOT_TRIED) if answer.on else NOT_TRIED
        return AccessDirection(mapper, owner, answer, proven)

    def _store_and_look(self, mapper: int, owner: int) -> bool:
        arena, driver = self._arena, self._arena.driver
        memory = arena.device(owner, "destination", _PROOF_BYTES)
        pattern = Pattern(1 + mapper * 64 + owner)
        driver.launch(Fill(memory, POISON_WORD), arena.stream(owner))
        wait_idle(arena, owner)
        driver.launch(Fill(memory, pattern), arena.stream(mapper))
        wait_idle(arena, mapper)
        seen: Comparison = driver.compare(memory, pattern)
        return seen.wrong_words == 0
