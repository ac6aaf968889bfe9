"""NVML as a simulated machine answers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pytest_gpuxfer.hardware.simulated.defects import Counters
from pytest_gpuxfer.hardware.simulated.machine_file import Hidden, Nvlink
from pytest_gpuxfer.hardware.simulated.node import Node
from pytest_gpuxfer.hardware.telemetry import GpuIdentity, GpuStatus, NvlinkBytes, PcieBytes
from pytest_gpuxfer.model.machine import NvlinkPort, PcieLink
from pytest_gpuxfer.model.units import KIB
from pytest_gpuxfer.model.unknown import Unknown

_CALL_NS: Final = 50_000.0
_TRICKLE_BYTES_PER_NS: Final = 1e-3  # over PCIe, while nothing is copied
_OTHERS_BYTES_PER_NS: Final = 20.0  # over NVLink, by another process
_NOT_SUPPORTED: Final = Unknown("NVML: Not Supported")
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
            GpuIdentity(uuid, slot.pci_address, machine.kind_of(ordinal).name)
            for ordinal, (uuid, slot) in enumerate(zip(self._node.uuids, machine.gpus, strict=True))
        ]

    def nvlinks(self, uuid: str) -> tuple[NvlinkPort, ...] | Unknown:
        gpu, nvlink = self._look(uuid), self._node.machine.nvlink
        if Hidden.NVLINKS in self._node.machine.hidden:
            return _NOT_SUPPORTED
        if nvlink is None:
            return ()
        return tuple(self._port(nvlink, gpu, link) for link in range(nvlink.links))

    def nvlink_bytes(self, uuid: str) -> NvlinkBytes | Unknown:
        gpu = self._look(uuid)
        defects = self._node.defects.counters.get(gpu, ())
        hidden = Hidden.NVLINK_BYTES in self._node.machine.hidden
        if hidden or Counters.MISSING in defects or self._node.machine.nvlink is None:
            return _NOT_SUPPORTED
        others = self._node.clock.time_ns * _OTHERS_BYTES_PER_NS if Counters.MOVED in defects else 0
        # The hardware counts in KiB.
        sent, received = (
            int(self._node.lane_bytes[f"nvlink {way}", gpu] + others) for way in _WAYS
        )
        return NvlinkBytes(sent // KIB * KIB, received // KIB * KIB)

    def pcie_bytes(self, uuid: str) -> PcieBytes | Unknown:
        gpu = self._look(uuid)
        if Hidden.PCIE_BYTES in self._node.machine.hidden:
            return _NOT_SUPPORTED
        trickle = self._node.clock.time_ns * _TRICKLE_BYTES_PER_NS
        sent, received = (
            int(self._node.lane_bytes[f"pcie {way}", gpu] + trickle) % 2**32 for way in _WAYS
        )
        return PcieBytes(sent, received)

    def pcie_link(self, uuid: str) -> PcieLink:
        gpu = self._look(uuid)
        if Hidden.PCIE_LINK in self._node.machine.hidden:
            return PcieLink(_NOT_SUPPORTED, _NOT_SUPPORTED, _NOT_SUPPORTED, _NOT_SUPPORTED)
        return self._node.wiring.pcie_link(gpu, awake=self._node.timeline.awake(gpu))

    def common_ancestor(self, uuid: str, peer_uuid: str) -> str | Unknown:
        gpu, peer = self._look(uuid), self._look(peer_uuid)
        if Hidden.COMMON_ANCESTOR in self._node.machine.hidden:
            return _NOT_SUPPORTED
        return str(self._node.machine.ancestor(gpu, peer))

    def fabric_state(self, uuid: str) -> str | Unknown:
        gpu = self._look(uuid)
        return self._node.defects.fabric.get(gpu, self._node.machine.kind_of(gpu).fabric)

    def mig_enabled(self, uuid: str) -> bool | Unknown:
        return self._look(uuid) in self._node.defects.mig

    def ecc_enabled(self, uuid: str) -> bool | Unknown:
        return self._node.machine.kind_of(self._look(uuid)).ecc

    def numa_node(self, uuid: str) -> int | Unknown:
        gpu = self._look(uuid)
        if Hidden.NUMA_NODE in self._node.machine.hidden:
            return _NOT_SUPPORTED
        return self._node.machine.gpus[gpu].numa_node

    def status(self, uuid: str) -> GpuStatus:
        gpu, node, defects = self._look(uuid), self._node, self._node.defects
        linked = node.machine.nvlink is not None
        errors = node.nvlink_errors[gpu] + node.wiring.links.flaps(gpu)
        return GpuStatus(
            throttle_reasons=("hardware thermal slowdown",) if gpu in defects.throttled else (),
            other_processes=int(gpu in defects.busy),
            nvlink_errors=errors if linked else _NOT_SUPPORTED,
            pcie_replays=node.pcie_replays[gpu],
            xids=tuple(node.xids[gpu]),
            remapped_rows=0 if node.machine.kind_of(gpu).ecc else _NOT_SUPPORTED,
            confidential=defects.confidential,
        )

    def _look(self, uuid: str) -> int:
        """The GPU of that UUID; looking takes its time."""
        self._node.spend(_CALL_NS)
        return self._node.uuids.index(uuid)

    def _port(self, nvlink: Nvlink, gpu: int, link: int) -> NvlinkPort:
        part, end = (
            self._node.wiring.links.part((gpu, link)),
            self._node.wiring.links.end((gpu, link)),
        )
        if end is None or not part:
            down = Unknown("the link is down")
            return NvlinkPort(link, False, down, down, down)
        if end.peer == "switch":
            remote: str = end.peer
        else:
            remote = self._node.machine.gpus[end.peer[0]].pci_address
        return NvlinkPort(link, True, nvlink.per_link * part, nvlink.generation, remote)
