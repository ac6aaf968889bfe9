"""A machine as its driver, NVML and kernel describe it: values alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pytest_gpuxfer.model.unknown import NOT_READ, Unknown

# Rates of one direction of an x1 link: transfers/s x 128b/130b (Gen1 and 2: 8b/10b), PCI-SIG base
# specifications. Gen6 (PAM4, FLIT) has no 130-bit code; its raw rate is given.
PCIE_LANE_BYTES_PER_S: Final[Mapping[int, float]] = {
    1: 0.25e9, 2: 0.5e9, 3: 8e9 / 8 * 128 / 130, 4: 16e9 / 8 * 128 / 130,
    5: 32e9 / 8 * 128 / 130, 6: 64e9 / 8,
}  # fmt: skip


def pcie_bytes_per_s(generation: int, width: int) -> float:
    """The physical rate of one direction of a PCIe link. Raises KeyError for other generations."""
    return PCIE_LANE_BYTES_PER_S[generation] * width


@dataclass(frozen=True, slots=True)
class NvlinkPort:
    """One NVLink of a GPU. `remote` is "switch", or the PCI address of the GPU at its other end."""

    link: int
    active: bool | Unknown
    rate_bytes_per_s: float | Unknown = NOT_READ
    generation: int | Unknown = NOT_READ
    remote: str | Unknown = NOT_READ


@dataclass(frozen=True, slots=True)
class PcieLink:
    """A GPU's PCIe link. At idle the generation drops: only what is read under load counts."""

    generation: int | Unknown
    width: int | Unknown
    max_generation: int | Unknown = NOT_READ
    max_width: int | Unknown = NOT_READ


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that this process may see. `index` is N of gpuN: its place in PCI order."""

    index: int
    ordinal: int  # CUDA's, as CUDA_VISIBLE_DEVICES leaves it
    uuid: str
    pci_address: str  # domain:bus:device.function, lower case: "0000:00:06.0"
    name: str
    memory_bytes: int
    nvlinks: tuple[NvlinkPort, ...] | Unknown  # () is known: no NVLink here
    pcie: PcieLink
    mig_enabled: bool | Unknown = NOT_READ
    ecc_enabled: bool | Unknown = NOT_READ
    fabric: str | Unknown = NOT_READ  # "completed", "in progress", "not supported", ...
    numa_node: int | Unknown = NOT_READ

    @property
    def label(self) -> str:
        return f"gpu{self.index}"

    def active_nvlinks(self) -> int | Unknown:
        """How many NVLinks are up."""
        if isinstance(self.nvlinks, Unknown):
            return self.nvlinks
        if unread := [port.link for port in self.nvlinks if isinstance(port.active, Unknown)]:
            return Unknown(f"state of link {', '.join(map(str, unread))} of {self.label} not read")
        return sum(1 for port in self.nvlinks if port.active)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the host's kernel tells; each fact may be unknown, none of them gates."""

    hostname: str
    kernel: str | Unknown = NOT_READ
    iommu: str | Unknown = NOT_READ
    virtualisation: str | Unknown = NOT_READ  # "none", "kvm", ...
    container: str | Unknown = NOT_READ
    cpus_allowed: str | Unknown = NOT_READ


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything known before the first byte moves. `simulated` names the model, or is None."""

    host: HostFacts
    gpus: tuple[Gpu, ...]
    driver_version: str | Unknown
    cuda_version: str | Unknown
    numa_nodes: tuple[int, ...] | Unknown = NOT_READ  # whose CPUs this process may use
    simulated: str | None = None
    faults: tuple[str, ...] = ()
    # Nearest common PCI ancestor by pair "gpu0-gpu1" (lower index first): PIX, PXB, PHB, NODE, SYS.
    ancestors: Mapping[str, str | Unknown] = field(default_factory=dict)
    # Whether the driver says that source may map destination's memory, by ordered pair "gpu0-gpu1".
    peer_access_offered: Mapping[str, bool | Unknown] = field(default_factory=dict)

    def link_class(self, source: int, destination: int) -> str | Unknown:
        """What the pair is wired with, from the links that are up: NV12, PIX, ...

        Links to a switch reach every GPU behind it, others only the GPU at their end; the lesser
        side counts.
        """
        gpus = (self.gpus[source], self.gpus[destination])
        counts: list[int] = []
        for gpu, peer in (gpus, gpus[::-1]):
            if isinstance(gpu.nvlinks, Unknown):
                return gpu.nvlinks
            up = [port for port in gpu.nvlinks if port.active is True]
            counts.append(sum(1 for p in up if p.remote in ("switch", peer.pci_address)))
        if min(counts):
            return f"NV{min(counts)}"
        low, high = sorted((source, destination))
        return self.ancestors.get(f"gpu{low}-gpu{high}", Unknown("PCI ancestor not read"))
