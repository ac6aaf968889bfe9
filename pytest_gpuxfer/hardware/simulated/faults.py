"""What can be wrong with a simulated machine: one table, and the defects that it leads to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pytest_gpuxfer.hardware.simulated.errors import SimulationError, unknown_name
from pytest_gpuxfer.hardware.simulated.machine_file import MachineFile

Pair = tuple[int, int]  # source and destination


@dataclass(slots=True)
class Defects:
    """The state of a machine that faults left."""

    down_links: set[Pair] = field(default_factory=set)  # GPU and link
    refused_pairs: set[Pair] = field(default_factory=set)
    staged_pairs: set[Pair] = field(default_factory=set)
    flipping_pairs: set[Pair] = field(default_factory=set)
    flipping_host_links: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Where:
    """A fault's place, checked against the machine: gpuN, gpuN/linkM or gpuA-gpuB."""

    gpus: tuple[int, ...]
    link: int | None = None

    @property
    def form(self) -> str:
        if len(self.gpus) == 2:
            return "gpuA-gpuB"
        return "gpuN" if self.link is None else "gpuN/linkM"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One entry of the table; `inflict` does it to a machine."""

    name: str
    meaning: str
    default: str
    forms: tuple[str, ...]
    inflict: Callable[[Defects, Where, MachineFile], None] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.name}[:{'|'.join(self.forms)}]  {self.meaning} (default: {self.default})"


def _both_ways(where: Where) -> set[Pair]:
    source, destination = where.gpus
    return {(source, destination), (destination, source)}


def _take_links_down(defects: Defects, where: Where, machine: MachineFile) -> None:
    links = range(machine.nvlink.links) if where.link is None else (where.link,)
    defects.down_links |= {(where.gpus[0], link) for link in links}


def _refuse_access(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.refused_pairs |= _both_ways(where)


def _stage_copies(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.staged_pairs |= _both_ways(where)


def _flip_bits(defects: Defects, where: Where, _: MachineFile) -> None:
    if len(where.gpus) == 1:
        defects.flipping_host_links.add(where.gpus[0])
    else:
        defects.flipping_pairs.add((where.gpus[0], where.gpus[1]))


_FAULTS: Final = (
    FaultKind(
        "link-down",
        "an NVLink, or each of a GPU, is down",
        "gpu3/link7",
        ("gpuN/linkM", "gpuN"),
        _take_links_down,
    ),
    FaultKind(
        "peer-access-refused",
        "the driver offers two GPUs no peer access",
        "gpu0-gpu1",
        ("gpuA-gpuB",),
        _refuse_access,
    ),
    FaultKind(
        "staged-despite-access",
        "peer access is enabled, yet copies both ways go through host memory",
        "gpu0-gpu1",
        ("gpuA-gpuB",),
        _stage_copies,
    ),
    FaultKind(
        "flipped-bit",
        "each copy that way, or between a GPU and the host, has one wrong bit",
        "gpu0-gpu1",
        ("gpuA-gpuB", "gpuN"),
        _flip_bits,
    ),
)


def fault_kinds() -> tuple[FaultKind, ...]:
    """Every kind of fault."""
    return _FAULTS


def fault_lines() -> list[str]:
    """Every kind of fault, a line each."""
    return [str(kind) for kind in _FAULTS]


def inflict(faults: Sequence[str], machine: MachineFile) -> tuple[Defects, tuple[str, ...]]:
    """What `faults` do to `machine`, and each of them with its place. Raises SimulationError."""
    by_name = {kind.name: kind for kind in _FAULTS}
    defects, placed = Defects(), []
    for fault in faults:
        name, _, place = fault.partition(":")
        if name not in by_name:
            raise unknown_name("fault", name, tuple(by_name))
        kind = by_name[name]
        where = _find(kind, place or kind.default, machine)
        kind.inflict(defects, where, machine)
        placed.append(f"{name}:{place or kind.default}")
    return defects, tuple(placed)


_PLACE: Final = re.compile(r"gpu(\d+)(?:-gpu(\d+)|/link(\d+))?", re.ASCII)


def _find(kind: FaultKind, place: str, machine: MachineFile) -> Where:
    match = _PLACE.fullmatch(place)
    if match is None:
        raise SimulationError(f"fault {kind.name}: {place!r} is no {' or '.join(kind.forms)}")
    gpus = tuple(int(number) for number in match.groups()[:2] if number is not None)
    where = Where(gpus, None if match[3] is None else int(match[3]))
    if where.form not in kind.forms:
        raise SimulationError(f"fault {kind.name}: {place!r} is no {' or '.join(kind.forms)}")
    if beyond := [index for index in gpus if index >= len(machine.gpus)]:
        last = len(machine.gpus) - 1
        raise SimulationError(f"fault {kind.name}: no gpu{beyond[0]}; there are gpu0 to gpu{last}")
    if len(gpus) == 2 and gpus[0] == gpus[1]:
        raise SimulationError(f"fault {kind.name}: {place!r} names one GPU twice")
    if where.link is not None and where.link >= machine.nvlink.links:
        last = machine.nvlink.links - 1
        raise SimulationError(
            f"fault {kind.name}: no link{where.link}; there are link0 to link{last}"
        )
    return where
