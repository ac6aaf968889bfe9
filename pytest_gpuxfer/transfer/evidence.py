"""Calls the witnesses of a path: link counters before and after, peer access, the enqueue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pytest_gpuxfer.hardware.telemetry import NvlinkBytes, Telemetry
from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import (
    Access,
    AccessDirection,
    LinkTraffic,
    PathKind,
    Signal,
    SignalName,
)
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.transfer.methods.base import Flow
from pytest_gpuxfer.transfer.sampling import Probe

# On H200 the counters rose by 0.99999 of the bytes copied, and by nothing when copies were staged;
# between these bounds lies nothing that a path alone explains.
_ALL: Final = (0.98, 1.02)
_NOTHING: Final = 0.02

_ANY: Final = tuple(PathKind)
_OFF_NVLINK: Final = (PathKind.PCIE_P2P, PathKind.STAGED)


class Counters:
    """The NVLink byte counters of some GPUs, read at its making and again by `traffic`."""

    def __init__(self, telemetry: Telemetry, machine: Machine, gpus: Sequence[int]) -> None:
        self._telemetry = telemetry
        self._uuids = {gpu: machine.gpus[gpu].uuid for gpu in gpus}
        found = [machine.gpus[gpu] for gpu in gpus]
        self._without_nvlink = [gpu.label for gpu in found if gpu.nvlinks == ()]
        self._before = self._read()

    def _read(self) -> dict[int, NvlinkBytes | Unknown]:
        return {gpu: self._telemetry.nvlink_bytes(uuid) for gpu, uuid in self._uuids.items()}

    def traffic(self) -> tuple[LinkTraffic, ...]:
        """How far they have risen since."""
        after = self._read()
        return tuple(_risen(gpu, self._before[gpu], after[gpu]) for gpu in self._uuids)

    def signal(self, flows: Sequence[Flow], moved_bytes: int) -> Signal:
        """What they tell of `moved_bytes` by each flow; GPUs without NVLink tell as much."""
        if self._without_nvlink:
            words = f"no NVLink on {', '.join(self._without_nvlink)}"
            return Signal(SignalName.COUNTERS, _OFF_NVLINK, words)
        return counters_signal(self.traffic(), flows, moved_bytes)


def _risen(gpu: int, before: NvlinkBytes | Unknown, after: NvlinkBytes | Unknown) -> LinkTraffic:
    if isinstance(before, Unknown):
        return LinkTraffic(gpu, before, before)
    if isinstance(after, Unknown):
        return LinkTraffic(gpu, after, after)
    sent = after.sent_bytes - before.sent_bytes
    received = after.received_bytes - before.received_bytes
    if sent < 0 or received < 0:
        reset = Unknown("the counters went back: the driver was reset meanwhile")
        return LinkTraffic(gpu, reset, reset)
    return LinkTraffic(gpu, sent, received)


def counters_signal(
    traffic: Sequence[LinkTraffic], flows: Sequence[Flow], moved_bytes: int
) -> Signal:
    """What each GPU's sent and received bytes tell of `moved_bytes` by each flow."""
    unread = [t for t in traffic if isinstance(t.sent_bytes, Unknown)]
    unread += [t for t in traffic if isinstance(t.received_bytes, Unknown)]
    if unread:
        why = unread[0].sent_bytes
        assert isinstance(why, Unknown)
        return Signal(SignalName.COUNTERS, why, str(why))
    parts: list[float] = []
    seen: list[str] = []
    for (gpu, direction), expected in _expected_bytes(flows, moved_bytes).items():
        (of_gpu,) = (found for found in traffic if found.gpu == gpu)
        risen = of_gpu.sent_bytes if direction == "out of" else of_gpu.received_bytes
        assert not isinstance(risen, Unknown)
        parts.append(risen / expected)
        seen.append(
            f"{units.format_bytes(risen)} of {units.format_bytes(expected)} {direction} gpu{gpu}"
        )
    words = f"NVLink carried {_some(seen)}"
    if all(_ALL[0] <= part <= _ALL[1] for part in parts):
        return Signal(SignalName.COUNTERS, (PathKind.NVLINK,), words)
    if all(part <= _NOTHING for part in parts):
        return Signal(SignalName.COUNTERS, _OFF_NVLINK, words)
    if any(part > _ALL[1] for part in parts):
        why = Unknown(f"others moved bytes over these links: {words}")
    else:
        why = Unknown(f"only a part crossed NVLink: {words}")
    return Signal(SignalName.COUNTERS, why, words)


def _expected_bytes(flows: Sequence[Flow], moved_bytes: int) -> dict[tuple[int, str], int]:
    expected: dict[tuple[int, str], int] = {}
    for flow in flows:
        forth = ((flow.route.source, "out of"), (flow.route.destination, "into"))
        back = ((flow.route.destination, "out of"), (flow.route.source, "into"))
        for gpu, direction in (*forth, *back) if flow.both_ways else forth:
            assert gpu is not None
            share = moved_bytes // 2 if flow.both_ways else moved_bytes
            expected[gpu, direction] = expected.get((gpu, direction), 0) + share
    return expected


def _some(seen: Sequence[str]) -> str:
    """All of a few; of many the first, with how many more."""
    shown = seen if len(seen) <= 4 else (*seen[:4], f"and {len(seen) - 4} more")
    return ", ".join(shown)


def access_signal(access: Sequence[AccessDirection]) -> Signal:
    """Without peer access in either direction the driver has no way but to stage."""
    words = "peer access: " + "; ".join(map(str, access))
    if access and not any(side.answer.on for side in access):
        return Signal(SignalName.ACCESS, (PathKind.STAGED,), words)
    if any(side.answer is Access.ALREADY_ENABLED for side in access):
        words += " (not by us)"
    return Signal(SignalName.ACCESS, _ANY, words)


def enqueue_signal(probe: Probe) -> Signal:
    """What the driver stages it enqueues in pieces; what GPUs move by themselves, at once."""
    words = (
        f"enqueuing {units.format_size(probe.moved_bytes)} took"
        f" {units.format_duration(probe.enqueue_ns)}, a short copy"
        f" {units.format_duration(probe.short_enqueue_ns)}"
    )
    return Signal(SignalName.ENQUEUE, (PathKind.STAGED,) if probe.in_pieces else _ANY, words)
