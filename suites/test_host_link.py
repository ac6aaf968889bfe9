"""Host memory of every kind to each GPU and back."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.instruments import JudgedCell


@pytest.mark.gpuxfer("host_to_device", "device_to_host")
def test_host_link(verdict: JudgedCell) -> None:
    """Each direction of the link, alone, with the other, and of all GPUs at once."""
    verdict.require()
