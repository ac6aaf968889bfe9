"""GPU to GPU by copy engine: each kind of memory, many flows at once, and without peer access."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.instruments import JudgedCell


@pytest.mark.gpuxfer("peer_copy")
def test_peer_copy(verdict: JudgedCell) -> None:
    """cuMemcpyPeerAsync takes the profile's path at the profile's rate."""
    verdict.require()


@pytest.mark.gpuxfer("unified_copy")
def test_unified_copy(verdict: JudgedCell) -> None:
    """So does cuMemcpyAsync on unified addresses, of every memory, alone and in patterns."""
    verdict.require()
