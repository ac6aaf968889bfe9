"""Times instead of rates: small copies, and loads that wait for each other."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.instruments import JudgedCell


@pytest.mark.gpuxfer("small_copy_latency")
def test_small_copy_latency(verdict: JudgedCell) -> None:
    """Copies of 16 bytes, with peer access and, as the control, without."""
    verdict.require()


@pytest.mark.gpuxfer("load_latency")
def test_load_latency(verdict: JudgedCell) -> None:
    """Dependent loads of a peer's memory, and of the host's."""
    verdict.require()
