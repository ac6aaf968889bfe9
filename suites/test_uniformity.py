"""Cells that should be equal, held against each other: one slow pair clears its floor and shows."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.instruments import JudgedCell


@pytest.mark.gpuxfer(
    "uniformity.host_to_device",
    "uniformity.device_to_host",
    "uniformity.peer_copy.write",
    "uniformity.peer_copy.read",
    "uniformity.kernel_copy.sm.write",
    "uniformity.kernel_copy.sm.read",
)
def test_sisters_are_equal(verdict: JudgedCell) -> None:
    """No pair, no GPU and no direction falls behind the others of its class."""
    verdict.require()
