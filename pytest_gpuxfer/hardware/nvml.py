"""The real NVML: the only import of pynvml (the project nvidia-ml-py).

Its constants are not used where a wrong one would mislead: field ids and codes are our own, from
nvml.h.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from struct import Struct, unpack_from
from typing import Any, Final

from pytest_gpuxfer.hardware.nvml_xids import XidListener
from pytest_gpuxfer.hardware.telemetry import (
    GpuIdentity,
    GpuStatus,
    NvlinkBytes,
    PcieBytes,
    Telemetry,
)
from pytest_gpuxfer.model.machine import NvlinkPort, PcieLink
from pytest_gpuxfer.model.units import KIB
from pytest_gpuxfer.model.unknown import Unknown


class Field(IntEnum):
    """NVML_FI_DEV_*: what nvmlDeviceGetFieldValues is asked for."""

    NVLINK_CRC_FLIT_ERRORS = 38
    NVLINK_REPLAY_ERRORS = 52
    NVLINK_RECOVERY_ERRORS = 59
    NVLINK_SPEED_MBPS_COMMON = 90
    NVLINK_LINK_COUNT = 91
    PCIE_REPLAYS = 94
    NVLINK_THROUGHPUT_DATA_TX = 138  # KiB
    NVLINK_THROUGHPUT_DATA_RX = 139
    NVLINK_DL_REPLAY_ERRORS = 161  # Hopper
    NVLINK_DL_RECOVERY_ERRORS = 162
    NVLINK_DL_CRC_ERRORS = 163
    NVLINK_GET_SPEED = 164  # MB/s
    NVLINK_GET_STATE = 165
    PCIE_COUNT_TX_BYTES = 197  # 32 bit
    PCIE_COUNT_RX_BYTES = 198
    NVLINK_COUNT_XMIT_BYTES = 202  # Blackwell
    NVLINK_COUNT_RCV_BYTES = 204
    NVLINK_MALFORMED_PACKETS = 206  # Blackwell, up to the recovery events
    NVLINK_BUFFER_OVERRUNS = 207
    NVLINK_RCV_ERRORS = 208
    NVLINK_RCV_REMOTE_ERRORS = 209
    NVLINK_RCV_GENERAL_ERRORS = 210
    NVLINK_LOCAL_INTEGRITY_ERRORS = 211
    NVLINK_LINK_RECOVERIES = 215


_ALL_LINKS: Final = 0xFFFFFFFF
_FIELD_VALUE: Final = Struct("@IIqqII8s")  # nvmlFieldValue_t: type, return and value come last
_VALUE_FORMATS: Final = "dILQqiH"  # of the value, by its type
_NOT_SUPPORTED_CODE: Final = 3
_NOT_SUPPORTED: Final = Unknown("NVML: Not Supported")
_LINK_DOWN: Final = Unknown("the link is down")
_BYTE_COUNTERS: Final = (
    (Field.NVLINK_THROUGHPUT_DATA_TX, Field.NVLINK_THROUGHPUT_DATA_RX, KIB),
    (Field.NVLINK_COUNT_XMIT_BYTES, Field.NVLINK_COUNT_RCV_BYTES, 1),
)
# Each family of GPUs counts its errors elsewhere; the others' fields are not supported there.
_ERROR_COUNTERS: Final = (
    (Field.NVLINK_DL_REPLAY_ERRORS, Field.NVLINK_DL_RECOVERY_ERRORS, Field.NVLINK_DL_CRC_ERRORS),
    (
        Field.NVLINK_MALFORMED_PACKETS, Field.NVLINK_BUFFER_OVERRUNS, Field.NVLINK_RCV_ERRORS,
        Field.NVLINK_RCV_REMOTE_ERRORS, Field.NVLINK_RCV_GENERAL_ERRORS,
        Field.NVLINK_LOCAL_INTEGRITY_ERRORS, Field.NVLINK_LINK_RECOVERIES,
    ),
    (Field.NVLINK_CRC_FLIT_ERRORS, Field.NVLINK_REPLAY_ERRORS, Field.NVLINK_RECOVERY_ERRORS),
)  # fmt: skip
# NVML_NVLINK_VERSION_*: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0.
_NVLINK_GENERATIONS: Final[Mapping[int, int]] = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5}
_REMOTE_SWITCH: Final = 2
_ANCESTORS: Final[Mapping[int, str]] = {
    0: "PIX",  # two GPUs of one board
    10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS",
}  # fmt: skip
_FABRIC_STATES: Final = ("not supported", "not started", "in progress", "completed")
_SPOILERS: Final[Mapping[int, str]] = {  # nvmlClocksEventReason*
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake slowdown",
}
_MEMORY_NODE_SCOPE: Final = 0
_MASK_BITS: Final = 64


def open_telemetry() -> Telemetry:
    """NVML, started; where it cannot be, a Telemetry that says of everything why not."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return SilentTelemetry(Unknown("nvidia-ml-py is not installed: pip install nvidia-ml-py"))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return SilentTelemetry(Unknown(f"NVML does not start: {error}"))
    return NvmlTelemetry(pynvml)


