"""The NVLinks of a machine: where each port leads, and what it carries right now."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import permutations
from typing import Final, Literal

import msgspec

from pytest_gpuxfer.hardware.simulated.defects import Defects
from pytest_gpuxfer.hardware.simulated.engine import VirtualClock
from pytest_gpuxfer.hardware.simulated.errors import SimulationError
from pytest_gpuxfer.hardware.simulated.machine_file import MachineFile
from pytest_gpuxfer.model.units import NS_PER_MS

_FLAP_NS: Final = 50 * NS_PER_MS  # from one loss of a flapping link to the next
_FLAP_DOWN_NS: Final = 5 * NS_PER_MS
_RETRAINING: Final = 0.01  # of the rate, while the only link of a pair comes back
_PAIR: Final = re.compile(r"gpu(\d+)-gpu(\d+)", re.ASCII)

Port = tuple[int, int]  # a GPU and its link


@dataclass(frozen=True, slots=True)
class End:
    """What is at a port's other end: a switch, or a port of another GPU."""

    peer: Port | Literal["switch"]


def wire(machine: MachineFile) -> dict[Port, End]:
    """The other end of each port that is used. Raises SimulationError for what cannot be."""
    nvlink = machine.nvlink
    if nvlink is None:
        return {}
    free = {
        gpu: [link for link in range(nvlink.links) if link not in nvlink.unused]
        for gpu in range(len(machine.gpus))
    }
    if nvlink.pairs is None:
        return {(gpu, link): End("switch") for gpu, links in free.items() for link in links}
    ends: dict[Port, End] = {}
    for pair, count in nvlink.pairs.items():
        gpu, peer = _pair(pair, len(machine.gpus))
        for _ in range(count):
            if not free[gpu] or not free[peer]:
                short = gpu if not free[gpu] else peer
                raise SimulationError(f"nvlink.pairs: gpu{short} has no link left for {pair}")
            one, other = (gpu, free[gpu].pop(0)), (peer, free[peer].pop(0))
            ends[one], ends[other] = End(other), End(one)
    return ends


def check_wiring(machine: MachineFile) -> None:
    """Raises SimulationError for links that no machine has."""
    nvlink = machine.nvlink
    if nvlink is not None:
        if nvlink.links < 1:
            raise SimulationError("nvlink.links: leave `nvlink` out where there are none")
        if beyond := [link for link in nvlink.unused if not 0 <= link < nvlink.links]:
            raise SimulationError(f"nvlink.unused: there is no link {beyond[0]}")
        if nvlink.pairs is not None and not any(nvlink.pairs.values()):
            raise SimulationError("nvlink.pairs: no two GPUs are linked")
    wire(machine)


def _pair(text: str, gpus: int) -> tuple[int, int]:
    match = _PAIR.fullmatch(text)
    if match is None:
        raise SimulationError(f"nvlink.pairs: {text!r} is no gpuA-gpuB")
    gpu, peer = int(match[1]), int(match[2])
    if not gpu < peer < gpus:
        raise SimulationError(f"nvlink.pairs: {text!r} names no two GPUs, the lower one first")
    return gpu, peer


def without(machine: MachineFile, gpu: int) -> MachineFile:
    """The same machine with that GPU gone: those behind it move up, links to it lead nowhere."""
    nvlink = machine.nvlink
    if nvlink is not None and nvlink.pairs is not None:
        pairs = {_pair(text, len(machine.gpus)): count for text, count in nvlink.pairs.items()}
        left = {
            f"gpu{low - (low > gpu)}-gpu{high - (high > gpu)}": count
            for (low, high), count in pairs.items()
            if gpu not in (low, high)
        }
        nvlink = msgspec.structs.replace(nvlink, pairs=left)
    gpus = machine.gpus[:gpu] + machine.gpus[gpu + 1 :]
    return msgspec.structs.replace(machine, gpus=gpus, nvlink=nvlink)


class Links:
    """All NVLinks with what is wrong with them."""

    def __init__(self, machine: MachineFile, defects: Defects, clock: VirtualClock) -> None:
        self._defects, self._clock, self._ends = defects, clock, wire(machine)
        nvlink = machine.nvlink
        self.direct = nvlink is not None and nvlink.pairs is not None
        self._ports = {
            pair: [port for port in self._ends if self._joins(port, pair)]
            for pair in permutations(range(len(machine.gpus)), 2)
        }
        # What `carries` speaks of.
        self._most = max((len(ports) for ports in self._ports.values()), default=0)
        self._steady = {
            pair: min(
                sum(map(self._lasting_part, self._ports[side])) for side in (pair, pair[::-1])
            )
            for pair in self._ports
        }

    def end(self, port: Port) -> End | None:
        """The other end of a port; None where nothing is meant to be."""
        return self._ends.get(port)

    def part(self, port: Port) -> float:
        """How much of its rate a link runs at right now: nothing, half or all."""
        if self._flapped and self._defects.flapping_links.intersection(self._sides(port)):
            return 0.0
        return self._lasting_part(port)

    def join(self, gpu: int, peer: int) -> bool:
        """Whether any link leads from one GPU to the other, but for moments."""
        return self._steady[gpu, peer] > 0

    def share(self, gpu: int, peer: int) -> float:
        """The part of what NVLink carries at best that it does between two GPUs that it joins.

        Links to a switch reach everyone: the side with fewer of them counts.
        """
        carried = self._steady[gpu, peer]
        if self._defects.flapping_links and self._flapped:
            sides = ((gpu, peer), (peer, gpu))
            carried = min(sum(map(self.part, self._ports[side])) for side in sides)
        return max(carried / self._most, _RETRAINING)

    def flaps(self, gpu: int) -> int:
        """How often a link of the GPU has been lost so far."""
        links = sum(1 for flapping, _ in self._defects.flapping_links if flapping == gpu)
        return links * int(self._clock.time_ns // _FLAP_NS)

    def _joins(self, port: Port, pair: tuple[int, int]) -> bool:
        end = self._ends[port].peer
        return port[0] == pair[0] and (end == "switch" or end[0] == pair[1])

    def _lasting_part(self, port: Port) -> float:
        sides = self._sides(port)
        if not sides or self._defects.down_links.intersection(sides):
            return 0.0
        return 0.5 if self._defects.half_links.intersection(sides) else 1.0

    def _sides(self, port: Port) -> tuple[Port, ...]:
        """Both ends of a port's link as far as they are GPUs; none of a port that is not used."""
        end = self._ends.get(port)
        if end is None:
            return ()
        return (port,) if end.peer == "switch" else (port, end.peer)

    @property
    def _flapped(self) -> bool:
        """Whether flapping links are down right now."""
        return self._clock.time_ns % _FLAP_NS < _FLAP_DOWN_NS
