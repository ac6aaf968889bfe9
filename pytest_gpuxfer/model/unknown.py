"""What could not be read is a value with a reason, never a zero and never "fine"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unknown:
    """The place of a value that the machine did not tell.

    `reason` is a short phrase that reads on after "unknown: ", for a person.
    """

    reason: str

    def __str__(self) -> str:
        return f"unknown ({self.reason})"


NOT_READ = Unknown("not read")


def known(value: T | Unknown) -> T | None:
    """The value, or None where it is unknown: for code that treats both alike."""
    return None if isinstance(value, Unknown) else value
