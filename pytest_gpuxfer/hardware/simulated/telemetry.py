"""NVML as a simulated machine answers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pytest_gpuxfer.hardware.simulated.node import Node
from pytest_gpuxfer.hardware.telemetry import GpuIdentity, GpuStatus, NvlinkBytes, PcieBytes
from pytest_gpuxfer.model.machine import NvlinkPort, PcieLink
from pytest_gpuxfer.model.units import KIB
from pytest_gpuxfer.model.unknown import Unknown

_CALL_NS: Final = 50_000.0
_TRICKLE_BYTES_PER_NS: Final = 1e-3  # over PCIe, while nothing is copied
_WAYS: Final = ("out", "in")


class SimulatedTelemetry:
    """Implements Telemetry over a Node. Raises ValueError for the UUID of no GPU of it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def driver_version(self) -> str | Unknown:
        return self._node.machine.driver_version

    def gpus(self) -> Sequence[GpuIdentity] | Unknown:
        machine = self._node.machine
        return [
            GpuIdentity(uuid, slot.pci_address, machine.gpu.name)
            for uuid, slot in zip(self._node.uuids, machine.gpus, strict=True)
        ]

    def nvlinks(self, uuid: str) -> tuple[NvlinkPort, ...] | Unknown:
        gpu = self._look(uuid)
        return tuple(self._port(gpu, link) for link in range(self._node.machine.nvlink.links))

    def nvlink_bytes(self, uuid: str) -> NvlinkBytes | Unknown:
        gpu = self._look(uuid)
        # The hardware counts in KiB.
        sent, received = (int(self._node.lane_bytes[f"nvlink {way}", gpu]) for way in _WAYS)
        return NvlinkBytes(sent // KIB * KIB, received // KIB * KIB)

    def pcie_bytes(self, uuid: str) -> PcieBytes | Unknown:
        gpu = self._look(uuid)
        trickle = self._node.clock.time_ns * _TRICKLE_BYTES_PER_NS
        sent, received = (
            int(self._node.lane_bytes[f"pcie {way}", gpu] + trickle) % 2**32 for way in _WAYS
        )
        return PcieBytes(sent, received)

    def pcie_link(self, uuid: str) -> PcieLink:
        gpu, pcie = self._look(uuid), self._node.machine.pcie
        awake = self._node.timeline.awake(gpu)
        generation = pcie.generation if awake else pcie.idle_generation
        return PcieLink(generation, pcie.width, pcie.generation, pcie.width)

    def common_ancestor(self, uuid: str, peer_uuid: str) -> str | Unknown:
        slots = self._node.machine.gpus
        slot, peer = slots[self._look(uuid)], slots[self._look(peer_uuid)]
        if slot.pcie_switch == peer.pcie_switch:
            return "PXB"
        return "NODE" if slot.numa_node == peer.numa_node else "SYS"

    def fabric_state(self, uuid: str) -> str | Unknown:
        self._look(uuid)
        return self._node.machine.gpu.fabric

    def mig_enabled(self, uuid: str) -> bool | Unknown:
        self._look(uuid)
        return False

    def ecc_enabled(self, uuid: str) -> bool | Unknown:
        self._look(uuid)
        return self._node.machine.gpu.ecc

    def numa_node(self, uuid: str) -> int | Unknown:
        return self._node.machine.gpus[self._look(uuid)].numa_node

    def status(self, uuid: str) -> GpuStatus:
        self._look(uuid)
        return GpuStatus(throttle_reasons=(), other_processes=0)

    def _look(self, uuid: str) -> int:
        """The GPU of that UUID; looking takes its time."""
        self._node.spend(_CALL_NS)
        return self._node.uuids.index(uuid)

    def _port(self, gpu: int, link: int) -> NvlinkPort:
        if not self._node.wiring.link_is_up(gpu, link):
            down = Unknown("the link is down")
            return NvlinkPort(link, False, down, down, down)
        nvlink = self._node.machine.nvlink
        return NvlinkPort(link, True, float(nvlink.per_link), nvlink.generation, "switch")
