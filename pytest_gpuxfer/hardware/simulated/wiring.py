"""Which way bytes go in a machine, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pytest_gpuxfer.hardware.simulated.engine import Lane
from pytest_gpuxfer.hardware.simulated.faults import Defects
from pytest_gpuxfer.hardware.simulated.machine_file import MachineFile, Timing
from pytest_gpuxfer.model.units import NS_PER_S

HOST_RATE_BYTES_PER_S: Final = 10e9  # one core over host memory: fill, compare, copy
_NVLINK_SPREAD: Final = 0.0004  # rms, of equal copies
_PCIE_SPREAD: Final = 0.001


@dataclass(frozen=True, slots=True)
class Route:
    """A way for bytes. `share` is how much of the timing's rate its links can still carry."""

    timing: Timing
    gpus: tuple[int, ...]
    lanes: tuple[Lane, ...] = ()
    spread: float = _PCIE_SPREAD
    share: float = 1.0
    nvlink: tuple[int, int] | None = None  # sender and receiver, whose counters see it
    staged: bool = False
    flips_bits: bool = False

    def duration_ns(self, size_bytes: int) -> float:
        missing = size_bytes / self.timing.rate * NS_PER_S * (1 / self.share - 1)
        return self.timing.duration_ns(size_bytes) + missing


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

    def host_copy(self, gpu: int, *, to_device: bool) -> Route:
        pcie = self._machine.pcie
        return Route(
            pcie.to_device if to_device else pcie.from_device,
            (gpu,),
            (("pcie in" if to_device else "pcie out", gpu),),
            flips_bits=gpu in self._defects.flipping_host_links,
        )

    def local_copy(self, gpu: int) -> Route:
        return Route(self._machine.local, (gpu,), spread=_NVLINK_SPREAD)

    def peer_copy(self, source: int, destination: int, issuer: int, *, mapped: bool) -> Route:
        """Between two GPUs by `issuer`; `mapped`: peer access is on, in either direction."""
        pair = (source, destination)
        flips = pair in self._defects.flipping_pairs
        if not mapped or pair in self._defects.staged_pairs:
            lanes = (("pcie out", source), ("pcie in", destination))
            return Route(self._machine.staged, pair, lanes, staged=True, flips_bits=flips)
        nvlink = self._machine.nvlink
        return self._over_nvlink(nvlink.write if issuer == source else nvlink.read, pair, flips)

    def fill(self, issuer: int, owner: int | None) -> Route:
        """A kernel's stores to memory of its own GPU, of another one, or of the host (None)."""
        if owner is None:
            return Route(self._machine.pcie.kernel_write, (issuer,), (("pcie out", issuer),))
        if owner != issuer:
            return self._over_nvlink(self._machine.nvlink.kernel_write, (issuer, owner), False)
        return Route(self._machine.local, (issuer,), spread=_NVLINK_SPREAD)

    def _over_nvlink(self, timing: Timing, pair: tuple[int, int], flips: bool) -> Route:
        lanes = (("nvlink out", pair[0]), ("nvlink in", pair[1]))
        share = self._links_up(*pair) / self._machine.nvlink.links
        return Route(timing, pair, lanes, _NVLINK_SPREAD, share, nvlink=pair, flips_bits=flips)

    def _links_up(self, gpu: int, peer: int) -> int:
        """Links to a switch reach everyone: the side with fewer of them counts."""
        return min(self._up[gpu], self._up[peer])
