"""Which way bytes go in a machine, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import msgspec

from pytest_gpuxfer.hardware.simulated.damage import OF_PEER_LINK
from pytest_gpuxfer.hardware.simulated.defects import Damage, Defects, Pair, Way
from pytest_gpuxfer.hardware.simulated.engine import Lane, Traffic, VirtualClock
from pytest_gpuxfer.hardware.simulated.machine_file import Duration, MachineFile, Timing
from pytest_gpuxfer.model.machine import PcieLink, pcie_bytes_per_s
from pytest_gpuxfer.model.units import NS_PER_MS, NS_PER_S

HOST_RATE_BYTES_PER_S: Final = 10e9  # one core over host memory: fill, compare, copy
_NVLINK_SPREAD: Final = 0.0004  # rms, of equal copies
_PCIE_SPREAD: Final = 0.001
_FLAP_NS: Final = 50 * NS_PER_MS  # from one loss of a flapping link to the next
_FLAP_DOWN_NS: Final = 5 * NS_PER_MS
_NO_DAMAGE: Final[frozenset[Damage]] = frozenset()
_OTHER_WAY: Final = {
    "nvlink in": "nvlink out",
    "nvlink out": "nvlink in",
    "pcie in": "pcie out",
    "pcie out": "pcie in",
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
    opposite = tuple((_OTHER_WAY[kind], gpu) for kind, gpu in lanes)
    return Traffic(lanes, demand, opposite, timing.opposed / timing.rate, collapses)


class Wiring:
    """The links of a machine with what is wrong with them; GPUs by ordinal."""

    def __init__(self, machine: MachineFile, defects: Defects, clock: VirtualClock) -> None:
        self._machine, self._defects, self._clock = machine, defects, clock
        self._damage = {way: frozenset(found) for way, found in defects.damage.items()}
        links = range(machine.nvlink.links)
        self._steady = [
            sum(self._lasting_part(gpu, link) for link in links) for gpu in range(len(machine.gpus))
        ]

    def link_part(self, gpu: int, link: int) -> float:
        """How much of its rate a link runs at right now: nothing, half or all."""
        if (gpu, link) in self._defects.flapping_links and self._flapped:
            return 0.0
        return self._lasting_part(gpu, link)

    def flaps(self, gpu: int) -> int:
        """How often a link of the GPU has been lost so far."""
        links = sum(1 for flapping, _ in self._defects.flapping_links if flapping == gpu)
        return links * int(self._clock.time_ns // _FLAP_NS)

    def pcie_link(self, gpu: int, *, awake: bool) -> PcieLink:
        pcie, defects = self._machine.pcie, self._defects
        generation, width = self._trained(gpu)
        if not awake:
            idle = 1 if gpu in defects.sleepy else pcie.idle_generation
            generation = min(generation, idle)
        return PcieLink(generation, width, pcie.generation, pcie.width)

    def access_offered(self, gpu: int, peer: int) -> bool:
        """Whether the driver lets `gpu` map memory of `peer`; by NVLink only."""
        refused = (gpu, peer) in self._defects.refused_pairs
        return gpu != peer and not refused and self._links(gpu, peer) > 0

    def loses_writes(self, source: int, destination: int) -> bool:
        """Whether what one GPU stores to another one's memory never arrives there."""
        return Damage.DROPPED in self._damage_of((source, destination))

    def latency_ns(self, gpu: int, owner: int | None) -> float:
        """Of a load by `gpu` from its own memory, another one's, or the host's (None)."""
        if owner is None:
            return self._machine.pcie.latency
        return self._machine.local.latency if owner == gpu else self._machine.nvlink.latency

    def host_copy(self, gpu: int, *, to_device: bool, pageable: bool, numa_node: int) -> Route:
        pcie = self._machine.pcie
        pinned = pcie.to_device if to_device else pcie.from_device
        paged = pcie.pageable_to_device if to_device else pcie.pageable_from_device
        return self._over_pcie(paged if pageable else pinned, gpu, to_device, numa_node)

    def local_copy(self, gpu: int) -> Route:
        return self._inside(self._machine.local.copy, gpu)

    def peer_copy(self, source: int, destination: int, issuer: int, *, mapped: bool) -> Route:
        """Between two GPUs by `issuer`; `mapped`: one of them may use the other's memory."""
        pair = (source, destination)
        if not mapped or pair in self._defects.staged_pairs:
            return self._staged(pair)
        nvlink, writes = self._machine.nvlink, issuer == source
        return self._over_nvlink(nvlink.write if writes else nvlink.read, pair, writes)

    def kernel_write(self, issuer: int, owner: int | None, numa_node: int) -> Route:
        """A kernel's stores to memory of its own GPU, of another one, or of the host (None)."""
        if owner is None:
            return self._over_pcie(self._machine.pcie.kernel_write, issuer, False, numa_node)
        if owner != issuer:
            return self._over_nvlink(self._machine.nvlink.kernel_write, (issuer, owner), True)
        return self._inside(self._machine.local.kernel, issuer)

    def kernel_read(self, issuer: int, owner: int | None, numa_node: int) -> Route:
        """A kernel's loads, likewise."""
        if owner is None:
            return self._over_pcie(self._machine.pcie.kernel_read, issuer, True, numa_node)
        if owner != issuer:
            return self._over_nvlink(self._machine.nvlink.kernel_read, (owner, issuer), False)
        return self._inside(self._machine.local.kernel, issuer)

    def kernel_copy(self, read: Route, write: Route, sharers: int) -> Route:
        """Loads by one route and stores by the other, at once: the slower one sets the pace."""
        slow, fast = sorted((read, write), key=lambda leg: leg.timing.rate * leg.share)
        if fast.lanes[0][0] != "memory":
            lanes = slow.lanes + tuple(lane for lane in fast.lanes if lane not in slow.lanes)
            damage = slow.damage | fast.damage
            gpus = tuple({*slow.gpus, *fast.gpus})
            slow = replace(slow, lanes=lanes, gpus=gpus, damage=damage)
        return slow.beside(sharers, self._machine.local.kernel)

    def prefetch(self, source: int | None, target: int | None) -> Route:
        """Managed memory on its way between GPUs, or from or to the host (None)."""
        managed = self._machine.managed
        if source is None:
            return self._migration(managed.to_device, source, target)
        return self._migration(
            managed.from_device if target is None else managed.between, source, target
        )

    def page_faults(self, source: int | None, target: int | None) -> Route:
        """Managed memory on its way to who touched it."""
        return self._migration(self._machine.managed.faults, source, target)

    def _migration(self, timing: Timing, source: int | None, target: int | None) -> Route:
        if source is not None and target is not None:
            return self._over_nvlink(timing, (source, target), False)
        gpu = source if target is None else target
        assert gpu is not None
        return self._over_pcie(timing, gpu, source is None, None)

    def _inside(self, timing: Timing, gpu: int) -> Route:
        share = self._vigour(gpu)
        return Route(timing, (gpu,), (("memory", gpu),), _NVLINK_SPREAD, share)

    def _over_pcie(self, timing: Timing, gpu: int, inward: bool, numa_node: int | None) -> Route:
        node = self._machine.gpus[gpu].numa_node
        far = numa_node is not None and (numa_node != node) != (gpu in self._defects.far_gpus)
        share = self._pcie_part(gpu) * self._vigour(gpu)
        if far:
            share *= self._machine.pcie.far_rate
        lanes = (("pcie in" if inward else "pcie out", gpu),)
        return Route(timing, (gpu,), lanes, share=share, damage=self._damage_of((gpu,)))

    def _staged(self, pair: Pair) -> Route:
        lanes = (("pcie out", pair[0]), ("pcie in", pair[1]))
        share = min(self._pcie_part(gpu) * self._vigour(gpu) for gpu in pair)
        damage = self._damage_of(pair) - OF_PEER_LINK
        return Route(self._machine.staged, pair, lanes, share=share, staged=True, damage=damage)

    def _over_nvlink(self, timing: Timing, pair: Pair, writes: bool) -> Route:
        lanes = (("nvlink out", pair[0]), ("nvlink in", pair[1]))
        share = self._links(*pair) / self._machine.nvlink.links
        share *= self._defects.slow_pairs.get(pair, 1.0) * min(map(self._vigour, pair))
        damage = self._damage_of(pair)
        if not writes:
            damage -= {Damage.DROPPED}
        if pair in self._defects.late_pairs:
            timing = _starting_at(timing, self._machine.staged.startup)
        collapses = writes and self._defects.collapsing
        return Route(timing, pair, lanes, _NVLINK_SPREAD, share, damage=damage, collapses=collapses)

    def _damage_of(self, way: Way) -> frozenset[Damage]:
        return self._damage.get(way, _NO_DAMAGE)

    def _links(self, gpu: int, peer: int) -> float:
        """Links to a switch reach everyone: the side with fewer of them counts."""
        return min(self._links_of(gpu), self._links_of(peer))

    def _links_of(self, gpu: int) -> float:
        lost = 0.0
        if self._defects.flapping_links and self._flapped:
            flapping = (link for end, link in self._defects.flapping_links if end == gpu)
            lost = sum(self._lasting_part(gpu, link) for link in flapping)
        return self._steady[gpu] - lost

    def _lasting_part(self, gpu: int, link: int) -> float:
        if (gpu, link) in self._defects.down_links:
            return 0.0
        return 0.5 if (gpu, link) in self._defects.half_links else 1.0

    @property
    def _flapped(self) -> bool:
        """Whether flapping links are down right now."""
        return self._clock.time_ns % _FLAP_NS < _FLAP_DOWN_NS

    def _vigour(self, gpu: int) -> float:
        """The part of each of its rates that a hot or busy GPU reaches."""
        return self._defects.slow_gpus.get(gpu, 1.0)

    def _trained(self, gpu: int) -> tuple[int, int]:
        """The generation and width of a GPU's PCIe link under load."""
        pcie, defects = self._machine.pcie, self._defects
        generation = pcie.generation - (gpu in defects.lower_generations)
        return generation, pcie.width // 2 if gpu in defects.half_widths else pcie.width

    def _pcie_part(self, gpu: int) -> float:
        """The part of its PCIe link's rate that a GPU has."""
        pcie = self._machine.pcie
        whole = pcie_bytes_per_s(pcie.generation, pcie.width)
        return pcie_bytes_per_s(*self._trained(gpu)) / whole


@cache
def _starting_at(timing: Timing, startup: Duration) -> Timing:
    """The same rates with a later start."""
    return msgspec.structs.replace(timing, startup=startup)
