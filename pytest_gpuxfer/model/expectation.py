"""What a profile asks of a machine, resolved: every figure absolute, with the line that says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import Cell, Check, Place
from pytest_gpuxfer.model.machine import pcie_bytes_per_s
from pytest_gpuxfer.model.measurement import PathKind, SignalName


@dataclass(frozen=True, slots=True)
class Location:
    """Where a profile says something; lines and columns count from 1."""

    file: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class SourceKind(StrEnum):
    """How a limit's figure was come by."""

    MEASURED = "measured"
    PUBLISHED = "published"
    DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a limit's figure comes from. `provisional` is said aloud in every report."""

    kind: SourceKind
    where: str
    date: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)  # machines, runs, driver, method
    provisional: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """One figure of a limit as it was written, with what it comes to.

    `value` is in bytes per second for a rate and in nanoseconds for a duration. With `of_check`
    it is a factor on that check's median at the same place instead ("3x host_relay"); of several
    flows at once, on the slowest of their places alone.
    """

    value: float
    text: str
    location: Location
    of_check: Check | None = None

    @property
    def is_relative(self) -> bool:
        """Whether it is written as a part of a link or a multiple of another check."""
        return self.of_check is not None or "%" in self.text

    def resolve(self, baselines: Mapping[Check, float]) -> float | None:
        """The absolute figure, or None where the check it rests on has none."""
        if self.of_check is None:
            return self.value
        base = baselines.get(self.of_check)
        return None if base is None else self.value * base


@dataclass(frozen=True, slots=True)
class Limit:
    """One entry of a profile's `limits:`."""

    check: Check
    location: Location
    on: str | None = None  # a link class, a pair "gpu0-gpu1", or a GPU "gpu3"; None: everywhere
    floor: Bound | None = None
    ceiling: Bound | None = None
    expect: Bound | None = None
    sizes_bytes: tuple[int, int] | None = None  # least and most, both included
    tolerance: float | None = None  # a part of `expect`; None: the profile's own
    unlimited: str | None = None  # the reason why the rate is not judged
    not_expected: str | None = None  # the reason why this does not exist here
    below_because: str | None = None
    source: Source | None = None

    def speaks_of(self, cell: Cell, link_class: str | None) -> bool:
        """Whether this limit is about `cell`, whose pair is of `link_class`."""
        if not self.check.covers(cell.check):
            return False
        if self.on is not None and self.on not in (link_class, str(cell.place)):
            return False
        if self.sizes_bytes is None or cell.size_bytes is None:
            return True
        least, most = self.sizes_bytes
        return least <= cell.size_bytes <= most

    @property
    def rank(self) -> tuple[int, int]:
        """The most specific limit wins: by check, then by place."""
        return (self.check.specificity, self.on is not None)


@dataclass(frozen=True, slots=True)
class NvlinkSpec:
    """NVLink as the profile declares it for each GPU; rates are of one direction."""

    generation: int
    links: int
    per_link_bytes_per_s: float
    location: Location

    @property
    def rate_bytes_per_s(self) -> float:
        return self.links * self.per_link_bytes_per_s


@dataclass(frozen=True, slots=True)
class PcieSpec:
    """The PCIe link of each GPU as the profile declares it."""

    generation: int
    width: int
    location: Location

    @property
    def rate_bytes_per_s(self) -> float:
        return pcie_bytes_per_s(self.generation, self.width)


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """What the pairs of one link class must show."""

    name: str
    path: PathKind
    peer_access_required: bool
    proof: tuple[SignalName, ...]
    location: Location


@dataclass(frozen=True, slots=True)
class Waiver:
    """A known defect that its owner has accepted until a date. Data failures cannot be waived."""

    cells: str  # a pattern as of fnmatch over cell ids
    owner: str
    reason: str
    until: str  # ISO date, included
    location: Location


@dataclass(frozen=True, slots=True)
class Profile:
    """One file of `thresholds/`, read, checked and resolved."""

    name: str
    title: str
    file: str
    match_gpus: tuple[str, ...]
    gpus: int
    gpus_location: Location
    nvlink: NvlinkSpec | None  # None: declared as having none
    pcie: PcieSpec | None
    classes: Mapping[str, ClassSpec]
    all_pairs: str | None  # the class of every pair not named in `pairs`; None: no pairs
    pairs: Mapping[str, str]  # "gpu0-gpu1" to class, both orders named
    limits: tuple[Limit, ...]
    tolerance: float
    waivers: tuple[Waiver, ...] = ()
    partial: str | None = None  # a declared part of the machine: "2 of 8 GPUs"

    def class_of(self, place: Place) -> ClassSpec | None:
        """The class that the profile gives a pair, or None for other places."""
        if not place.is_pair:
            return None
        name = self.pairs.get(str(place), self.all_pairs)
        return None if name is None else self.classes[name]

    def limit_for(self, cell: Cell, link_class: str | None = None) -> Limit | None:
        """The most specific limit that speaks of `cell`; of equals the later, as in `limits`.

        `link_class` is that of the pairs that a group's flows connect; a pair's own is known.
        """
        if link_class is None and (spec := self.class_of(cell.place)):
            link_class = spec.name
        found = [limit for limit in self.limits if limit.speaks_of(cell, link_class)]
        return max(reversed(found), key=lambda limit: limit.rank, default=None)

    def sizes_with_limit(self, check: Check) -> tuple[str, ...]:
        """The sizes for which some limit speaks of `check`, for a message."""
        found = [limit for limit in self.limits if limit.check.covers(check)]
        return tuple(
            "any size"
            if limit.sizes_bytes is None
            else " to ".join(units.format_size(size) for size in limit.sizes_bytes)
            for limit in found
        )


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the profile asks of one cell, all in one place for `judge`."""

    cell: Cell
    path: PathKind | None = None
    proof: tuple[SignalName, ...] = ()
    link_class: str | None = None
    peer_access_required: bool = False
    gpus: int | None = None
    nvlink: NvlinkSpec | None = None
    pcie: PcieSpec | None = None
    physical: Bound | None = None  # the rate that no measurement of this path can exceed
    limit: Limit | None = None
    tolerance: float = 0.0
    members: tuple[Cell, ...] = ()  # the cells that should be equal, where outliers are sought
    not_expected: str | None = None
    waiver: Waiver | None = None  # set only while it is in date
    location: Location | None = None  # what a message about links or access points at
