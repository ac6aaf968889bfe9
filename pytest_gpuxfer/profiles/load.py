"""Finds a profile's file, and those that it extends, and makes one profile of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from pytest_gpuxfer.model.expectation import Profile
from pytest_gpuxfer.profiles.document import (
    MAX_BYTES,
    Entry,
    Fields,
    Items,
    Node,
    decode,
    parse,
)
from pytest_gpuxfer.profiles.errors import ProfileError, quote, suggest
from pytest_gpuxfer.profiles.grammar import OWN_KEYS, build, check_header
from pytest_gpuxfer.profiles.lint import lint
from pytest_gpuxfer.profiles.reader import Section, Value

_PACKAGE: Final = "pytest_gpuxfer.thresholds"
_SUFFIXES: Final = (".yaml", ".yml")
_MAX_CHAIN: Final = 5
_ADDED_UP: Final = ("limits", "waivers")  # lists of the file come after those that it extends


@dataclass(frozen=True, slots=True)
class _File:
    """A profile's file: `label` is how messages name it, `key` what makes it itself."""

    label: str
    key: str
    source: Traversable
    directory: Path | None  # what `extends:` paths start from; None for a shipped one
    shipped_as: str | None = None

    def read(self) -> Fields:
        """Its document. Raises ProfileError."""
        try:
            with self.source.open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except OSError as error:
            message = f"{self.label}: cannot be read: {error.strerror}; check its permissions"
            raise ProfileError(message) from None
        root = Value(parse(decode(data, self.label), self.label), self.label)
        if not isinstance(root.node, Fields):
            raise ProfileError("no mapping; a profile begins with 'schema: 1'", root.at)
        header = Section(root.node, "")
        check_header(header)
        if self.shipped_as and header["name"].text() != self.shipped_as:
            raise header["name"].wrong(f"must be {self.shipped_as!r}, as the file is called")
        return root.node


def shipped() -> tuple[str, ...]:
    """The names of the profiles that come with this package."""
    names = (entry.name for entry in files(_PACKAGE).iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def load(name_or_path: str) -> Profile:
    """The profile of a shipped name, or of a file: anything with a "/", or ending in .yaml.

    Raises ProfileError, whose text is one line for the person who wrote the file or the name.
    """
    first = _find(name_or_path, Path())
    profile = build(_merge_chain(first), first.label)
    if found := lint(profile):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ProfileError(found[0].message + more, found[0].location)
    return profile


def _find(name_or_path: str, directory: Path | None) -> _File:
    """The file that is meant. Raises ProfileError, without a location."""
    if "/" not in name_or_path and not name_or_path.endswith(_SUFFIXES):
        return _find_shipped(name_or_path)
    if directory is None:
        raise ProfileError("a shipped profile extends shipped ones alone, by name")
    label = str(directory / name_or_path)
    try:
        path = directory / Path(name_or_path).expanduser()  # no shell does it after an "="
        label = str(path)
        if path.is_dir():
            raise ProfileError(f"{label}: a directory; name the profile's file")
        if not path.exists():
            raise ProfileError(f"{label}: no such file; shipped profiles: {', '.join(shipped())}")
        if not path.is_file():
            raise ProfileError(f"{label}: no regular file; name the profile's file")
    except (OSError, ValueError, RuntimeError) as error:
        raise ProfileError(f"{label}: no usable path: {error}; name the profile's file") from None
    return _File(label, os.path.realpath(path), path, path.parent)


def _find_shipped(name: str) -> _File:
    names = shipped()
    if name not in names:
        message = f"no profile is called {quote(name)}; {suggest(name, names)}"
        raise ProfileError(f"{message}; or give the path of a .yaml file")
    label = f"thresholds/{name}.yaml"
    return _File(label, label, files(_PACKAGE) / f"{name}.yaml", None, shipped_as=name)


def _merge_chain(first: _File) -> Fields:
    """The document of `first` laid over those that it extends."""
    file, seen = first, {first.key}
    merged = document = file.read()
    while "extends" in document.entries:
        value = Value(document.entries["extends"].value, "extends")
        try:
            file = _find(value.text(), file.directory)
        except ProfileError as error:
            raise error if error.location else value.wrong(str(error)) from None
        if file.key in seen:
            raise value.wrong(f"{quote(value.text())} extends this file again; break the circle")
        if len(seen) == _MAX_CHAIN:
            raise value.wrong(f"more than {_MAX_CHAIN} files in a chain; extend a nearer one")
        seen.add(file.key)
        document = file.read()
        merged = _lay_over(_without(document, OWN_KEYS), merged)
    return merged


def _without(fields: Fields, keys: tuple[str, ...]) -> Fields:
    kept = {key: entry for key, entry in fields.entries.items() if key not in keys}
    return Fields(kept, fields.at)


def _lay_over(base: Fields, over: Fields) -> Fields:
    """`over` on top of `base`: mappings key by key, limits and waivers one after the other."""
    entries: dict[str, Entry] = {**base.entries}
    for key, entry in over.entries.items():
        below = entries.get(key)
        value = entry.value if below is None else _merge(key, below.value, entry.value)
        entries[key] = Entry(entry.key_at, value)
    return Fields(entries, over.at)


def _merge(key: str, below: Node, above: Node) -> Node:
    if isinstance(below, Fields) and isinstance(above, Fields):
        return _lay_over(below, above)
    if key in _ADDED_UP and isinstance(below, Items) and isinstance(above, Items):
        return Items((*below.nodes, *above.nodes), above.at)
    return above
