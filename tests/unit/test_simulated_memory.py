from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuxfer.hardware.driver import Comparison
from pytest_gpuxfer.hardware.simulated.memory import (
    AddressError,
    AddressSpace,
    Content,
    WordMap,
)
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, Pattern, mix

WORDS = 24
PATTERN = Pattern(PERIOD_WORDS - 3)
# Windows that overlap each other and the end of the period, and words that occur in them.
CONTENTS = st.one_of(
    st.integers(-4, 4).map(Pattern),
    st.integers(0, WORDS).map(mix),
    st.sampled_from([0, 1, 2**64 - 1]),
)
SPANS = st.tuples(st.integers(0, WORDS), st.integers(0, WORDS)).map(sorted).map(tuple)
FILLS = st.tuples(st.just("fill"), SPANS, CONTENTS)
COPIES = st.tuples(st.just("copy"), SPANS, st.integers(0, WORDS))
SIDES = st.sampled_from([(0, 0), (0, 1), (1, 0)])


def word(content: Content, index: int) -> int:
    return content if isinstance(content, int) else content.word(index)


def naive_comparison(words: list[int], pattern: Pattern) -> Comparison:
    wrong = [index for index, got in enumerate(words) if got != pattern.word(index)]
    if not wrong:
        return Comparison(0)
    first = wrong[0]
    return Comparison(len(wrong), first * 8, wrong[-1] * 8, pattern.word(first), words[first])


@settings(deadline=None)  # other work on the machine is no failure
@given(
    st.lists(st.tuples(st.one_of(FILLS, COPIES), SIDES), max_size=12),
    SPANS,
    st.integers(-4, 4).map(Pattern),
)
def test_intervals_hold_what_a_list_of_words_would(
    steps: list[tuple[tuple[str, tuple[int, int], Content], tuple[int, int]]],
    span: tuple[int, int],
    pattern: Pattern,
) -> None:
    maps, lists = (WordMap(WORDS), WordMap(WORDS)), ([0] * WORDS, [0] * WORDS)
    for (kind, (start, end), what), (target, source) in steps:
        if kind == "fill":
            maps[target].fill(start, end - start, what)
            lists[target][start:end] = [word(what, index) for index in range(end - start)]
            continue
        assert isinstance(what, int)
        count = min(end, WORDS - what) - start
        if count > 0:
            maps[target].copy(what, maps[source], start, count)
            lists[target][what : what + count] = lists[source][start : start + count]
    low, high = span
    for words, naive in zip(maps, lists, strict=True):
        assert [words.word(position) for position in range(WORDS)] == naive
        assert words.compare(low, high - low, pattern) == naive_comparison(naive[low:high], pattern)


@settings(deadline=None)  # other work on the machine is no failure
@given(st.integers(0, PERIOD_WORDS - 1), st.integers(0, 3 * PERIOD_WORDS))
def test_a_constant_agrees_with_a_pattern_once_a_period(offset: int, index: int) -> None:
    words = 3 * PERIOD_WORDS
    memory = WordMap(words)
    memory.fill(0, words, Pattern(offset).word(index))
    assert memory.compare(0, words, Pattern(offset)).wrong_words == words - 3


@settings(deadline=None)  # other work on the machine is no failure
@given(CONTENTS, SPANS, st.integers(-4, 4).map(Pattern))
def test_one_constant_against_a_pattern(
    content: Content, span: tuple[int, int], pattern: Pattern
) -> None:
    memory, (low, high) = WordMap(WORDS), span
    memory.fill(0, WORDS, content)
    naive = [word(content, index) for index in range(low, high)]
    assert memory.compare(low, high - low, pattern) == naive_comparison(naive, pattern)


@pytest.mark.parametrize("right", [0, 1, 7])
def test_the_one_right_word_of_a_constant_is_left_out_at_either_end(right: int) -> None:
    memory = WordMap(8)
    memory.fill(0, 8, PATTERN.word(right))
    found = memory.compare(0, 8, PATTERN)
    assert (found.wrong_words, found.first_offset_bytes, found.last_offset_bytes) == (
        7,
        8 if right == 0 else 0,
        48 if right == 7 else 56,
    )


def test_copies_of_pieces_merge_to_one_interval() -> None:
    source, target = WordMap(1000), WordMap(1000)
    source.fill(0, 1000, Pattern(7))
    for start in (500, 0, 250, 750):
        target.copy(start, source, start, 250)
    assert len(target) == 1
    assert target.compare(0, 1000, Pattern(7)) == Comparison(0)


def test_one_flipped_bit_is_found_and_named() -> None:
    memory = WordMap(2**26)
    memory.fill(0, 2**26, Pattern(3))
    good = memory.word(1_000_000)
    memory.fill(1_000_000, 1, good ^ 1)
    assert memory.compare(0, 2**26, Pattern(3)) == Comparison(
        1, 8_000_000, 8_000_000, good, good ^ 1
    )


def test_allocations_never_overlap_and_windows_are_found() -> None:
    space = AddressSpace()
    first, second = space.allocate(2**30, 0).memory, space.allocate(2**21, None).memory
    assert first.address + first.size_bytes < second.address
    assert space.locate(second.window(4096, 8)) == (space.locate(second)[0], 512)


@pytest.mark.parametrize(("offset", "size"), [(4, 8), (8, 4)])
def test_parts_of_words_are_refused(offset: int, size: int) -> None:
    space = AddressSpace()
    memory = space.allocate(64, 0).memory
    with pytest.raises(AddressError, match="whole 64-bit words"):
        space.locate(memory.window(offset, size))
