"""Counter readings to amounts: differences, wraps, and when a wrap may have been missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_gpuxfer.audit.traffic import Bytes, GpuTraffic, UncertainBytes
from pytest_gpuxfer.hardware.clock import Clock
from pytest_gpuxfer.hardware.telemetry import GpuIdentity, NvlinkBytes, PcieBytes, Telemetry
from pytest_gpuxfer.model.machine import PCIE_LANE_BYTES_PER_S, PcieLink, pcie_bytes_per_s
from pytest_gpuxfer.model.units import NS_PER_MS, NS_PER_S, format_bytes
from pytest_gpuxfer.model.unknown import Unknown

_WRAP_BYTES: Final = 2**32
_WIDEST: Final = 16


def line_rate_bytes_per_s(link: PcieLink) -> float:
    """The best rate of one direction of a GPU's PCIe link, of which no counter can run ahead.

    What the link does not tell is taken to be the fastest there is: the bound then holds anyway.
    """
    generation, width = link.max_generation, link.max_width
    if isinstance(generation, Unknown) or generation not in PCIE_LANE_BYTES_PER_S:
        generation = max(PCIE_LANE_BYTES_PER_S)
    if isinstance(width, Unknown) or not width:
        width = _WIDEST
    return pcie_bytes_per_s(generation, width)


@dataclass(slots=True)
class _Sum:
    """One counter's sum: what it rose by at least, and what may have wrapped away unseen."""

    least_bytes: int = 0
    unseen_bytes: int = 0

    def add(self, rise: int, most_bytes: float) -> None:
        rise_bytes = rise % _WRAP_BYTES
        self.least_bytes += rise_bytes
        self.unseen_bytes += max(0, int((most_bytes - rise_bytes) // _WRAP_BYTES)) * _WRAP_BYTES


class PcieMeter:
    """Adds up one GPU's wrapping counters, whose rate is bounded by the link's."""

    def __init__(self, line_rate_bytes_per_s: float) -> None:
        self._bytes_per_ns = line_rate_bytes_per_s / NS_PER_S
        self.longest_gap_ns = 0
        self._sent, self._received = _Sum(), _Sum()
        self._last: PcieBytes | None = None
        self._last_asked_ns = 0
        self._never: str | None = None  # why it could not begin
        self._unread: str | None = None  # why the latest reading failed

    @property
    def limit_ns(self) -> int:
        """The shortest time in which a counter can wrap."""
        return int(_WRAP_BYTES / self._bytes_per_ns)

    def add(self, reading: PcieBytes | Unknown, asked_ns: int, answered_ns: int) -> None:
        """A reading, made at some moment between these two."""
        if isinstance(reading, Unknown):
            # One that fails in the middle costs nothing but the gap that it makes.
            self._unread = reading.reason
            if self._last is None:
                self._never = reading.reason
            return
        self._unread = None
        if self._last is not None:
            gap_ns = answered_ns - self._last_asked_ns
            self.longest_gap_ns = max(self.longest_gap_ns, gap_ns)
            most_bytes = gap_ns * self._bytes_per_ns
            self._sent.add(reading.sent_bytes - self._last.sent_bytes, most_bytes)
            self._received.add(reading.received_bytes - self._last.received_bytes, most_bytes)
        self._last, self._last_asked_ns = reading, asked_ns

    def amounts(self) -> tuple[Bytes, Bytes]:
        """Bytes sent and received since the first reading."""
        return self._amount(self._sent), self._amount(self._received)

    def _amount(self, total: _Sum) -> Bytes:
        if reason := self._never or self._unread:
            return UncertainBytes(reason)
        if not total.unseen_bytes:
            return total.least_bytes
        least, most = total.least_bytes, total.least_bytes + total.unseen_bytes
        gap, limit = self.longest_gap_ns / NS_PER_MS, self.limit_ns / NS_PER_MS
        reason = (
            f"sampling gap of {gap:.0f} ms, and the counter may wrap within {limit:.0f} ms:"
            f" between {format_bytes(least)} and {format_bytes(most)}"
        )
        return UncertainBytes(reason, least, most)


def nvlink_amounts(
    first: NvlinkBytes | Unknown, last: NvlinkBytes | Unknown
) -> tuple[Bytes, Bytes]:
    """Bytes sent and received between two readings of the 64-bit counters."""
    for reading in (first, last):
        if isinstance(reading, Unknown):
            return UncertainBytes(reading.reason), UncertainBytes(reading.reason)
    assert isinstance(first, NvlinkBytes)
    assert isinstance(last, NvlinkBytes)
    sent = last.sent_bytes - first.sent_bytes
    received = last.received_bytes - first.received_bytes
    if min(sent, received) < 0:
        reset = UncertainBytes("the NVLink counters fell: someone reset them, or the GPU")
        return reset, reset
    return sent, received


class Recorder:
    """Reads the counters of some GPUs, from its making on."""

    def __init__(self, telemetry: Telemetry, clock: Clock, gpus: Sequence[GpuIdentity]) -> None:
        self._telemetry, self._clock = telemetry, clock
        self.gpus = tuple(gpus)
        self._pcie = {
            gpu: PcieMeter(line_rate_bytes_per_s(telemetry.pcie_link(gpu.uuid))) for gpu in gpus
        }
        self._without_nvlink = {gpu for gpu in gpus if telemetry.nvlinks(gpu.uuid) == ()}
        self._nvlink = {gpu: self._read_nvlink(gpu) for gpu in gpus}
        self.sample()

    def sample(self) -> None:
        """Read the PCIe counters once, before they wrap."""
        for gpu, meter in self._pcie.items():
            asked_ns = self._clock.now_ns()
            meter.add(self._telemetry.pcie_bytes(gpu.uuid), asked_ns, self._clock.now_ns())

    def report(self) -> tuple[GpuTraffic, ...]:
        """What each GPU moved so far."""
        self.sample()
        return tuple(self._traffic(gpu, meter) for gpu, meter in self._pcie.items())

    def _traffic(self, gpu: GpuIdentity, meter: PcieMeter) -> GpuTraffic:
        nvlink = nvlink_amounts(self._nvlink[gpu], self._read_nvlink(gpu))
        return GpuTraffic(
            gpu.uuid, gpu.pci_address, gpu.name, *nvlink, *meter.amounts(),
            meter.longest_gap_ns, meter.limit_ns,
        )  # fmt: skip

    def _read_nvlink(self, gpu: GpuIdentity) -> NvlinkBytes | Unknown:
        reading = self._telemetry.nvlink_bytes(gpu.uuid)
        if isinstance(reading, Unknown) and gpu in self._without_nvlink:
            return NvlinkBytes(0, 0)  # known to have none, so known to move nothing there
        return reading

    def close(self) -> None:
        """Nothing is held."""
