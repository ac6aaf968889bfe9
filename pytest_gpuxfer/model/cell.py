"""Names of what is measured: checks, places, cells, and their ids. One grammar, both ways.

method[.engine][.initiator][.memory][.pattern][.no-access]/place[/size]
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pytest_gpuxfer.model import units


class Engine(StrEnum):
    """Who moves the bytes: a copy engine, or a kernel on the multiprocessors."""

    CE = "ce"
    SM = "sm"


class Initiator(StrEnum):
    """Who asks: with WRITE the source GPU pushes, with READ the destination GPU pulls."""

    WRITE = "write"
    READ = "read"


MEMORIES: Final = (
    "pinned", "pageable", "registered", "shared", "mapped", "managed", "malloc", "pool", "vmm",
)  # fmt: skip
DEFAULT_MEMORIES: Final = ("pinned", "malloc")  # left out of ids
PATTERNS: Final = (
    "bidirectional", "one-to-all", "all-to-one", "host-to-all", "all-to-host", "host-and-all",
    "ring", "disjoint-pairs", "all-to-all", "round-trip", "pipelined", "far-node", "hidden",
    "under-load",
)  # fmt: skip
_NO_ACCESS: Final = "no-access"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_PLACE: Final = re.compile(r"all|gpu\d+(-gpu\d+)?|(ring|round|back)-\d+|[A-Z][A-Z0-9]*", re.ASCII)
UNIFORMITY: Final = "uniformity"


class CellError(ValueError):
    """An id that does not follow the grammar; the message is one line."""


@dataclass(frozen=True, slots=True)
class Check:
    """What is measured, wherever it is. Checks of the machine itself are `machine.<name>`."""

    method: str
    engine: Engine = Engine.CE
    initiator: Initiator | None = None
    memory: str | None = None  # None: pinned on the host, malloc on a GPU
    pattern: str | None = None  # None: one way, alone
    access: bool = True  # False: peer access off, the driver's own staging

    def __str__(self) -> str:
        parts = [
            self.method,
            "" if self.engine is Engine.CE else str(self.engine),
            str(self.initiator or ""),
            self.memory or "",
            self.pattern or "",
            "" if self.access else _NO_ACCESS,
        ]
        return ".".join(part for part in parts if part)

    @property
    def of_machine(self) -> bool:
        """Whether it reads, or compares what others measured, and moves no bytes of its own."""
        return self.method.startswith(("machine.", f"{UNIFORMITY}."))

    @property
    def of_group(self) -> bool:
        """Whether it looks for outliers among cells that should be equal."""
        return self.method.startswith(f"{UNIFORMITY}.")

    @property
    def is_latency(self) -> bool:
        """Whether it is judged by the time of an operation, with a ceiling, and not by its rate."""
        return self.method.endswith("_latency")

    @property
    def far(self) -> bool:
        """Whether the host memory is on a NUMA node that is not the GPU's."""
        return self.pattern == "far-node"

    def covers(self, other: Check) -> bool:
        """Whether a limit for this check speaks of `other` too.

        Engine, initiator and memory may be left open. Pattern and access may not: what many flows
        reach, or one without peer access, is another quantity, never implied.
        """
        return (
            self.method == other.method
            and self.engine in (Engine.CE, other.engine)
            and self.initiator in (None, other.initiator)
            and self.memory in (None, other.memory)
            and self.pattern == other.pattern
            and self.access == other.access
        )

    @property
    def specificity(self) -> int:
        """How many of the parts that may be left open are stated."""
        return (self.engine is not Engine.CE) + bool(self.initiator) + bool(self.memory)


def parse_check(text: str) -> Check:
    """The check that `text` names. Raises CellError, also for parts out of order."""
    head, *rest = text.split(".")
    if head == UNIFORMITY and rest:
        return Check(f"{head}.{parse_check('.'.join(rest))}")
    if head == "machine" and rest:
        head, rest = f"machine.{rest[0]}", rest[1:]
    if not all(_NAME.fullmatch(part) for part in head.split(".")):
        raise CellError(f"{text!r} is no check: it begins with no method name")
    fields: dict[str, object] = {}
    left = ["engine", "initiator", "memory", "pattern", "access"]
    for part in rest:
        name, value = _read_part(part, text)
        if name not in left:
            raise CellError(f"{text!r} is no check: {part!r} stands twice or out of order")
        fields[name] = value
        del left[: left.index(name) + 1]
    return Check(head, **fields)  # type: ignore[arg-type]


def _read_part(part: str, text: str) -> tuple[str, object]:
    if part in tuple(Engine):
        return "engine", Engine(part)
    if part in tuple(Initiator):
        return "initiator", Initiator(part)
    if part in MEMORIES:
        return "memory", None if part in DEFAULT_MEMORIES else part
    if part in PATTERNS:
        return "pattern", part
    if part == _NO_ACCESS:
        return "access", False
    raise CellError(f"{text!r} is no check: {part!r} is no engine, initiator, memory or pattern")


@dataclass(frozen=True, slots=True)
class Place:
    """Where: an ordered pair of GPUs, one GPU, or a group by its name."""

    gpus: tuple[int, ...]  # (source, destination), (gpu,), or () for a group
    group: str | None = None

    @classmethod
    def pair(cls, source: int, destination: int) -> Place:
        return cls((source, destination))

    @classmethod
    def gpu(cls, index: int) -> Place:
        return cls((index,))

    @classmethod
    def all(cls) -> Place:
        return cls((), "all")

    @property
    def is_pair(self) -> bool:
        return len(self.gpus) == 2

    def __str__(self) -> str:
        return self.group or "-".join(f"gpu{index}" for index in self.gpus)


@dataclass(frozen=True, slots=True)
class Cell:
    """A check at a place and, where bytes move, at a size. Its `id` is the same everywhere."""

    check: Check
    place: Place
    size_bytes: int | None = None

    @property
    def id(self) -> str:
        size = (
            () if self.size_bytes is None else (units.format_size(self.size_bytes, separator=""),)
        )
        return "/".join((str(self.check), str(self.place), *size))

    def __str__(self) -> str:
        return self.id


def parse_place(text: str) -> Place:
    """The place that `text` names. Raises CellError."""
    if _PLACE.fullmatch(text) is None:
        raise CellError(
            f"{text!r} is no place; write gpu0-gpu1, gpu3, ring-2, round-1, NV18 or all"
        )
    if not text.startswith("gpu"):
        return Place((), text)
    return Place(tuple(int(part[3:]) for part in text.split("-")))


def parse_cell(text: str) -> Cell:
    """The cell that `text` names; `parse_cell(cell.id) == cell`. Raises CellError, UnitError."""
    check, *rest = text.split("/")
    if len(rest) not in (1, 2):
        raise CellError(f"{text!r} is no cell id; write check/place or check/place/size")
    size = units.parse_size(rest[1]) if len(rest) == 2 else None
    return Cell(parse_check(check), parse_place(rest[0]), size)
