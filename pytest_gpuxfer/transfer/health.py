"""What goes wrong on the GPUs of a cell while it is measured: read before, and again after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuxfer.hardware.telemetry import GpuStatus, Telemetry
from pytest_gpuxfer.model.machine import Gpu
from pytest_gpuxfer.model.measurement import Health
from pytest_gpuxfer.model.unknown import Unknown


class HealthWatch:
    """The state of some GPUs, read at its making and again by `health`."""

    def __init__(self, telemetry: Telemetry, gpus: Sequence[Gpu]) -> None:
        self._telemetry = telemetry
        self._before = [(gpu, telemetry.status(gpu.uuid)) for gpu in gpus]

    def health(self) -> Health:
        """What spoils a figure now, what has risen since, and what could not be read."""
        concerns: list[str] = []
        unread: list[str] = []
        risen: list[str] = []
        xids: list[str] = []
        modes: list[str] = []
        for gpu, before in self._before:
            after = self._telemetry.status(gpu.uuid)
            _sort(_conditions(gpu, after), concerns, unread)
            _sort(_rises(gpu, before, after), risen, unread)
            _sort(_new_xids(gpu, before, after), xids, unread)
            if after.confidential is True:
                modes.append(f"confidential computing on {gpu.label}")
        return Health(tuple(concerns), tuple(unread), tuple(risen), tuple(xids), tuple(modes))


_Finding = str | Unknown | None


def _sort(findings: Iterator[tuple[str, _Finding]], seen: list[str], unread: list[str]) -> None:
    for what, finding in findings:
        if isinstance(finding, Unknown):
            unread.append(f"{what}: {finding.reason}")
        elif finding is not None:
            seen.append(finding)


def _conditions(gpu: Gpu, status: GpuStatus) -> Iterator[tuple[str, _Finding]]:
    reasons, others = status.throttle_reasons, status.other_processes
    if not isinstance(reasons, Unknown):
        throttled = f"{gpu.label} throttled: {', '.join(reasons)}" if reasons else None
        yield "", throttled
    else:
        yield f"throttling of {gpu.label}", reasons
    if not isinstance(others, Unknown):
        yield "", f"{gpu.label} is used by {others} other processes" if others else None
    else:
        yield f"other processes on {gpu.label}", others


def _rises(gpu: Gpu, before: GpuStatus, after: GpuStatus) -> Iterator[tuple[str, _Finding]]:
    counts = (
        ("NVLink errors", before.nvlink_errors, after.nvlink_errors),
        ("PCIe replays", before.pcie_replays, after.pcie_replays),
        ("remapped rows", before.remapped_rows, after.remapped_rows),
    )
    for what, was, now in counts:
        name = f"{what} of {gpu.label}"
        if isinstance(was, Unknown) or isinstance(now, Unknown):
            yield name, _unknown(was, now)
        else:
            yield name, f"{name} rose by {now - was}" if now > was else None


def _new_xids(gpu: Gpu, before: GpuStatus, after: GpuStatus) -> Iterator[tuple[str, _Finding]]:
    was, now = before.xids, after.xids
    if isinstance(was, Unknown) or isinstance(now, Unknown):
        yield f"Xid events of {gpu.label}", _unknown(was, now)
        return
    for code in now[len(was) :]:
        yield "", f"Xid {code} on {gpu.label}"


def _unknown(*values: object) -> Unknown:
    return next(value for value in values if isinstance(value, Unknown))
