"""What arrives instead of what was sent."""

from __future__ import annotations

import random
from typing import Final

from pytest_gpuxfer.hardware.simulated.defects import Damage, Way
from pytest_gpuxfer.hardware.simulated.memory import WordMap
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, WORD_BYTES, Pattern
from pytest_gpuxfer.model.units import KIB

# Staged copies never see what is wrong with the peer link.
OF_PEER_LINK: Final = frozenset({Damage.DROPPED, Damage.ZEROS, Damage.NAN, Damage.ONE_PAGE})

_NAN_WORD: Final = 0x7FC0_0000_7FC0_0000  # two floats
_PAGE_WORDS: Final = 64 * KIB // WORD_BYTES


class Spoiler:
    """Does damage to what was just written."""

    def __init__(self, generator: random.Random) -> None:
        self._random = generator
        # Of each way: what was sent last, and what other data before that.
        self._sent: dict[Way, tuple[WordMap, WordMap | None]] = {}

    def spoil(self, damage: frozenset[Damage], target: WordMap, start: int, words: int) -> None:
        """Leave [start, start + words) as the link would."""
        if Damage.ZEROS in damage:
            target.fill(start, words, 0)
        if Damage.NAN in damage:
            target.fill(start, words, _NAN_WORD)
        if Damage.ONE_PAGE in damage:
            page = self._random.randrange(-(-words // _PAGE_WORDS)) * _PAGE_WORDS
            other = Pattern(self._random.randrange(PERIOD_WORDS))
            target.fill(start + page, min(_PAGE_WORDS, words - page), other)
        if Damage.FLIPPED_BIT in damage and words:
            at = start + self._random.randrange(words)
            target.fill(at, 1, target.word(at) ^ 1 << self._random.randrange(64))

    def delay(self, way: Way, target: WordMap, start: int, words: int) -> None:
        """Keep what arrived for later, and leave what was sent before it instead."""
        arrived = WordMap(words)
        arrived.copy(0, target, start, words)
        latest, earlier = self._sent.get(way, (arrived, None))
        if not latest.same_as(arrived):
            earlier = latest
        self._sent[way] = (arrived, earlier)
        if earlier is not None:
            target.copy(start, earlier, 0, min(words, earlier.words))
