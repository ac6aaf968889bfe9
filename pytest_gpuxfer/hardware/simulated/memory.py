"""Memory that costs nothing until someone looks: what is in it, as intervals of generators.

Content is a pattern's window or one word again and again, as the driver's kernels write it. Mixing
is a bijection, so two windows never agree on a word, and a constant agrees with a window at most
once in a period: all comparisons are exact and none of them looks at the words between.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from pytest_gpuxfer.hardware.driver import Comparison, Memory
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, WORD_BYTES, Pattern

_MASK: Final = 2**64 - 1
Content = Pattern | int


def _index_of(word: int) -> int:
    """The index that `mix` maps to `word`: the same steps undone, last one first."""
    word ^= word >> 31 ^ word >> 62
    word = word * pow(0x94D049BB133111EB, -1, 2**64) & _MASK
    word ^= word >> 27 ^ word >> 54
    word = word * pow(0xBF58476D1CE4E5B9, -1, 2**64) & _MASK
    word ^= word >> 30 ^ word >> 60
    gamma = 0x9E3779B97F4A7C15
    return (word - gamma) * pow(gamma, -1, 2**64) & _MASK


def _shifted(content: Content, words: int) -> Content:
    return content if isinstance(content, int) else Pattern(content.offset_words + words)


class WordMap:
    """The words of one allocation, by position; zeros until something is written.

    A pattern is kept as the window that would start at position 0, so equal neighbours merge.
    """

    def __init__(self, words: int) -> None:
        self.words = words
        self._starts = [0]
        self._contents: list[Content] = [0]

    def __len__(self) -> int:
        """How many intervals it takes."""
        return len(self._starts)

    def word(self, position: int) -> int:
        content = self._contents[bisect_right(self._starts, position) - 1]
        return content if isinstance(content, int) else content.word(position)

    def fill(self, start: int, words: int, content: Content) -> None:
        """Write `content`, its index 0 at `start`."""
        self._write(start, start + words, _shifted(content, -start))

    def copy(self, start: int, source: WordMap, source_start: int, words: int) -> None:
        """Write what `source` holds, which may be this very map."""
        shift = source_start - start
        pieces = list(source.pieces(source_start, source_start + words))
        for low, high, content in pieces:
            self._write(low - shift, high - shift, _shifted(content, shift))

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int, Content]]:
        """The intervals of [start, end): their start, end and content."""
        at = bisect_right(self._starts, start) - 1
        while start < end:
            following = self._starts[at + 1] if at + 1 < len(self._starts) else self.words
            yield start, min(end, following), self._contents[at]
            start, at = following, at + 1

    def compare(self, start: int, words: int, pattern: Pattern) -> Comparison:
        """Hold [start, start + words) against `pattern`, its index 0 at `start`."""
        expected = Pattern(pattern.offset_words - start)
        wrong, first, last = 0, -1, -1
        for low, high, content in self.pieces(start, start + words):
            if (found := _wrong(low, high, content, expected)) is None:
                continue
            wrong += found[0]
            first = found[1] if first < 0 else first
            last = found[2]
        if not wrong:
            return Comparison(0)
        return Comparison(
            wrong,
            (first - start) * WORD_BYTES,
            (last - start) * WORD_BYTES,
            expected.word(first),
            self.word(first),
        )

    def _write(self, start: int, end: int, content: Content) -> None:
        if start >= end:
            return
        low, high = bisect_left(self._starts, start), bisect_right(self._starts, end)
        after = self._contents[high - 1]
        starts, contents = [start], [content]
        if low and self._contents[low - 1] == content:
            starts, contents = [], []
        if end < self.words and after != content:
            starts.append(end)
            contents.append(after)
        self._starts[low:high] = starts
        self._contents[low:high] = contents


def _wrong(low: int, high: int, content: Content, expected: Pattern) -> tuple[int, int, int] | None:
    """How many words of [low, high) differ from `expected`, the first and the last of them."""
    if content == expected:
        return None
    if isinstance(content, Pattern):
        return high - low, low, high - 1
    index = _index_of(content)
    if index >= PERIOD_WORDS:
        return high - low, low, high - 1
    first_right = low + (index - expected.offset_words - low) % PERIOD_WORDS
    right = len(range(first_right, high, PERIOD_WORDS))
    if right == high - low:
        return None
    last_right = first_right + (right - 1) * PERIOD_WORDS
    first = low + 1 if first_right == low else low
    last = high - 2 if last_right == high - 1 else high - 1
    return high - low - right, first, last


class AddressError(Exception):
    """Memory that is not allocated, or not in whole words; the message says which."""


class AddressSpace:
    """Every allocation of the machine; addresses are never used again."""

    _PAGE_BYTES: Final = 2**21

    def __init__(self) -> None:
        self._next = 0x7F00_0000_0000
        self._bases: list[int] = []
        self._maps: list[WordMap | None] = []
        self._memories: list[Memory] = []

    def allocate(self, size_bytes: int, ordinal: int | None) -> Memory:
        memory = Memory(self._next, size_bytes, ordinal)
        self._bases.append(memory.address)
        self._maps.append(WordMap(-(-size_bytes // WORD_BYTES)))
        self._memories.append(memory)
        # A page more than is needed: no two allocations touch.
        self._next += (size_bytes // self._PAGE_BYTES + 2) * self._PAGE_BYTES
        return memory

    def free(self, memory: Memory) -> None:
        """Raises AddressError for what no `allocate` returned, or what is free already."""
        at = bisect_left(self._bases, memory.address)
        if at == len(self._bases) or self._memories[at] != memory or self._maps[at] is None:
            raise AddressError("it is not allocated")
        self._maps[at] = None

    def locate(self, memory: Memory) -> tuple[WordMap, int]:
        """Where memory lies: its map and first word. Raises AddressError."""
        at = bisect_right(self._bases, memory.address) - 1
        words = self._maps[at] if at >= 0 else None
        if words is None or self._memories[at].ordinal != memory.ordinal:
            raise AddressError("it is not allocated")
        offset = memory.address - self._bases[at]
        if offset + memory.size_bytes > self._memories[at].size_bytes:
            raise AddressError("it reaches outside its allocation")
        if offset % WORD_BYTES or memory.size_bytes % WORD_BYTES:
            raise AddressError("a simulated machine moves whole 64-bit words")
        return words, offset // WORD_BYTES
