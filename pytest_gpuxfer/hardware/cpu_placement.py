"""The real CPU placement: NUMA nodes by sysfs, this thread moved by its affinity."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_gpuxfer.model.unknown import Unknown


class SystemPlacement:
    """The CpuPlacement of this host; what this thread may use now bounds it from then on."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._folder = root / "sys/devices/system/node"
        self._allowed = os.sched_getaffinity(0)

    def nodes(self) -> tuple[int, ...] | Unknown:
        try:
            folders = list(self._folder.iterdir())
        except OSError as error:
            return Unknown(f"{self._folder}: {error.strerror}")
        names = [folder.name.removeprefix("node") for folder in folders]
        numbers = sorted(int(name) for name in names if name.isdecimal())
        return tuple(node for node in numbers if self._cpus(node))

    @contextmanager
    def on(self, node: int) -> Iterator[None]:
        """Raises ValueError for a node without CPUs that this process may use."""
        cpus = self._cpus(node)
        if not cpus:
            raise ValueError(f"no CPU of NUMA node {node} is free to this process")
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cpus)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def _cpus(self, node: int) -> set[int]:
        try:
            text = (self._folder / f"node{node}" / "cpulist").read_text()
        except OSError:  # as they are taken offline, nodes go
            return set()
        return _cpu_list(text) & self._allowed


def _cpu_list(text: str) -> set[int]:
    """The numbers of a list such as 0-3,8,10-11."""
    spans = [span.partition("-") for span in text.strip().split(",") if span]
    return {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}
