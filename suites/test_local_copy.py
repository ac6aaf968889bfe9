"""Within each GPU."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.instruments import JudgedCell


@pytest.mark.gpuxfer("local_copy")
def test_local_copy(verdict: JudgedCell) -> None:
    """A copy engine from one part of a GPU's memory to another."""
    verdict.require()
