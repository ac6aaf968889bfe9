"""The NUMA nodes of a simulated machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_gpuxfer.hardware.simulated.node import Node
from pytest_gpuxfer.model.unknown import Unknown


class SimulatedPlacement:
    """Implements CpuPlacement over a Node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def nodes(self) -> tuple[int, ...] | Unknown:
        return tuple(sorted({slot.numa_node for slot in self._node.machine.gpus}))

    @contextmanager
    def on(self, node: int) -> Iterator[None]:
        """Raises ValueError for a node that the machine lacks."""
        if node not in {slot.numa_node for slot in self._node.machine.gpus}:
            raise ValueError(f"there is no NUMA node {node}")
        before, self._node.cpu_node = self._node.cpu_node, node
        try:
            yield
        finally:
            self._node.cpu_node = before
