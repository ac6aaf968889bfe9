"""Data first: a fresh pattern for each sample, checked by the owner of the destination."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from pytest_gpuxfer.hardware.driver import Comparison
from pytest_gpuxfer.model.measurement import Corruption, Mismatch
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, POISON_WORD, Pattern, index_of
from pytest_gpuxfer.transfer.methods.base import Flow

# Windows start on pages, so that a host source is as well aligned as any buffer.
_STEP_WORDS: Final = 4096 // 8
_WINDOWS: Final = PERIOD_WORDS // _STEP_WORDS
_PAGE_BYTES: Final = 64 * 1024


def pattern_of(cell_id: str, round_number: int) -> Pattern:
    """The pattern of a cell's n-th round: different from its last ones and from its sisters'."""
    window = (crc32(cell_id.encode()) + round_number) % _WINDOWS
    return Pattern(window * _STEP_WORDS)


def check(flow: Flow, pattern: Pattern, last: Pattern | None) -> Mismatch | None:
    """What is wrong with a destination that should hold `pattern`; `last` was copied before it."""
    seen = flow.compare(pattern)
    if seen.wrong_words == 0:
        return None
    return Mismatch(
        wrong_words=seen.wrong_words,
        first_offset_bytes=seen.first_offset_bytes,
        last_offset_bytes=seen.last_offset_bytes,
        expected=seen.expected,
        got=seen.got,
        corruption=_classify(seen, last),
    )


def _classify(seen: Comparison, last: Pattern | None) -> Corruption:
    if seen.got == POISON_WORD:
        return Corruption.NEVER_WRITTEN
    if seen.got == 0:
        return Corruption.ZEROS
    word = seen.first_offset_bytes // 8
    if last is not None and seen.got == last.word(word):
        return Corruption.STALE
    if index_of(seen.got) is not None:
        return Corruption.SHIFTED
    if seen.wrong_words == 1 and (seen.expected ^ seen.got).bit_count() == 1:
        return Corruption.FLIPPED_BIT
    if seen.first_offset_bytes // _PAGE_BYTES == seen.last_offset_bytes // _PAGE_BYTES:
        return Corruption.ONE_PAGE
    return Corruption.OTHER
