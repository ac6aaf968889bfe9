"""GPU to GPU, pushed and pulled, with peer access and, as the control, without."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.instruments import JudgedCell


@pytest.mark.gpuxfer("peer_copy")
def test_peer_copy(verdict: JudgedCell) -> None:
    """cuMemcpyPeerAsync takes the profile's path at the profile's rate."""
    verdict.require()


@pytest.mark.gpuxfer("unified_copy")
def test_unified_copy(verdict: JudgedCell) -> None:
    """So does cuMemcpyAsync on unified addresses, which names no GPU."""
    verdict.require()
