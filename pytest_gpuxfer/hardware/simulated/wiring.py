"""Which way bytes go in a machine, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import msgspec

from pytest_gpuxfer.hardware.simulated.damage import OF_PEER_LINK
from pytest_gpuxfer.hardware.simulated.defects import Damage, Defects, Pair, Way
from pytest_gpuxfer.hardware.simulated.engine import SHARED, Lane, Traffic, VirtualClock
from pytest_gpuxfer.hardware.simulated.links import Links
from pytest_gpuxfer.hardware.simulated.machine_file import (
    Between,
    Duration,
    Host,
    HostLink,
    MachineFile,
    Timing,
)
from pytest_gpuxfer.model.machine import PcieLink, pcie_bytes_per_s
from pytest_gpuxfer.model.units import KIB, NS_PER_S

HOST_RATE_BYTES_PER_S: Final = 10e9  # one core over host memory: fill, compare, copy
_PAGE_BYTES: Final = 64 * KIB  # of managed memory
_NVLINK_SPREAD: Final = 0.0004  # rms, of equal copies
_PCIE_SPREAD: Final = 0.001
_NO_DAMAGE: Final[frozenset[Damage]] = frozenset()
_OTHER_WAY: Final = {
    f"{link} {way}": f"{link} {other}"
    for link in ("nvlink", "pcie", "c2c")
    for way, other in (("in", "out"), ("out", "in"))
}


@dataclass(frozen=True, slots=True)
class Route:
    """A way for bytes, over `lanes`: "nvlink out" of a GPU, "pcie in" to it, its "memory".

    `share` is how much of the timing's rate it gets when nothing else runs; `demand` how much of
    its lanes that takes.
    """

    timing: Timing
    gpus: tuple[int, ...]
    lanes: tuple[Lane, ...]
    spread: float = _PCIE_SPREAD
    share: float = 1.0
    demand: float = 1.0
    staged: bool = False
    damage: frozenset[Damage] = _NO_DAMAGE
    collapses: bool = False  # beside another pair's

    def duration_ns(self, size_bytes: int) -> float:
        missing = size_bytes / self.timing.rate * NS_PER_S * (1 / self.share - 1)
        return self.timing.duration_ns(size_bytes) + missing

    def traffic(self) -> Traffic:
        return _traffic(self.timing, self.lanes, self.demand, self.collapses)

    def beside(self, sharers: int, local: Timing) -> Route:
        """For one of so many kernels on a GPU: it has that part of the rate that a GPU reaches."""
        part = min(1.0, local.rate / sharers / (self.timing.rate * self.share))
        return replace(self, share=self.share * part, demand=self.demand * part)


@cache
def _traffic(timing: Timing, lanes: tuple[Lane, ...], demand: float, collapses: bool) -> Traffic:
    if timing.opposed is None:
        return Traffic(lanes, demand, collapses=collapses)
    opposite = tuple((_OTHER_WAY[kind], gpu, peer) for kind, gpu, peer in lanes)
    opposed, crowded = timing.opposed, timing.crowded or timing.opposed
    speeds = opposed / timing.rate, crowded / timing.rate
    return Traffic(lanes, demand, opposite, *speeds, collapses=collapses)


@dataclass(frozen=True, slots=True)
class _Way:
    """How two GPUs reach each other's memory."""

    carries: Between
    share: float
    lanes: tuple[Lane, ...]
    spread: float


