"""Where a fault is: its place as a person writes it, checked against the machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_gpuxfer.hardware.simulated.errors import SimulationError
from pytest_gpuxfer.hardware.simulated.links import wire
from pytest_gpuxfer.hardware.simulated.machine_file import MachineFile

GPU: Final = "gpuN"
LINK: Final = "gpuN/linkM"
LINKS: Final = "gpuN/linkM-K"
PAIR: Final = "gpuA-gpuB"
ALL: Final = "all"

_PLACE: Final = re.compile(r"gpu(\d+)(?:-gpu(\d+)|/link(\d+)(?:-(\d+))?)?|all", re.ASCII)


@dataclass(frozen=True, slots=True)
class Where:
    """A fault's place: one GPU, two, some links of one, or (no GPU named) all there is."""

    form: str
    gpus: tuple[int, ...] = ()
    links: tuple[int, ...] = ()

    @property
    def pair(self) -> tuple[int, int]:
        source, destination = self.gpus
        return source, destination

    def gpus_of(self, machine: MachineFile) -> tuple[int, ...]:
        """The GPUs that it names, or every one."""
        return self.gpus or tuple(range(len(machine.gpus)))

    def __str__(self) -> str:
        if self.form == PAIR:
            return f"gpu{self.gpus[0]}-gpu{self.gpus[1]}"
        if self.form in (LINK, LINKS):
            last = f"-{self.links[-1]}" if self.form == LINKS else ""
            return f"gpu{self.gpus[0]}/link{self.links[0]}{last}"
        return f"gpu{self.gpus[0]}" if self.form == GPU else ALL


def reached(machine: MachineFile, gpu: int, peer: int) -> bool:
    """Whether two GPUs reach each other's memory when nothing is wrong."""
    nvlink = machine.nvlink
    low, high = sorted((gpu, peer))
    if nvlink is not None and (nvlink.pairs is None or nvlink.pairs.get(f"gpu{low}-gpu{high}")):
        return True
    return machine.over_pcie(gpu, peer) is not None


def parse_place(text: str, forms: Sequence[str], machine: MachineFile) -> Where:
    """The place that `text` names, which has one of `forms`. Raises SimulationError."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise _no_form(text, forms)
    where = _where(match)
    if where.form not in forms:
        raise _no_form(text, forms)
    if beyond := [index for index in where.gpus if index >= len(machine.gpus)]:
        last = len(machine.gpus) - 1
        raise SimulationError(f"no gpu{beyond[0]}; there are gpu0 to gpu{last}")
    if len(where.gpus) == 2 and where.gpus[0] == where.gpus[1]:
        raise SimulationError(f"{text!r} names one GPU twice")
    if where.links:
        _check_links(where, machine)
    return where


def _where(match: re.Match[str]) -> Where:
    if match[0] == ALL:
        return Where(ALL)
    gpus = tuple(int(number) for number in match.groups()[:2] if number is not None)
    if match[3] is None:
        return Where(PAIR if len(gpus) == 2 else GPU, gpus)
    first, last = int(match[3]), int(match[4] or match[3])
    return Where(LINKS if match[4] else LINK, gpus, tuple(range(first, last + 1)))


def _no_form(text: str, forms: Sequence[str]) -> SimulationError:
    return SimulationError(f"{text!r} is no {' or '.join(forms)}")


def _check_links(where: Where, machine: MachineFile) -> None:
    if machine.nvlink is None:
        raise SimulationError("the machine has no NVLink")
    last = machine.nvlink.links - 1
    if where.links[-1] > last:
        raise SimulationError(f"no link{where.links[-1]}; there are link0 to link{last}")


def nearest_place(text: str, forms: Sequence[str], machine: MachineFile) -> Where:
    """The usual place `text`, or the nearest one of `forms` that this machine has.

    Raises SimulationError where it has none.
    """
    match = _PLACE.fullmatch(text)
    assert match is not None
    usual, last = _where(match), len(machine.gpus) - 1
    if usual.form == PAIR and GPU in forms and (last == 0 or not reached(machine, *usual.gpus)):
        return Where(GPU, (0,))
    if usual.form == PAIR and last == 0:
        raise SimulationError("the machine has one GPU")
    gpus = usual.gpus if usual.form == PAIR else tuple(min(gpu, last) for gpu in usual.gpus)
    links = usual.links
    if links:
        used = [link for gpu, link in wire(machine) if gpu == gpus[0]]
        if not used:
            raise SimulationError("the machine has no NVLink")
        links = tuple(min(used, key=lambda link: abs(link - wanted)) for wanted in links)
    return Where(usual.form, gpus, links)
