"""Peer access: asked, switched on and off, proven, and put back as it was."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
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
        self._enable(gpu, peer)
        self._enable(peer, gpu)
        return self.state(gpu, peer)

    def enable_together(self, pairs: Sequence[tuple[int, int]]) -> tuple[AccessDirection, ...]:
        """Switch on what all these pairs need at once, both directions. Raises DriverError.

        A GPU maps only so many peers (eight, where no NVSwitch joins them): where room is short,
        what none of these pairs needs is switched off, the longest unused first; also what a test
        switched on by `enable`.
        """
        wanted = list(dict.fromkeys(way for pair in pairs for way in (pair, pair[::-1])))
        for way in wanted:
            while self._enable(*way) is Access.TOO_MANY_PEERS:
                unused = next(self._ours_at(way, wanted), None)
                if unused is None:
                    break
                self._switch_off(*unused)
        return tuple(self._direction(*way) for way in wanted)

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

    def _enable(self, mapper: int, owner: int) -> Access:
        answer = self._answers.pop((mapper, owner), Access.OFF)
        if not answer.on:
            answer = self._ask(mapper, owner)
        self._answers[mapper, owner] = answer  # the last one used stands last
        return answer

    def _ours_at(
        self, way: tuple[int, int], kept: Collection[tuple[int, int]]
    ) -> Iterator[tuple[int, int]]:
        """What we switched on of the same GPUs, besides what is kept."""
        for other, answer in self._answers.items():
            if answer is Access.ENABLED and other not in kept and set(other) & set(way):
                yield other

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
        self._proven.pop((mapper, owner), None)

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
