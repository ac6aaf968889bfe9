"""The ways to move bytes, one class each; adding one is adding its class to `ALL`."""

from __future__ import annotations

from typing import Final

from pytest_gpuxfer.transfer.methods.base import Method as Method
from pytest_gpuxfer.transfer.methods.base import Transfer as Transfer
from pytest_gpuxfer.transfer.methods.base import places as places
from pytest_gpuxfer.transfer.methods.device_copy import PeerCopy, UnifiedCopy
from pytest_gpuxfer.transfer.methods.host_link import DeviceToHost, HostToDevice
from pytest_gpuxfer.transfer.methods.host_relay import HostRelay

ALL: Final[tuple[Method, ...]] = (
    HostToDevice(),
    DeviceToHost(),
    HostRelay(),
    PeerCopy(),
    UnifiedCopy(),
)


def named(name: str) -> Method:
    """The method of that name. Raises KeyError."""
    return {method.name: method for method in ALL}[name]
