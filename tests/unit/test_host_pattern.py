from __future__ import annotations

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuxfer.hardware import host_pattern
from pytest_gpuxfer.hardware.driver import Comparison, Memory
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, POISON_WORD, Pattern

WORDS = 2 * PERIOD_WORDS + 700  # more than two periods, and no whole number of pages
BUFFER = (ctypes.c_uint64 * WORDS)()
MEMORY = Memory(ctypes.addressof(BUFFER), 8 * WORDS, None)


@pytest.mark.parametrize("offset", [0, 1, PERIOD_WORDS - 1])
def test_each_word_is_the_patterns(offset: int) -> None:
    pattern = Pattern(offset)
    host_pattern.fill(MEMORY, pattern)
    for index in (0, 1, PERIOD_WORDS - 1, PERIOD_WORDS, 2 * PERIOD_WORDS, WORDS - 1):
        assert BUFFER[index] == pattern.word(index)
    assert host_pattern.compare(MEMORY, pattern) == Comparison(0)


def test_one_word_again_and_again() -> None:
    host_pattern.fill(MEMORY, POISON_WORD)
    assert set(BUFFER) == {POISON_WORD}
    found = host_pattern.compare(MEMORY, Pattern(3))
    assert found == Comparison(WORDS, 0, 8 * (WORDS - 1), Pattern(3).word(0), POISON_WORD)


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.integers(0, WORDS - 1), st.integers(1, 2**64 - 1), min_size=1, max_size=9)
)
def test_exactly_the_changed_words_are_found(flips: dict[int, int]) -> None:
    pattern = Pattern(5)
    host_pattern.fill(MEMORY, pattern)
    for index, bits in flips.items():
        BUFFER[index] ^= bits
    first, last = min(flips), max(flips)
    assert host_pattern.compare(MEMORY, pattern) == Comparison(
        len(flips), 8 * first, 8 * last, pattern.word(first), pattern.word(first) ^ flips[first]
    )


def test_nothing_outside_the_memory_is_touched_or_compared() -> None:
    host_pattern.fill(MEMORY, POISON_WORD)
    inner = MEMORY.window(8 * 3, 8 * (PERIOD_WORDS + 1))
    host_pattern.fill(inner, Pattern(9))
    assert host_pattern.compare(inner, Pattern(9)) == Comparison(0)
    assert BUFFER[2] == BUFFER[PERIOD_WORDS + 4] == POISON_WORD
