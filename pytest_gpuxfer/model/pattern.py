"""What the bytes of a transfer are, so that wrong ones are noticed.

Word i (64 bit) of a pattern is `mix((i + offset) mod PERIOD_WORDS)`. A fresh pattern is therefore
another window on the same endless sequence: a host source is a window on one reference buffer, a
host destination is checked by `memcmp` against another, and a GPU computes either by itself.
The period is a prime, so no whole number of pages fits it: swapped, stale and shifted pages
never look right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WORD_BYTES: Final = 8
PERIOD_WORDS: Final = 131_101  # a prime just above 2^17: 1 MiB of distinct words
_MASK: Final = 2**64 - 1


def mix(index: int) -> int:
    """The 64-bit word at `index`: the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    word = (index * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def index_of(word: int) -> int | None:
    """The index below the period whose word this is, or None: `mix` backwards."""
    word ^= (word >> 31) ^ (word >> 62)
    word = (word * 0x319642B2D24D8EC3) & _MASK  # the inverses of mix's factors modulo 2^64
    word ^= (word >> 27) ^ (word >> 54)
    word = (word * 0x96DE1B173F119089) & _MASK
    word ^= (word >> 30) ^ (word >> 60)
    index = ((word - 0x9E3779B97F4A7C15) * 0xF1DE83E19937733D) & _MASK
    return index if index < PERIOD_WORDS else None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A window on the sequence; `offset_words` is reduced modulo the period."""

    offset_words: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset_words", self.offset_words % PERIOD_WORDS)

    def word(self, index: int) -> int:
        """The word that belongs at `index` words from the buffer's start."""
        return mix((index + self.offset_words) % PERIOD_WORDS)


POISON_WORD: Final = 0xBADC0FFEE0DDF00D  # written over a destination before it is measured
