"""Into another process's memory, as inference servers and collectives do it."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.instruments import JudgedCell


@pytest.mark.gpuxfer("ipc_copy")
def test_ipc_copy(verdict: JudgedCell) -> None:
    """By IPC handle and by file descriptor, also where a process sees its own GPU alone."""
    verdict.require()
