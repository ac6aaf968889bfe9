"""Strict YAML: text to nodes that know their line and column. The only import of yaml.

A subset that reads the same to everybody: one document, mappings and lists and text, no key twice,
no anchors, aliases or tags. Scalars stay text; what they mean is for the one who asks (reader.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import yaml
from yaml import events

from pytest_gpuxfer.model.expectation import Location
from pytest_gpuxfer.profiles.errors import ProfileError, quote

MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 12


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar as it is written; `plain` where it stands without quotes."""

    text: str
    at: Location
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    nodes: tuple[Node, ...]
    at: Location


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping, with the place of the key; the value knows its own."""

    key_at: Location
    value: Node


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping, in the order of the file."""

    entries: Mapping[str, Entry]
    at: Location


Node = Text | Items | Fields


def decode(data: bytes, file: str) -> str:
    """The text of a file. Raises ProfileError where it is too large or not UTF-8."""
    start = Location(file, 1)
    if len(data) > MAX_BYTES:
        raise ProfileError(f"larger than {MAX_BYTES // 1024} KiB; this is no profile", start)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        where = Location(file, line, column)
        raise ProfileError("not UTF-8 text; save the file as UTF-8", where) from None


def parse(text: str, file: str) -> Node:
    """The one document of `text`. Raises ProfileError for whatever is no strict YAML."""
    try:
        return _Builder(file, yaml.parse(text, Loader=yaml.SafeLoader)).document()
    except yaml.reader.ReaderError as error:
        raise ProfileError(
            f"a character that YAML does not allow ({ord(text[error.position]):#04x}); remove it",
            _location_of(text, error.position, file),
        ) from None
    except yaml.MarkedYAMLError as error:
        raise _explain(error, file) from None
    except yaml.YAMLError as error:
        raise ProfileError(f"not readable as YAML: {error}", Location(file, 1)) from None


def _location_of(text: str, position: int, file: str) -> Location:
    before = text[:position]
    return Location(file, before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1)


def _explain(error: yaml.MarkedYAMLError, file: str) -> ProfileError:
    problem = error.problem or error.context or "malformed"
    mark = error.problem_mark or error.context_mark
    where = Location(file, mark.line + 1, mark.column + 1) if mark else Location(file, 1)
    if "'\\t'" in problem:
        return ProfileError("a tab; indent with spaces", where)
    advice = "check the indentation, and quote text that holds ': ' or ' #'"
    return ProfileError(f"not readable as YAML: {problem}; {advice}", where)


class _Builder:
    """Builds nodes from parser events, so that what is refused is refused before it grows."""

    def __init__(self, file: str, stream: Iterator[events.Event]) -> None:
        self._file, self._stream, self._depth = file, stream, 0

    def document(self) -> Node:
        next(self._stream)  # the start of the stream
        if isinstance(next(self._stream), events.StreamEndEvent):
            raise ProfileError(
                "the file is empty; a profile begins with 'schema: 1'", Location(self._file, 1)
            )
        root = self._node(next(self._stream))
        next(self._stream)  # the end of the document
        after = next(self._stream)
        if not isinstance(after, events.StreamEndEvent):
            raise ProfileError("a second document; keep one profile a file", self._at(after))
        return root

    def _at(self, event: events.Event) -> Location:
        mark = event.start_mark
        assert mark is not None  # events that were read from text have one
        return Location(self._file, mark.line + 1, mark.column + 1)

    def _node(self, event: events.Event) -> Node:
        at = self._at(event)
        if isinstance(event, events.AliasEvent):
            raise ProfileError(f"an alias (*{event.anchor}); write the value out", at)
        assert isinstance(event, (events.ScalarEvent, events.CollectionStartEvent))
        if event.anchor is not None:
            raise ProfileError(f"an anchor (&{event.anchor}); write each value out", at)
        if event.tag is not None:
            raise ProfileError(f"a tag ({quote(event.tag)}); remove it", at)
        if isinstance(event, events.ScalarEvent):
            return Text(event.value, at, plain=event.style is None)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ProfileError(f"nested more than {MAX_DEPTH} deep; no profile needs that", at)
        is_list = isinstance(event, events.SequenceStartEvent)
        node = Items(tuple(self._items()), at) if is_list else Fields(self._entries(), at)
        self._depth -= 1
        return node

    def _items(self) -> Iterator[Node]:
        while not isinstance(event := next(self._stream), events.SequenceEndEvent):
            yield self._node(event)

    def _entries(self) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        while not isinstance(event := next(self._stream), events.MappingEndEvent):
            key = self._node(event)
            if not isinstance(key, Text) or not key.text:
                raise ProfileError("a key that is no text; write 'key: value'", key.at)
            if key.text in entries:
                first = entries[key.text].key_at.line
                message = f"key {quote(key.text)} stands twice, first in line {first}; keep one"
                raise ProfileError(message, key.at)
            entries[key.text] = Entry(key.at, self._node(next(self._stream)))
        return entries
