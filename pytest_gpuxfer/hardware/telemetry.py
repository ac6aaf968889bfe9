"""What NVML tells of GPUs, links and counters, typed. GPUs are named by UUID.

Nothing raises for what a GPU or driver does not support: that is an `Unknown` with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_gpuxfer.model.machine import NvlinkPort, PcieLink
from pytest_gpuxfer.model.unknown import NOT_READ, Unknown


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """A GPU as NVML lists it (whatever CUDA_VISIBLE_DEVICES says)."""

    uuid: str
    pci_address: str  # domain:bus:device.function in lower case
    name: str


@dataclass(frozen=True, slots=True)
class NvlinkBytes:
    """A GPU's data byte counters, summed over its links; only differences mean something."""

    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True)
class PcieBytes:
    """A GPU's PCIe byte counters, packets and all: 32 bit, so they wrap every 4.29 GB."""

    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """What could spoil a measurement right now, and what has gone wrong so far.

    Of counts only differences mean something, but for `xids`: those since Telemetry was opened.
    """

    throttle_reasons: tuple[str, ...] | Unknown = NOT_READ
    other_processes: int | Unknown = NOT_READ
    nvlink_errors: int | Unknown = NOT_READ  # replays, recoveries and CRC errors of all links
    pcie_replays: int | Unknown = NOT_READ
    xids: tuple[int, ...] | Unknown = NOT_READ  # codes, first one first
    remapped_rows: int | Unknown = NOT_READ  # of its memory
    confidential: bool | Unknown = NOT_READ  # confidential computing is on


class Telemetry(Protocol):
    """Topology, link state, counters and health of the GPUs of one host."""

    def driver_version(self) -> str | Unknown: ...

    def gpus(self) -> Sequence[GpuIdentity] | Unknown: ...

    def nvlinks(self, uuid: str) -> tuple[NvlinkPort, ...] | Unknown:
        """Every NVLink port that the GPU has; () where it is known to have none."""
        ...

    def nvlink_bytes(self, uuid: str) -> NvlinkBytes | Unknown: ...

    def pcie_bytes(self, uuid: str) -> PcieBytes | Unknown: ...

    def pcie_link(self, uuid: str) -> PcieLink:
        """As it is now: at idle the generation is lower."""
        ...

    def common_ancestor(self, uuid: str, peer_uuid: str) -> str | Unknown:
        """PIX, PXB, PHB, NODE or SYS, as `nvidia-smi topo -m` says it where there is no NVLink."""
        ...

    def fabric_state(self, uuid: str) -> str | Unknown:
        """One of: completed, in progress, not started, not supported."""
        ...

    def mig_enabled(self, uuid: str) -> bool | Unknown: ...

    def ecc_enabled(self, uuid: str) -> bool | Unknown: ...

    def numa_node(self, uuid: str) -> int | Unknown: ...

    def status(self, uuid: str) -> GpuStatus: ...
