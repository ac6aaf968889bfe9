"""Typed readers: a node to a value, or one line that says where and how to write it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from enum import StrEnum
from typing import Final, TypeVar

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.expectation import Location
from pytest_gpuxfer.profiles.document import Fields, Items, Node, Text
from pytest_gpuxfer.profiles.errors import ProfileError, one_line, quote, suggest

_WHOLE: Final = re.compile(r"[0-9]{1,6}")
_PERCENT: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MONTH: Final = re.compile(r"[0-9]{4}-[0-9]{2}")
_MAX_QUANTITY: Final = 40  # characters; no quantity that somebody meant is longer

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


class Value:
    """A node together with its path ("limits.floor"), asked for as one type."""

    def __init__(self, node: Node, path: str) -> None:
        self.node, self.path = node, path

    @property
    def at(self) -> Location:
        return self.node.at

    def wrong(self, message: str) -> ProfileError:
        """The error that says `message` of this value."""
        return ProfileError(f"{self.path}: {message}", self.at)

    def section(self, required: Sequence[str], optional: Sequence[str] = ()) -> Section:
        """A mapping with these keys and no others."""
        section = Section(self._fields(), self.path)
        section.check_keys(required, optional)
        return section

    def mapping(self) -> Section:
        """A mapping whose keys are names that the author chose."""
        return Section(self._fields(), self.path)

    def _fields(self) -> Fields:
        if not isinstance(self.node, Fields):
            raise self.wrong(f"{self._kind()} where a mapping belongs; write 'key: value' lines")
        return self.node

    def items(self) -> list[Value]:
        """A list with at least one entry."""
        if not isinstance(self.node, Items):
            raise self.wrong(f"{self._kind()} where a list belongs; write [one, another]")
        if not self.node.nodes:
            raise self.wrong("the list is empty; name at least one")
        return [Value(node, self.path) for node in self.node.nodes]

    def text(self) -> str:
        """Text on one line, not empty."""
        if not isinstance(self.node, Text):
            raise self.wrong(f"{self._kind()} where text belongs")
        text = one_line(self.node.text)
        if not text:
            raise self.wrong("the value is missing")
        return text

    def says(self, word: str) -> bool:
        """Whether the value is this one bare word, like `none`."""
        return isinstance(self.node, Text) and self.node.plain and self.node.text == word

    def _kind(self) -> str:
        if isinstance(self.node, Items):
            return "a list"
        return "a mapping" if isinstance(self.node, Fields) else "text"

    def whole(self, least: int, most: int) -> int:
        """A whole number between two others, both included."""
        text = self.text()
        number = int(text) if _WHOLE.fullmatch(text) else None
        if number is None or not least <= number <= most:
            raise self.wrong(f"{quote(text)} is no whole number from {least} to {most}")
        return number

    def word(self, known: Sequence[str]) -> str:
        """One of these words."""
        text = self.text()
        if text not in known:
            raise self.wrong(f"{quote(text)} is not known; {suggest(text, known)}")
        return text

    def member(self, kind: type[E], members: Sequence[E] = ()) -> E:
        """A member of an enumeration, or of the part of it that fits here."""
        return kind(self.word([str(member) for member in members or tuple(kind)]))

    def truth(self) -> bool:
        return self.word(("true", "false")) == "true"

    def size_bytes(self) -> int:
        return self._quantity(units.parse_size)

    def rate_bytes_per_s(self) -> float:
        return self._quantity(units.parse_rate)

    def duration_ns(self) -> float:
        return self._quantity(units.parse_duration)

    def _quantity(self, parse: Callable[[str], T]) -> T:
        return self._quantity_of(self.text(), parse)

    def _quantity_of(self, text: str, parse: Callable[[str], T]) -> T:
        if len(text) > _MAX_QUANTITY:
            raise self.wrong(f"{quote(text)} is too long for a number with a unit")
        try:
            value = parse(text)
        except units.UnitError as error:
            raise self.wrong(str(error)) from None
        if not value:
            raise self.wrong(f"{quote(text)}: must be above 0")
        return value

    def sizes_bytes(self) -> tuple[int, int]:
        """A size, or two of them: "64 MiB to 1 GiB"."""
        parts = self.text().split(" to ")
        if len(parts) > 2:
            raise self.wrong("write one size, or two like '64 MiB to 1 GiB'")
        sizes = [self._quantity_of(part, units.parse_size) for part in parts]
        if sizes[0] > sizes[-1]:
            raise self.wrong(f"{quote(self.text())} runs backwards; write the lesser size first")
        return sizes[0], sizes[-1]

    def part(self) -> float:
        """A percentage below 100, as a part of 1."""
        text = self.text()
        match = _PERCENT.fullmatch(text)
        if match is None or float(match[1]) >= 100:
            raise self.wrong(f"{quote(text)} is no percentage below 100%; write it like '5%'")
        return float(match[1]) / 100

    def date(self, *, month_suffices: bool) -> str:
        """A date of the calendar, as text: YYYY-MM-DD, or YYYY-MM where that suffices."""
        text = self.text()
        form = "YYYY-MM or YYYY-MM-DD" if month_suffices else "YYYY-MM-DD"
        month = month_suffices and _MONTH.fullmatch(text)
        if not month and not _DAY.fullmatch(text):
            raise self.wrong(f"{quote(text)} is no date; write {form}")
        try:
            date.fromisoformat(f"{text}-01" if month else text)
        except ValueError:
            raise self.wrong(f"{quote(text)} is not in the calendar; write {form}") from None
        return text


class Section:
    """A mapping's keys, by name."""

    def __init__(self, fields: Fields, path: str) -> None:
        self._fields, self.path = fields, path

    @property
    def at(self) -> Location:
        return self._fields.at

    def check_keys(self, required: Sequence[str], optional: Sequence[str] = ()) -> None:
        """Raises ProfileError for a key that nobody knows, and for one that is missing."""
        known = (*required, *optional)
        for key, entry in self._fields.entries.items():
            if key not in known:
                message = f"key {quote(key)} is not known; {suggest(key, known)}"
                raise ProfileError(self._prefix + message, entry.key_at)
        for key in required:
            if key not in self:
                raise ProfileError(f"{self._prefix}key {key!r} is missing; add it", self.at)

    @property
    def _prefix(self) -> str:
        return f"{self.path}: " if self.path else ""

    def __contains__(self, key: str) -> bool:
        return key in self._fields.entries

    def __getitem__(self, key: str) -> Value:
        path = f"{self.path}.{key}" if self.path else key
        return Value(self._fields.entries[key].value, path)

    def get(self, key: str) -> Value | None:
        if key not in self:
            return None
        return self[key]

    def key_at(self, key: str) -> Location:
        return self._fields.entries[key].key_at

    def wrong_key(self, key: str, message: str) -> ProfileError:
        """The error that says `message` of a key rather than of its value."""
        path = f"{self.path}.{key}" if self.path else key
        return ProfileError(f"{path}: {message}", self.key_at(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields.entries)
