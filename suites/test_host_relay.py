"""GPU to GPU by way of the host, on purpose: what peer access must beat, or may lose to."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.instruments import JudgedCell


@pytest.mark.gpuxfer("host_relay")
def test_host_relay(verdict: JudgedCell) -> None:
    """Device to host, then host to device, through host memory of every kind, also in chunks."""
    verdict.require()
