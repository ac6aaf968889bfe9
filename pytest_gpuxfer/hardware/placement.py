"""Where this thread runs: host memory is allocated near the CPU that asks for it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from pytest_gpuxfer.model.unknown import Unknown


class CpuPlacement(Protocol):
    """The NUMA nodes with CPUs, and running on one of them for a while."""

    def nodes(self) -> tuple[int, ...] | Unknown:
        """The nodes whose CPUs this process may use."""
        ...

    def on(self, node: int) -> AbstractContextManager[None]:
        """Run this thread on that node's CPUs; its affinity is put back, whatever happens."""
        ...
