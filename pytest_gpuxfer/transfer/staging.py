"""How a pair of GPUs copies when the driver stages: what a copy with peer access is held against.

Measured once a pair, with access off for a moment, and only where link counters prove no path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import Check
from pytest_gpuxfer.model.measurement import PathKind, Signal, SignalName
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import Flow, Route
from pytest_gpuxfer.transfer.methods.device_copy import UnifiedCopy
from pytest_gpuxfer.transfer.peer_access import PeerAccess
from pytest_gpuxfer.transfer.sampling import Sampler

_SMALL_BYTES: Final = 16
_LARGE_BYTES: Final = 64 * MIB
_SMALL_COPIES: Final = 32
_TIMES: Final = 3
# H200 takes 2.2 us for a small copy with access and 14 to 15 us staged; between these parts of the
# staged time a copy is neither.
_DIRECT: Final = 0.5
_STAGED: Final = 0.75
_DIRECT_PATHS: Final = (PathKind.NVLINK, PathKind.PCIE_P2P)
_ANY: Final = tuple(PathKind)


@dataclass(frozen=True, slots=True)
class _Pace:
    small_ns: float  # of one small copy among many
    rate_bytes_per_s: float


class Staging:
    """Times pairs with access on and off, and says what that tells of the path."""

    def __init__(self, arena: Arena, access: PeerAccess) -> None:
        self._arena = arena
        self._access = access
        self._staged: dict[tuple[int, int], _Pace | Unknown] = {}

    def signals(self, pairs: Sequence[tuple[int, int]], rate_bytes_per_s: float) -> list[Signal]:
        """What the latency and rate of pairs with access on tell, against both with it off.

        Of several pairs that copied at once the witness is the one that says most against a direct
        path. Access is on before and after. Raises HangError, DriverError.
        """
        told = [self._pair_signals(*pair, rate_bytes_per_s) for pair in pairs]
        return list(max(told, key=lambda signals: _doubt(signals[0]), default=()))

    def _pair_signals(
        self, source: int, destination: int, rate_bytes_per_s: float
    ) -> tuple[Signal, Signal]:
        staged = self._pace_without(source, destination)
        if isinstance(staged, Unknown):
            return (
                Signal(SignalName.LATENCY, staged, staged.reason),
                Signal(SignalName.STAGED_RATE, staged, staged.reason),
            )
        direct_ns = self._small_ns(source, destination)
        return (
            _latency_signal(direct_ns, staged.small_ns),
            _rate_signal(rate_bytes_per_s, staged.rate_bytes_per_s),
        )

    def _pace_without(self, source: int, destination: int) -> _Pace | Unknown:
        pair = (source, destination)
        if pair not in self._staged:
            sides = self._access.disable(source, destination)
            try:
                on = [side for side in sides if side.answer.on]
                self._staged[pair] = (
                    Unknown("others keep peer access on, so staging was not seen")
                    if on
                    else _Pace(self._small_ns(*pair), self._rate(*pair))
                )
            finally:
                self._access.enable(source, destination)
        return self._staged[pair]

    def _small_ns(self, source: int, destination: int) -> float:
        flow = self._flow(source, destination, _SMALL_BYTES)
        sampler = Sampler(self._arena, f"latency/{flow.route}")
        return sampler.time_back_to_back(flow, _SMALL_COPIES, _TIMES) / _SMALL_COPIES

    def _rate(self, source: int, destination: int) -> float:
        flow = self._flow(source, destination, _LARGE_BYTES)
        sampler = Sampler(self._arena, f"staging/{flow.route}")
        return units.rate_of(_LARGE_BYTES, sampler.time_back_to_back(flow, 1, _TIMES))

    def _flow(self, source: int, destination: int, size_bytes: int) -> Flow:
        copy = UnifiedCopy()
        return copy.flow(Check(copy.name), Route(source, destination), self._arena, size_bytes)


def _doubt(latency: Signal) -> int:
    """0: direct; 1: not known; 2: staged."""
    if isinstance(latency.agrees_with, Unknown):
        return 1
    return 2 if PathKind.STAGED in latency.agrees_with else 0


def _latency_signal(with_access_ns: float, staged_ns: float) -> Signal:
    part = with_access_ns / staged_ns
    words = (
        f"a small copy takes {units.format_duration(with_access_ns)}, without access"
        f" {units.format_duration(staged_ns)}"
    )
    if part <= _DIRECT:
        return Signal(SignalName.LATENCY, _DIRECT_PATHS, words)
    if part >= _STAGED:
        return Signal(SignalName.LATENCY, (PathKind.STAGED,), words)
    return Signal(SignalName.LATENCY, Unknown(f"{words}: neither"), words)


def _rate_signal(rate_bytes_per_s: float, staged_bytes_per_s: float) -> Signal:
    """A ratio proves nothing: on some machines staging is the faster way. It is told."""
    words = (
        f"{units.format_rate(rate_bytes_per_s)}, without access"
        f" {units.format_rate(staged_bytes_per_s)}"
    )
    return Signal(SignalName.STAGED_RATE, _ANY, words)
