"""The machine itself: its GPUs, their links, and and kernels that reach a peer."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.instruments import JudgedCell


@pytest.mark.gpuxfer("machine.gpus")
def test_every_gpu_is_there(verdict: JudgedCell) -> None:
    """All GPUs that the profile counts are visible, and none has MIG on."""
    verdict.require()


@pytest.mark.gpuxfer("machine.nvlink")
def test_every_nvlink_is_up(verdict: JudgedCell) -> None:
    """Each GPU has its NVLinks up, of the generation and rate declared."""
    verdict.require()


@pytest.mark.gpuxfer("machine.pcie")
def test_pcie_runs_at_full_width_under_load(verdict: JudgedCell) -> None:
    """At idle the generation drops, so it is read while bytes move."""
    verdict.require()


@pytest.mark.gpuxfer("machine.peer_access")
def test_kernels_reach_the_peer(verdict: JudgedCell) -> None:
    """A kernel of each GPU stores to the other's memory, and its owner finds the data."""
    verdict.require()


@pytest.mark.gpuxfer("machine.handshake")
def test_kernels_answer_each_other(verdict: JudgedCell) -> None:
    """Kernels on both GPUs see each other's flags while both run."""
    verdict.require()


@pytest.mark.gpuxfer("machine.atomics")
def test_peer_atomics_add_up(verdict: JudgedCell) -> None:
    """Every atomic addition of one GPU to the other's memory counts."""
    verdict.require()
