"""GPU to GPU by kernels, as collectives do it: pairs, both ways, and many flows at once."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.instruments import JudgedCell


@pytest.mark.gpuxfer("kernel_copy")
def test_kernel_copy(verdict: JudgedCell) -> None:
    """Loads and stores of 16 bytes take the profile's path at the profile's rate."""
    verdict.require()
