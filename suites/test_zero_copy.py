"""Kernels on mapped host memory, and from GPU to GPU by way of it."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.instruments import JudgedCell


@pytest.mark.gpuxfer("zero_copy")
def test_zero_copy(verdict: JudgedCell) -> None:
    """Coalesced loads and stores over the GPU's link to the host."""
    verdict.require()
