"""What a profile's author is told: one line with the place, the fault and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from pytest_gpuxfer.model.expectation import Location


class ProfileError(Exception):
    """A profile that cannot be used. Its text is one line: file:line:column: what; what to do."""

    def __init__(self, message: str, location: Location | None = None) -> None:
        where = f"{location}:{location.column}: " if location else ""
        super().__init__(where + one_line(message))
        self.location = location


def one_line(text: str) -> str:
    """`text` with every run of blanks and line ends as one blank, safe to print."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def quote(text: str, limit: int = 60) -> str:
    """What somebody wrote, in quotes, cut where it would drown the message."""
    return repr(text if len(text) <= limit else f"{text[:limit]}...")


def suggest(word: str, known: Iterable[str]) -> str:
    """The nearest known word and all of them: the second half of a message."""
    words = sorted(set(known))
    near = get_close_matches(word[:60], words, n=1, cutoff=0.5)
    question = f"did you mean {near[0]!r}? " if near else ""
    return f"{question}known here: {', '.join(words)}"
