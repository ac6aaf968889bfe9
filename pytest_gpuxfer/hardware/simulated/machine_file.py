"""What a machine file says: its parts, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from pytest_gpuxfer.hardware.driver import Feature
from pytest_gpuxfer.model import units

_RAMP_BYTES: Final = 16 * units.KIB


class Rate(float):
    """Bytes per second, written with its unit."""


class Duration(float):
    """Nanoseconds, written with their unit."""


class Size(int):
    """Bytes, written with their unit."""


class Ancestor(StrEnum):
    """What is common to two GPUs in the PCI tree, as `nvidia-smi topo -m` names it."""

    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


class HostLink(StrEnum):
    """What joins a GPU and the host's memory."""

    PCIE = "pcie"
    C2C = "c2c"


class Hidden(StrEnum):
    """What NVML does not tell on this machine, as in a virtual one."""

    PCIE_LINK = "pcie link"
    PCIE_BYTES = "pcie bytes"
    NUMA_NODE = "numa node"
    COMMON_ANCESTOR = "common ancestor"
    NVLINKS = "nvlinks"
    NVLINK_BYTES = "nvlink bytes"


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping whose every key is known."""


class Timing(_Strict, frozen=True):
    """How long bytes take: `startup`, then `rate`; `ramp` is what the first 16 KiB cost more.

    `opposed` is the rate while the other direction of the link is busy too, `crowded` while that of
    another GPU's is, as well.
    """

    rate: Rate
    startup: Duration
    ramp: Duration = Duration(0)
    opposed: Rate | None = None
    crowded: Rate | None = None

    def duration_ns(self, size_bytes: int) -> float:
        ramp = self.ramp * min(1.0, size_bytes / _RAMP_BYTES)
        return self.startup + ramp + size_bytes / self.rate * units.NS_PER_S


class GpuKind(_Strict, frozen=True):
    """One GPU product; `fabric` is the state that NVML tells of a healthy one."""

    name: str
    memory: Size
    ecc: bool
    fabric: str
    features: frozenset[Feature]


class GpuSlot(_Strict, frozen=True):
    """Where one GPU sits. Without `host_bridge` it shares none but by its switch."""

    pci_address: str
    numa_node: int
    pcie_switch: int
    host_bridge: int | None = None
    gpu: GpuKind | None = None  # where it is not what the others are


class Between(_Strict, frozen=True):
    """What a way between two GPUs carries: by copy engines, by kernels, and one load's latency.

    `latency` is that of one load that waits for the one before, here and below; `loaded_latency`
    the same while copies fill the way, where that was measured.
    """

    write: Timing
    read: Timing
    kernel_write: Timing
    kernel_read: Timing
    latency: Duration
    atomics: bool
    loaded_latency: Duration | None = None


class Nvlink(_Strict, frozen=True):
    """The NVLink ports of each GPU.

    All lead to switches, or with `pairs` so many from one GPU to another ("gpu0-gpu1"). `unused`
    ports are down by design. `carries` is what a GPU reaches with all its links up; with `pairs`,
    what the pair with the most links does.
    """

    generation: int
    links: int
    per_link: Rate
    carries: Between
    unused: tuple[int, ...] = ()
    pairs: Mapping[str, int] | None = None


class Pcie(_Strict, frozen=True):
    """The PCIe link of each GPU; `switch` is what GPUs of one switch have in common."""

    generation: int
    width: int
    idle_generation: int
    switch: Ancestor = Ancestor.PXB


class Host(_Strict, frozen=True):
    """What the link between a GPU and the host carries.

    Memory is pinned but for `pageable_*`, and on the GPU's own NUMA node: on another one, all rates
    fall to the part `far_rate` of these.
    """

    link: HostLink
    to_device: Timing
    from_device: Timing
    pageable_to_device: Timing
    pageable_from_device: Timing
    kernel_write: Timing
    kernel_read: Timing
    latency: Duration
    far_rate: float
    loaded_latency: Duration | None = None


class Local(_Strict, frozen=True):
    """Copies inside a GPU, by its copy engine and by kernels."""

    copy: Timing
    kernel: Timing
    latency: Duration


class Managed(_Strict, frozen=True):
    """How managed memory migrates: by prefetch three ways, or page by page to who touches it.

    `part_of_page` is what a prefetch of less than a page (64 KiB) costs more.
    """

    to_device: Timing
    from_device: Timing
    between: Timing
    faults: Timing
    part_of_page: Duration = Duration(0)


class MachineFile(_Strict, frozen=True):
    """One machine.

    `staged` is a copy without peer access. `p2p` says over which common ancestors GPUs of one
    product reach each other by PCIe; without NVLink and without that there is no peer access.
    `handover` is how long a GPU takes to go on after work of another GPU that it waited for.
    """

    title: str
    driver_version: str
    cuda: tuple[int, int]
    gpu: GpuKind
    gpus: tuple[GpuSlot, ...]
    max_peers: int
    pcie: Pcie
    host: Host
    staged: Timing
    local: Local
    managed: Managed
    nvlink: Nvlink | None = None
    p2p: Mapping[Ancestor, Between] = {}
    handover: Duration = Duration(0)
    hidden: frozenset[Hidden] = frozenset()

    def kind_of(self, gpu: int) -> GpuKind:
        """What the GPU of that number is."""
        return self.gpus[gpu].gpu or self.gpu

    def ancestor(self, gpu: int, peer: int) -> Ancestor:
        """The nearest thing that two GPUs have in common."""
        slot, other = self.gpus[gpu], self.gpus[peer]
        if slot.pcie_switch == other.pcie_switch:
            return self.pcie.switch
        if slot.host_bridge is not None and slot.host_bridge == other.host_bridge:
            return Ancestor.PHB
        return Ancestor.NODE if slot.numa_node == other.numa_node else Ancestor.SYS

    def over_pcie(self, gpu: int, peer: int) -> Between | None:
        """What PCIe carries between two GPUs, or None where it offers no peer access."""
        if self.kind_of(gpu).name != self.kind_of(peer).name:
            return None
        return self.p2p.get(self.ancestor(gpu, peer))

    def with_kind(self, gpu: int, kind: GpuKind) -> MachineFile:
        """The same machine with another GPU there."""
        slots = list(self.gpus)
        slots[gpu] = msgspec.structs.replace(slots[gpu], gpu=kind)
        return msgspec.structs.replace(self, gpus=tuple(slots))
