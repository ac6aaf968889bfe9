"""The state of one simulated machine that its processes and its telemetry share."""

from __future__ import annotations

import random
import uuid
from typing import Final

from pytest_gpuxfer.hardware.simulated.damage import Spoiler
from pytest_gpuxfer.hardware.simulated.defects import Counters, Defects
from pytest_gpuxfer.hardware.simulated.engine import Timeline, VirtualClock
from pytest_gpuxfer.hardware.simulated.machine_file import MachineFile
from pytest_gpuxfer.hardware.simulated.wiring import Route, Wiring
from pytest_gpuxfer.model.units import NS_PER_MS

_NAMESPACE: Final = uuid.UUID("8d6e61a2-7f0e-4b53-9a53-5f3b7a1c9a10")

_NOISE: Final = (1.0, 1.08)
_TRANSFERS_TO_XID: Final = 20
_NOISE_NS: Final = 5 * NS_PER_MS

# What a byte of data adds to a PCIe link's counters on its way, and requests for it the other way,
# as measured on H200.
_PCIE_IN: Final = {"in": 1.078, "out": 0.094}
_PCIE_OUT: Final = {"in": 0.0, "out": 1.094}


class Node:
    """A machine, its clock and what happened on it so far. The same calls give the same figures."""

    def __init__(self, name: str, machine: MachineFile, defects: Defects, seed: int = 0) -> None:
        self.machine, self.defects = machine, defects
        self.clock = VirtualClock()
        self.wiring = Wiring(machine, defects, self.clock)
        self.timeline = Timeline(self.clock)
        self.random = random.Random(f"{name}/{seed}" if seed else name)
        self._noise_seed = f"{name}/{seed} noise"
        self.spoiler = Spoiler(self.random)
        self.uuids = tuple(
            f"GPU-{uuid.uuid5(_NAMESPACE, f'{name}/{slot.pci_address}')}" for slot in machine.gpus
        )
        self.used_bytes = [0] * len(machine.gpus)
        self.cpu_node = machine.gpus[0].numa_node  # where the thread that calls us runs
        # What went wrong since the machine started, by GPU.
        self.nvlink_errors = [self.random.randrange(3) for _ in machine.gpus]
        self.pcie_replays = [self.random.randrange(3) for _ in machine.gpus]
        self.xids: list[list[int]] = [[] for _ in machine.gpus]
        self._transfers = [0] * len(machine.gpus)
        # Counters run since the machine started: only differences mean something.
        self.lane_bytes: dict[tuple[str, int], float] = {
            (f"{link} {way}", gpu): self.random.randrange(2**40)
            for gpu in range(len(machine.gpus))
            for link in ("nvlink", "pcie")
            for way in ("out", "in")
        }

    def spend(self, duration_ns: float) -> None:
        """Let time pass, and everything happen that does so meanwhile."""
        self.clock.sleep_ns(duration_ns)
        self.timeline.settle()

    def duration_ns(self, route: Route, size_bytes: int) -> float:
        """How long this one transfer takes: no two are quite alike."""
        duration_ns = route.duration_ns(size_bytes) * self.random.gauss(1.0, route.spread)
        noisy = self.defects.noisy
        return (
            duration_ns * self._noise()
            if noisy and not noisy.isdisjoint(route.gpus)
            else duration_ns
        )

    def count(self, route: Route, size_bytes: int) -> None:
        """Add a transfer to the counters of the links that it crossed."""
        for kind, gpu, _ in route.lanes:
            if kind.startswith("nvlink"):
                if Counters.STUCK not in self.defects.counters.get(gpu, ()):
                    self.lane_bytes[kind, gpu] += size_bytes
            elif kind.startswith("pcie"):
                for way, part in (_PCIE_IN if kind == "pcie in" else _PCIE_OUT).items():
                    self.lane_bytes[f"pcie {way}", gpu] += part * size_bytes
        if self.defects.erring or self.defects.xids:
            self._go_wrong(route)

    def _go_wrong(self, route: Route) -> None:
        for kind, gpu, _ in route.lanes:
            if gpu in self.defects.erring:
                counts = self.nvlink_errors if kind.startswith("nvlink") else self.pcie_replays
                counts[gpu] += 1
            self._transfers[gpu] += 1
            if self._transfers[gpu] == _TRANSFERS_TO_XID and gpu in self.defects.xids:
                self.xids[gpu].append(self.defects.xids[gpu])

    def _noise(self) -> float:
        """How much longer everything takes for a while; one such while is like no other."""
        while_number = int(self.clock.time_ns // _NOISE_NS)
        return random.Random(f"{self._noise_seed} {while_number}").uniform(*_NOISE)
