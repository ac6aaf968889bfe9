"""Memory that costs nothing until someone looks: what is in it, as intervals of generators.

Content is a pattern's window or one word again and again, as the driver's kernels write it. Mixing
is a bijection, so two windows never agree on a word, and a constant agrees with a window at most
once in a period: all comparisons are exact and none of them looks at the words between.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pytest_gpuxfer.hardware.driver import (
    CHAIN_LINE_BYTES,
    Comparison,
    DeviceKind,
    HostKind,
    Memory,
)
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, WORD_BYTES, Pattern

_MASK: Final = 2**64 - 1
LINE_WORDS: Final = CHAIN_LINE_BYTES // WORD_BYTES  # a chain has one link in each line


@dataclass(frozen=True, slots=True)
class Chain:
    """A closed chain through the lines from word `start` on: in each the offset of the next.

    One line after the other: where nothing is cached or fetched ahead, the order changes nothing.
    """

    start: int
    lines: int

    def word(self, position: int) -> int:
        line, rest = divmod(position - self.start, LINE_WORDS)
        return 0 if rest else self.offset_bytes(line + 1)

    def offset_bytes(self, hops: int) -> int:
        """Where so many hops from the first line lead."""
        return hops % self.lines * LINE_WORDS * WORD_BYTES


Content = Pattern | Chain | int


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
    if isinstance(content, Pattern):
        return Pattern(content.offset_words + words)
    return Chain(content.start - words, content.lines) if isinstance(content, Chain) else content


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
        content = self.content(position)
        return content if isinstance(content, int) else content.word(position)

    def content(self, position: int) -> Content:
        """What a position is part of; its index 0 is position 0, but for a chain."""
        return self._contents[bisect_right(self._starts, position) - 1]

    def fill(self, start: int, words: int, content: Content) -> None:
        """Write `content`, its index 0 at `start`."""
        self._write(start, start + words, _shifted(content, -start))

    def copy(self, start: int, source: WordMap, source_start: int, words: int) -> None:
        """Write what `source` holds, which may be this very map."""
        shift = source_start - start
        pieces = list(source.pieces(source_start, source_start + words))
        for low, high, content in pieces:
            self._write(low - shift, high - shift, _shifted(content, shift))

    def same_as(self, other: WordMap) -> bool:
        """Whether both hold the same words."""
        return self._contents == other._contents and self._starts == other._starts

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
    if not isinstance(content, int):
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


class Managed:
    """Managed memory: each of its words is where it was used last."""

    def __init__(self, words: int) -> None:
        self._places = WordMap(words)  # 0 is nowhere yet, 1 the host, 2 the first GPU

    def place(self, word: int) -> int | None:
        """The GPU that holds a word; the host (None) also has what nobody used yet."""
        place = self._places.word(word)
        return place - 2 if place > 1 else None

    def migrate(self, start: int, words: int, target: int | None) -> dict[int | None, int]:
        """Bring words to a GPU or the host (None); how many bytes came from where."""
        goal = 1 if target is None else target + 2
        moved: dict[int | None, int] = {}
        for low, high, place in self._places.pieces(start, start + words):
            if isinstance(place, int) and place not in (0, goal):
                source = place - 2 if place > 1 else None
                moved[source] = moved.get(source, 0) + (high - low) * WORD_BYTES
        self._places.fill(start, words, goal)
        return moved

    def held_bytes(self, ordinal: int) -> int:
        """How much of it a GPU holds."""
        pieces = self._places.pieces(0, self._places.words)
        return sum(high - low for low, high, place in pieces if place == ordinal + 2) * WORD_BYTES


class Imported:
    """Memory of another process."""


Kind = HostKind | DeviceKind | Managed | Imported


@dataclass(slots=True, eq=False)
class Allocation:
    """Memory with what is in it.

    `granted` are the GPUs that may use it, where the access of a context does not cover it.
    """

    memory: Memory
    words: WordMap
    kind: Kind
    numa_node: int = 0  # of host memory
    granted: set[int] = field(default_factory=set)

    @property
    def is_pageable(self) -> bool:
        return self.kind is HostKind.PAGEABLE


class AddressSpace:
    """Every allocation of one process; addresses are never used again."""

    _PAGE_BYTES: Final = 2**21

    def __init__(self) -> None:
        self._next = 0x7F00_0000_0000
        self._bases: list[int] = []
        self._allocations: list[Allocation | None] = []

    def allocate(
        self, size_bytes: int, ordinal: int | None, kind: HostKind | DeviceKind | None = None
    ) -> Allocation:
        """Memory of zeros; managed where no kind is given."""
        words = -(-size_bytes // WORD_BYTES)
        return self._place(size_bytes, ordinal, WordMap(words), kind or Managed(words))

    def map(self, shared: Allocation) -> Allocation:
        """Memory of another address space: the same words at an address of ours."""
        memory = shared.memory
        return self._place(memory.size_bytes, memory.ordinal, shared.words, Imported())

    def free(self, memory: Memory) -> None:
        """Raises AddressError for what no `allocate` returned, or what is free already."""
        at = bisect_left(self._bases, memory.address)
        held = self._allocations[at] if at < len(self._bases) else None
        if held is None or held.memory.used_by(memory.ordinal) != memory:
            raise AddressError("it is not allocated")
        self._allocations[at] = None

    def locate(self, memory: Memory) -> tuple[Allocation, int]:
        """Where memory lies: its allocation and first word there. Raises AddressError."""
        at = bisect_right(self._bases, memory.address) - 1
        held = self._allocations[at] if at >= 0 else None
        if held is None or (
            held.memory.ordinal != memory.ordinal and not isinstance(held.kind, Managed)
        ):
            raise AddressError("it is not allocated")
        offset = memory.address - self._bases[at]
        if offset + memory.size_bytes > held.memory.size_bytes:
            raise AddressError("it reaches outside its allocation")
        if offset % WORD_BYTES or memory.size_bytes % WORD_BYTES:
            raise AddressError("a simulated machine moves whole 64-bit words")
        return held, offset // WORD_BYTES

    def managed_bytes(self, ordinal: int) -> int:
        """How much of its managed memory a GPU holds."""
        kinds = (held.kind for held in self._allocations if held is not None)
        return sum(kind.held_bytes(ordinal) for kind in kinds if isinstance(kind, Managed))

    def _place(
        self,
        size_bytes: int,
        ordinal: int | None,
        words: WordMap,
        kind: Kind,
    ) -> Allocation:
        allocation = Allocation(Memory(self._next, size_bytes, ordinal), words, kind)
        self._bases.append(self._next)
        self._allocations.append(allocation)
        # A page more than is needed: no two allocations touch.
        self._next += (size_bytes // self._PAGE_BYTES + 2) * self._PAGE_BYTES
        return allocation