class Wiring:
    """The ways of a machine with what is wrong with them; GPUs by ordinal."""

    def __init__(self, machine: MachineFile, defects: Defects, clock: VirtualClock) -> None:
        self._machine, self._defects = machine, defects
        self.links = Links(machine, defects, clock)
        self._damage = {way: frozenset(found) for way, found in defects.damage.items()}

    def pcie_link(self, gpu: int, *, awake: bool) -> PcieLink:
        pcie, defects = self._machine.pcie, self._defects
        generation, width = self._trained(gpu)
        if not awake:
            idle = 1 if gpu in defects.sleepy else pcie.idle_generation
            generation = min(generation, idle)
        return PcieLink(generation, width, pcie.generation, pcie.width)

    def access_offered(self, gpu: int, peer: int) -> bool:
        """Whether the driver lets `gpu` map memory of `peer`."""
        if gpu == peer or (gpu, peer) in self._defects.refused_pairs:
            return False
        return self.links.join(gpu, peer) or self._machine.over_pcie(gpu, peer) is not None

    def has_atomics(self, gpu: int, peer: int) -> bool:
        """Whether the way between two GPUs is made for atomic operations."""
        return self._way((gpu, peer)).carries.atomics

    def loses_writes(self, source: int, destination: int) -> bool:
        """Whether what one GPU stores to another one's memory never arrives there."""
        return Damage.DROPPED in self._damage_of((source, destination))

    def latency_ns(self, gpu: int, owner: int | None) -> float:
        """Of a load by `gpu` from its own memory, another one's, or the host's (None)."""
        if owner == gpu:
            return self._machine.local.latency
        return self._loads(gpu, owner)[0].latency

    def loads_beside(self, gpu: int, owner: int | None) -> Traffic:
        """What slows such loads, which fill no lane themselves: copies of the same way."""
        if owner == gpu:
            return Traffic()
        way, lanes = self._loads(gpu, owner)
        if way.loaded_latency is None:
            return Traffic()
        speed = way.latency / way.loaded_latency
        return Traffic(opposite=lanes, opposed_speed=speed, crowded_speed=speed)

    def _loads(self, gpu: int, owner: int | None) -> tuple[Between | Host, tuple[Lane, ...]]:
        """The way to memory of another GPU, or of the host (None), and its lanes both ways."""
        if owner is None:
            lanes = tuple(self._host_lane(gpu, inward) for inward in (True, False))
            return self._machine.host, lanes
        there, back = self._way((gpu, owner)), self._way((owner, gpu))
        return there.carries, there.lanes + back.lanes

    def host_copy(self, gpu: int, *, to_device: bool, pageable: bool, numa_node: int) -> Route:
        host = self._machine.host
        pinned = host.to_device if to_device else host.from_device
        paged = host.pageable_to_device if to_device else host.pageable_from_device
        return self._to_host(paged if pageable else pinned, gpu, to_device, numa_node)

    def local_copy(self, gpu: int) -> Route:
        return self._inside(self._machine.local.copy, gpu)

    def peer_copy(self, source: int, destination: int, issuer: int, *, mapped: bool) -> Route:
        """Between two GPUs by `issuer`; `mapped`: one of them may use the other's memory."""
        pair = (source, destination)
        if not mapped or pair in self._defects.staged_pairs:
            return self._staged(pair)
        carries = self._way(pair).carries
        if issuer == source:
            return self._between(carries.write, pair, writes=True)
        return self._between(carries.read, pair, writes=False)

    def kernel_write(self, issuer: int, owner: int | None, numa_node: int) -> Route:
        """A kernel's stores to memory of its own GPU, of another one, or of the host (None)."""
        if owner is None:
            return self._to_host(self._machine.host.kernel_write, issuer, False, numa_node)
        if owner == issuer:
            return self._inside(self._machine.local.kernel, issuer)
        pair = (issuer, owner)
        return self._between(self._way(pair).carries.kernel_write, pair, writes=True)

    def kernel_read(self, issuer: int, owner: int | None, numa_node: int) -> Route:
        """A kernel's loads, likewise."""
        if owner is None:
            return self._to_host(self._machine.host.kernel_read, issuer, True, numa_node)
        if owner == issuer:
            return self._inside(self._machine.local.kernel, issuer)
        pair = (owner, issuer)
        return self._between(self._way(pair).carries.kernel_read, pair, writes=False)

    def kernel_copy(self, read: Route, write: Route, sharers: int) -> Route:
        """Loads by one route and stores by the other, at once: the slower one sets the pace."""
        slow, fast = sorted((read, write), key=lambda leg: leg.timing.rate * leg.share)
        if fast.lanes[0][0] != "memory":
            lanes = slow.lanes + tuple(lane for lane in fast.lanes if lane not in slow.lanes)
            damage = slow.damage | fast.damage
            gpus = tuple({*slow.gpus, *fast.gpus})
            slow = replace(slow, lanes=lanes, gpus=gpus, damage=damage)
        return slow.beside(sharers, self._machine.local.kernel)

    def prefetch(self, source: int | None, target: int | None, size_bytes: int) -> Route:
        """Managed memory on its way between GPUs, or from or to the host (None)."""
        managed = self._machine.managed
        timing = managed.between
        if source is None:
            timing = managed.to_device
        elif target is None:
            timing = managed.from_device
        if size_bytes < _PAGE_BYTES:
            timing = _starting_at(timing, Duration(timing.startup + managed.part_of_page))
        return self._migration(timing, source, target)

    def page_faults(self, source: int | None, target: int | None) -> Route:
        """Managed memory on its way to who touched it."""
        return self._migration(self._machine.managed.faults, source, target)

    def _migration(self, timing: Timing, source: int | None, target: int | None) -> Route:
        if source is None or target is None:
            gpu = source if target is None else target
            assert gpu is not None
            return self._to_host(timing, gpu, source is None, None)
        if self.access_offered(source, target):
            return self._between(timing, (source, target), writes=False)
        return replace(self._staged((source, target)), timing=timing, staged=False)

    def _inside(self, timing: Timing, gpu: int) -> Route:
        lanes = (("memory", gpu, SHARED),)
        return Route(timing, (gpu,), lanes, _NVLINK_SPREAD, self._vigour(gpu))

    def _to_host(self, timing: Timing, gpu: int, inward: bool, numa_node: int | None) -> Route:
        node = self._machine.gpus[gpu].numa_node
        far = numa_node is not None and (numa_node != node) != (gpu in self._defects.far_gpus)
        share = self._host_part(gpu)
        if far:
            share *= self._machine.host.far_rate
        lanes = (self._host_lane(gpu, inward),)
        return Route(timing, (gpu,), lanes, share=share, damage=self._damage_of((gpu,)))

    def _staged(self, pair: Pair) -> Route:
        lanes = (self._host_lane(pair[0], False), self._host_lane(pair[1], True))
        share = min(map(self._host_part, pair))
        damage = self._damage_of(pair) - OF_PEER_LINK
        return Route(self._machine.staged, pair, lanes, share=share, staged=True, damage=damage)

    def _way(self, pair: Pair) -> _Way:
        """How the first reaches the second's memory; access must be offered."""
        source, destination = pair
        nvlink = self._machine.nvlink
        if nvlink is not None and self.links.join(*pair):
            to, of = (destination, source) if self.links.direct else (SHARED, SHARED)
            lanes = (("nvlink out", source, to), ("nvlink in", destination, of))
            return _Way(nvlink.carries, self.links.share(*pair), lanes, _NVLINK_SPREAD)
        carries = self._machine.over_pcie(*pair)
        assert carries is not None
        lanes = (("pcie out", source, SHARED), ("pcie in", destination, SHARED))
        return _Way(carries, min(map(self._pcie_part, pair)), lanes, _PCIE_SPREAD)

    def _between(self, timing: Timing, pair: Pair, *, writes: bool) -> Route:
        way, defects = self._way(pair), self._defects
        share = way.share * defects.slow_pairs.get(pair, 1.0) * min(map(self._vigour, pair))
        damage = self._damage_of(pair)
        if not writes:
            damage -= {Damage.DROPPED}
        if pair in defects.late_pairs:
            timing = _starting_at(timing, self._machine.staged.startup)
        collapses = writes and defects.collapsing
        return Route(timing, pair, way.lanes, way.spread, share, damage=damage, collapses=collapses)

    def _host_lane(self, gpu: int, inward: bool) -> Lane:
        return f"{self._machine.host.link} {'in' if inward else 'out'}", gpu, SHARED

    def _damage_of(self, way: Way) -> frozenset[Damage]:
        return self._damage.get(way, _NO_DAMAGE)

    def _vigour(self, gpu: int) -> float:
        """The part of each of its rates that a hot or busy GPU reaches."""
        return self._defects.slow_gpus.get(gpu, 1.0)

    def _trained(self, gpu: int) -> tuple[int, int]:
        """The generation and width of a GPU's PCIe link under load."""
        pcie, defects = self._machine.pcie, self._defects
        generation = max(1, pcie.generation - (gpu in defects.lower_generations))
        return generation, pcie.width // 2 if gpu in defects.half_widths else pcie.width

    def _pcie_part(self, gpu: int) -> float:
        """The part of its PCIe link's rate that a GPU has."""
        pcie = self._machine.pcie
        whole = pcie_bytes_per_s(pcie.generation, pcie.width)
        return pcie_bytes_per_s(*self._trained(gpu)) / whole

    def _host_part(self, gpu: int) -> float:
        """The part of what its link to the host carries that a GPU gets."""
        over_pcie = self._machine.host.link is HostLink.PCIE
        return self._vigour(gpu) * (self._pcie_part(gpu) if over_pcie else 1.0)


@cache
def _starting_at(timing: Timing, startup: Duration) -> Timing:
    """The same rates with a later start."""
    return msgspec.structs.replace(timing, startup=startup)
