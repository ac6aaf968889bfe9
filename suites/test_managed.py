"""Managed memory: pages moved by prefetch, or because a kernel touches them."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.instruments import JudgedCell


@pytest.mark.gpuxfer("managed")
def test_managed(verdict: JudgedCell) -> None:
    """Between the host and each GPU, and from GPU to GPU."""
    verdict.require()
