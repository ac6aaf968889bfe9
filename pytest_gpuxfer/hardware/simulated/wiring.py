"""Which way bytes go in a machine, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from pytest_gpuxfer.hardware.simulated.engine import Lane, Traffic
from pytest_gpuxfer.hardware.simulated.faults import Defects
from pytest_gpuxfer.hardware.simulated.machine_file import MachineFile, Timing
from pytest_gpuxfer.model.units import NS_PER_S

HOST_RATE_BYTES_PER_S: Final = 10e9  # one core over host memory: fill, compare, copy
_NVLINK_SPREAD: Final = 0.0004  # rms, of equal copies
_PCIE_SPREAD: Final = 0.001
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
    flips_bits: bool = False

    def duration_ns(self, size_bytes: int) -> float:
        missing = size_bytes / self.timing.rate * NS_PER_S * (1 / self.share - 1)
        return self.timing.duration_ns(size_bytes) + missing

    def traffic(self) -> Traffic:
        return _traffic(self.timing, self.lanes, self.demand)

    def beside(self, sharers: int, local: Timing) -> Route:
        """For one of so many kernels on a GPU: it has that part of the rate that a GPU reaches."""
        part = min(1.0, local.rate / sharers / (self.timing.rate * self.share))
        return replace(self, share=self.share * part, demand=self.demand * part)


@cache
def _traffic(timing: Timing, lanes: tuple[Lane, ...], demand: float) -> Traffic:
    if timing.opposed is None:
        return Traffic(lanes, demand)
    opposite = tuple((_OTHER_WAY[kind], gpu) for kind, gpu in lanes)
    return Traffic(lanes, demand, opposite, timing.opposed / timing.rate)


class Wiring:
    """The links of a machine with what is wrong with them; GPUs by ordinal."""

    def __init__(self, machine: MachineFile, defects: Defects) -> None:
        self._machine, self._defects = machine, defects
        links = range(machine.nvlink.links)
        self._up = [
            sum(self.link_is_up(gpu, link) for link in links) for gpu in range(len(machine.gpus))
        ]

    def link_is_up(self, gpu: int, link: int) -> bool:
        return (gpu, link) not in self._defects.down_links

    def access_offered(self, gpu: int, peer: int) -> bool:
        """Whether the driver lets `gpu` map memory of `peer`; by NVLink only."""
        refused = (gpu, peer) in self._defects.refused_pairs
        return gpu != peer and not refused and self._links_up(gpu, peer) > 0

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
            lanes = (("pcie out", source), ("pcie in", destination))
            flips = pair in self._defects.flipping_pairs
            return Route(self._machine.staged, pair, lanes, staged=True, flips_bits=flips)
        nvlink = self._machine.nvlink
        return self._over_nvlink(nvlink.write if issuer == source else nvlink.read, pair)

    def kernel_write(self, issuer: int, owner: int | None, numa_node: int) -> Route:
        """A kernel's stores to memory of its own GPU, of another one, or of the host (None)."""
        if owner is None:
            return self._over_pcie(self._machine.pcie.kernel_write, issuer, False, numa_node)
        if owner != issuer:
            return self._over_nvlink(self._machine.nvlink.kernel_write, (issuer, owner))
        return self._inside(self._machine.local.kernel, issuer)

    def kernel_read(self, issuer: int, owner: int | None, numa_node: int) -> Route:
        """A kernel's loads, likewise."""
        if owner is None:
            return self._over_pcie(self._machine.pcie.kernel_read, issuer, True, numa_node)
        if owner != issuer:
            return self._over_nvlink(self._machine.nvlink.kernel_read, (owner, issuer))
        return self._inside(self._machine.local.kernel, issuer)

    def kernel_copy(self, read: Route, write: Route, sharers: int) -> Route:
        """Loads by one route and stores by the other, at once: the slower one sets the pace."""
        slow, fast = sorted((read, write), key=lambda leg: leg.timing.rate * leg.share)
        if fast.lanes[0][0] != "memory":
            lanes = slow.lanes + tuple(lane for lane in fast.lanes if lane not in slow.lanes)
            flips = slow.flips_bits or fast.flips_bits
            gpus = tuple({*slow.gpus, *fast.gpus})
            slow = replace(slow, lanes=lanes, gpus=gpus, flips_bits=flips)
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
            return self._over_nvlink(timing, (source, target))
        gpu = source if target is None else target
        assert gpu is not None
        return self._over_pcie(timing, gpu, source is None, None)

    def _inside(self, timing: Timing, gpu: int) -> Route:
        return Route(timing, (gpu,), (("memory", gpu),), _NVLINK_SPREAD)

    def _over_pcie(self, timing: Timing, gpu: int, inward: bool, numa_node: int | None) -> Route:
        far = numa_node not in (None, self._machine.gpus[gpu].numa_node)
        share = self._machine.pcie.far_rate if far else 1.0
        lanes = (("pcie in" if inward else "pcie out", gpu),)
        flips = gpu in self._defects.flipping_host_links
        return Route(timing, (gpu,), lanes, share=share, flips_bits=flips)

    def _over_nvlink(self, timing: Timing, pair: tuple[int, int]) -> Route:
        lanes = (("nvlink out", pair[0]), ("nvlink in", pair[1]))
        share = self._links_up(*pair) / self._machine.nvlink.links
        flips = pair in self._defects.flipping_pairs
        return Route(timing, pair, lanes, _NVLINK_SPREAD, share, flips_bits=flips)

    def _links_up(self, gpu: int, peer: int) -> int:
        """Links to a switch reach everyone: the side with fewer of them counts."""
        return min(self._up[gpu], self._up[peer])