class NvmlTelemetry:
    """The Telemetry over the module pynvml, given as `nvml`."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._xids = XidListener(nvml)

    # -- asking ----------------------------------------------------------------------------------

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What NVML answers, or the Unknown that its error is."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            return self._reason(error.value)

    def _reason(self, code: int) -> Unknown:
        if code == _NOT_SUPPORTED_CODE:
            return _NOT_SUPPORTED
        return Unknown(f"NVML: {self._nvml.NVMLError(code)}")

    def _ask_gpu(self, uuid: str, function: Callable[..., Any], *arguments: Any) -> Any:
        handle = self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
        return handle if isinstance(handle, Unknown) else self._ask(function, handle, *arguments)

    def _fields(self, uuid: str, field: Field, scopes: Iterable[int] = (0,)) -> list[Any] | Unknown:
        """One value a scope; NVML answers the call as a whole and each field by itself.

        They are taken from the bytes: pynvml's attributes take twice as long.
        """
        wanted = [(int(field), scope) for scope in scopes]
        values = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetFieldValues, wanted)
        if isinstance(values, Unknown):
            return values
        return [
            unpack_from(_VALUE_FORMATS[kind], value)[0] if code == 0 else self._reason(code)
            for *_, kind, code, value in _FIELD_VALUE.iter_unpack(bytes(values))
        ]

    def _field(self, uuid: str, field: Field, scope: int = 0) -> Any:
        values = self._fields(uuid, field, (scope,))
        return values if isinstance(values, Unknown) else values[0]

    # -- who is there ----------------------------------------------------------------------------

    def driver_version(self) -> str | Unknown:
        version: str | Unknown = self._ask(self._nvml.nvmlSystemGetDriverVersion)
        return version

    def gpus(self) -> Sequence[GpuIdentity] | Unknown:
        count = self._ask(self._nvml.nvmlDeviceGetCount)
        if isinstance(count, Unknown):
            return count
        # A GPU that fell off the bus answers nothing; the others are still to be found.
        listed = [self._ask(self._identify, index) for index in range(count)]
        return [found for found in listed if isinstance(found, GpuIdentity)]

    def _identify(self, index: int) -> GpuIdentity:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return GpuIdentity(
            uuid=self._nvml.nvmlDeviceGetUUID(handle),
            pci_address=_pci_address(self._nvml.nvmlDeviceGetPciInfo(handle)),
            name=self._nvml.nvmlDeviceGetName(handle),
        )

    # -- NVLink ----------------------------------------------------------------------------------

    def nvlinks(self, uuid: str) -> tuple[NvlinkPort, ...] | Unknown:
        count = self._field(uuid, Field.NVLINK_LINK_COUNT)
        if count == _NOT_SUPPORTED:
            state = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetNvLinkState, 0)
            return () if state == _NOT_SUPPORTED else _NOT_SUPPORTED
        if isinstance(count, Unknown):
            return count
        return tuple(self._port(uuid, link) for link in range(count))

    def _port(self, uuid: str, link: int) -> NvlinkPort:
        state = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetNvLinkState, link)
        if isinstance(state, Unknown):
            state = self._field(uuid, Field.NVLINK_GET_STATE, link)
        if isinstance(state, Unknown):
            return NvlinkPort(link, state)
        if not state:
            return NvlinkPort(link, False, _LINK_DOWN, _LINK_DOWN, _LINK_DOWN)
        version = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetNvLinkVersion, link)
        if not isinstance(version, Unknown):
            unheard = Unknown(f"NVLink version code {version} is not known")
            version = _NVLINK_GENERATIONS.get(version, unheard)
        return NvlinkPort(link, True, self._rate(uuid, link), version, self._remote(uuid, link))

    def _rate(self, uuid: str, link: int) -> float | Unknown:
        speed = self._field(uuid, Field.NVLINK_GET_SPEED, link)
        if isinstance(speed, Unknown):
            speed = self._field(uuid, Field.NVLINK_SPEED_MBPS_COMMON)
        return speed if isinstance(speed, Unknown) else speed * 1e6

    def _remote(self, uuid: str, link: int) -> str | Unknown:
        kind = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetNvLinkRemoteDeviceType, link)
        if kind == _REMOTE_SWITCH:
            return "switch"
        info = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetNvLinkRemotePciInfo, link)
        return info if isinstance(info, Unknown) else _pci_address(info)

    def nvlink_bytes(self, uuid: str) -> NvlinkBytes | Unknown:
        """By the sum over all links where NVML gives it, else link by link."""
        for sent_field, received_field, unit_bytes in _BYTE_COUNTERS:
            sent = self._sum(uuid, sent_field)
            received = self._sum(uuid, received_field)
            if not isinstance(sent, Unknown) and not isinstance(received, Unknown):
                return NvlinkBytes(sent * unit_bytes, received * unit_bytes)
        return sent if isinstance(sent, Unknown) else Unknown("received bytes not readable")

    def _sum(self, uuid: str, field: Field) -> int | Unknown:
        total: int | Unknown = self._field(uuid, field, _ALL_LINKS)
        if not isinstance(total, Unknown):
            return total
        count = self._field(uuid, Field.NVLINK_LINK_COUNT)
        if isinstance(count, Unknown):
            return count
        values = self._fields(uuid, field, range(count))
        if isinstance(values, Unknown):
            return values
        unread = next((value for value in values if isinstance(value, Unknown)), None)
        return sum(values) if values and unread is None else unread or total

    # -- PCIe and the host -----------------------------------------------------------------------

    def pcie_bytes(self, uuid: str) -> PcieBytes | Unknown:
        sent = self._field(uuid, Field.PCIE_COUNT_TX_BYTES)
        received = self._field(uuid, Field.PCIE_COUNT_RX_BYTES)
        if isinstance(sent, Unknown):
            return sent
        return received if isinstance(received, Unknown) else PcieBytes(sent, received)

    def pcie_link(self, uuid: str) -> PcieLink:
        nvml = self._nvml
        return PcieLink(
            generation=self._ask_gpu(uuid, nvml.nvmlDeviceGetCurrPcieLinkGeneration),
            width=self._ask_gpu(uuid, nvml.nvmlDeviceGetCurrPcieLinkWidth),
            max_generation=self._ask_gpu(uuid, nvml.nvmlDeviceGetMaxPcieLinkGeneration),
            max_width=self._ask_gpu(uuid, nvml.nvmlDeviceGetMaxPcieLinkWidth),
        )

    def common_ancestor(self, uuid: str, peer_uuid: str) -> str | Unknown:
        peer = self._ask(self._nvml.nvmlDeviceGetHandleByUUID, peer_uuid)
        if isinstance(peer, Unknown):
            return peer
        level = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetTopologyCommonAncestor, peer)
        if isinstance(level, Unknown):
            return level
        return _ANCESTORS.get(level, Unknown(f"topology level {level} is not known"))

    def numa_node(self, uuid: str) -> int | Unknown:
        """The host's node nearest to the GPU (nvmlDeviceGetNumaNodeId is of a GPU's own memory)."""
        affinity = self._nvml.nvmlDeviceGetMemoryAffinity
        masks = self._ask_gpu(uuid, affinity, 1, _MEMORY_NODE_SCOPE)
        if isinstance(masks, Unknown):
            return masks
        nodes = [node for node in range(_MASK_BITS) if masks[0] >> node & 1]
        return nodes[0] if len(nodes) == 1 else Unknown(f"NVML names {len(nodes)} nodes as nearest")

    # -- modes and health ------------------------------------------------------------------------

    def fabric_state(self, uuid: str) -> str | Unknown:
        info = self._nvml.c_nvmlGpuFabricInfoV_t()
        answer = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetGpuFabricInfoV, ctypes.byref(info))
        if isinstance(answer, Unknown):
            return answer
        if info.state >= len(_FABRIC_STATES):
            return Unknown(f"fabric state {info.state} is not known")
        state = _FABRIC_STATES[info.state]
        if state == "completed" and info.status != 0:
            return f"completed, but its probe ended with {self._reason(info.status).reason}"
        return state

    def mig_enabled(self, uuid: str) -> bool | Unknown:
        modes = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetMigMode)
        return modes if isinstance(modes, Unknown) else bool(modes[0])

    def ecc_enabled(self, uuid: str) -> bool | Unknown:
        modes = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetEccMode)
        return modes if isinstance(modes, Unknown) else bool(modes[0])

    def status(self, uuid: str) -> GpuStatus:
        return GpuStatus(
            throttle_reasons=self._throttle_reasons(uuid),
            other_processes=self._other_processes(uuid),
            nvlink_errors=self._nvlink_errors(uuid),
            pcie_replays=self._field(uuid, Field.PCIE_REPLAYS),
            xids=self._xids.of(uuid),
            remapped_rows=self._remapped_rows(uuid),
            confidential=self._confidential(),
        )

    def _throttle_reasons(self, uuid: str) -> tuple[str, ...] | Unknown:
        bits = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetCurrentClocksEventReasons)
        if isinstance(bits, Unknown):  # drivers before 535 know the older name alone
            bits = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        if isinstance(bits, Unknown):
            return bits
        return tuple(words for bit, words in _SPOILERS.items() if bits & bit)

    def _other_processes(self, uuid: str) -> int | Unknown:
        processes = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetComputeRunningProcesses_v3)
        if isinstance(processes, Unknown):
            return processes
        pids = {process.pid for process in processes}
        if os.getpid() not in pids:
            # It is asked while we hold a context: NVML counts in another PID namespace, or not.
            return Unknown("NVML does not list this process, so it may not list others")
        return len(pids) - 1

    def _nvlink_errors(self, uuid: str) -> int | Unknown:
        """The sum of what its family counts; a counter that this driver lacks counts for none."""
        why = _NOT_SUPPORTED
        for family in _ERROR_COUNTERS:
            sums = [self._sum(uuid, field) for field in family]
            read = [value for value in sums if not isinstance(value, Unknown)]
            if read:
                return sum(read)
            why = next(value for value in sums if isinstance(value, Unknown))
        return why

    def _remapped_rows(self, uuid: str) -> int | Unknown:
        rows = self._ask_gpu(uuid, self._nvml.nvmlDeviceGetRemappedRows)
        return rows if isinstance(rows, Unknown) else int(rows[0] + rows[1])

    def _confidential(self) -> bool | Unknown:
        state = self._ask(self._nvml.nvmlSystemGetConfComputeState)
        return state if isinstance(state, Unknown) else bool(state.ccFeature)


def _pci_address(info: Any) -> str:
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


class SilentTelemetry:
    """No NVML: every answer is the one reason why."""

    def __init__(self, reason: Unknown) -> None:
        self._reason = reason

    def driver_version(self) -> Unknown:
        return self._reason

    def gpus(self) -> Unknown:
        return self._reason

    def nvlinks(self, uuid: str) -> Unknown:  # noqa: ARG002
        return self._reason

    def nvlink_bytes(self, uuid: str) -> Unknown:  # noqa: ARG002
        return self._reason

    def pcie_bytes(self, uuid: str) -> Unknown:  # noqa: ARG002
        return self._reason

    def fabric_state(self, uuid: str) -> Unknown:  # noqa: ARG002
        return self._reason

    def mig_enabled(self, uuid: str) -> Unknown:  # noqa: ARG002
        return self._reason

    def ecc_enabled(self, uuid: str) -> Unknown:  # noqa: ARG002
        return self._reason

    def numa_node(self, uuid: str) -> Unknown:  # noqa: ARG002
        return self._reason

    def common_ancestor(self, uuid: str, peer_uuid: str) -> Unknown:  # noqa: ARG002
        return self._reason

    def pcie_link(self, uuid: str) -> PcieLink:  # noqa: ARG002
        return PcieLink(self._reason, self._reason, self._reason, self._reason)

    def status(self, uuid: str) -> GpuStatus:  # noqa: ARG002
        why = self._reason
        return GpuStatus(why, why, why, why, why, why, why)
