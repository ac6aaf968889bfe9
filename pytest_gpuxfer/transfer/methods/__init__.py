"""The ways to move bytes, one class each; adding one is adding its class to `ALL`."""

from __future__ import annotations

from typing import Final

from pytest_gpuxfer.model.cell import Cell, Check, Engine, Initiator, Place
from pytest_gpuxfer.model.units import GIB, KIB, MIB
from pytest_gpuxfer.transfer.methods.base import Flow as Flow
from pytest_gpuxfer.transfer.methods.base import Method as Method
from pytest_gpuxfer.transfer.methods.base import Route as Route
from pytest_gpuxfer.transfer.methods.device_copy import (
    KernelCopy16,
    PeerCopy,
    SmallCopyLatency,
    UnifiedCopy,
)
from pytest_gpuxfer.transfer.methods.host_link import DeviceToHost, HostToDevice, ZeroCopy
from pytest_gpuxfer.transfer.methods.host_relay import HostRelay
from pytest_gpuxfer.transfer.methods.ipc import IpcCopy
from pytest_gpuxfer.transfer.methods.local import LoadLatency, LocalCopy
from pytest_gpuxfer.transfer.methods.managed import Managed
from pytest_gpuxfer.transfer.methods.patterns import places, routes

ALL: Final[tuple[Method, ...]] = (
    LocalCopy(),
    HostToDevice(),
    DeviceToHost(),
    ZeroCopy(),
    Managed(),
    HostRelay(),
    PeerCopy(),
    UnifiedCopy(),
    KernelCopy16(),
    IpcCopy(),
    SmallCopyLatency(),
    LoadLatency(),
)

# The same at every place of a class, or something is wrong with one of them.
EQUAL_EVERYWHERE: Final = (
    Check("host_to_device"),
    Check("device_to_host"),
    *(Check("peer_copy", initiator=initiator) for initiator in Initiator),
    *(Check("kernel_copy", Engine.SM, initiator) for initiator in Initiator),
)

# Measured at many sizes too: what `gpuxfer predict` rests on.
SWEPT: Final = (
    Check("peer_copy", initiator=Initiator.WRITE),
    Check("kernel_copy", Engine.SM, Initiator.WRITE),
    Check("host_relay"),
    Check("host_relay", pattern="pipelined"),
    Check("zero_copy", Engine.SM),
    Check("managed"),
)
_SWEPT_SIZES_BYTES: Final = (KIB, 16 * KIB, 256 * KIB, 4 * MIB, 64 * MIB)
_LARGEST_BYTES: Final = GIB


def swept_sizes_bytes(check: Check) -> tuple[int, ...]:
    """The sizes of a sweep beside the usual one: to 1 GiB where no host memory is in the way."""
    largest = (_LARGEST_BYTES,) if named(check.method).direct else ()
    return (*_SWEPT_SIZES_BYTES, *largest)


def named(name: str) -> Method:
    """The method of that name. Raises KeyError."""
    return {method.name: method for method in ALL}[name]


def places_of(check: Check, gpu_count: int) -> tuple[Place, ...]:
    """Where a check is measured on a machine of `gpu_count` GPUs."""
    return places(check, named(check.method).shape(check), gpu_count)


def routes_of(cell: Cell, gpu_count: int) -> tuple[Route, ...]:
    """The flows that run at once in a cell. Raises KeyError where it names no such place."""
    if any(gpu >= gpu_count for gpu in cell.place.gpus):
        raise KeyError(f"{cell.id}: this machine has {gpu_count} GPUs")
    if cell.place.group and cell.place not in (places := places_of(cell.check, gpu_count)):
        where = ", ".join(map(str, places)) or "nowhere"
        raise KeyError(f"{cell.id}: with {gpu_count} GPUs it is measured at {where}")
    return routes(cell.check, named(cell.check.method).shape(cell.check), cell.place, gpu_count)
