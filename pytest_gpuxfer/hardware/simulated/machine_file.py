"""The machine files: what they may say, and how they are read."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

import msgspec
import yaml

from pytest_gpuxfer.hardware.driver import Feature
from pytest_gpuxfer.hardware.simulated.errors import SimulationError, unknown_name
from pytest_gpuxfer.model import units

_MACHINES: Final = files("pytest_gpuxfer.hardware.simulated.machines")
_RAMP_BYTES: Final = 16 * units.KIB


class Rate(float):
    """Bytes per second, written with its unit."""


class Duration(float):
    """Nanoseconds, written with their unit."""


class Size(int):
    """Bytes, written with their unit."""


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping whose every key is known."""


class Timing(_Strict, frozen=True):
    """How long bytes take: `startup`, then `rate`; `ramp` is what the first 16 KiB cost more.

    `opposed` is the rate while the other direction of the link is busy too.
    """

    rate: Rate
    startup: Duration
    ramp: Duration = Duration(0)
    opposed: Rate | None = None

    def duration_ns(self, size_bytes: int) -> float:
        ramp = self.ramp * min(1.0, size_bytes / _RAMP_BYTES)
        return self.startup + ramp + size_bytes / self.rate * units.NS_PER_S


class GpuKind(_Strict, frozen=True):
    """What all GPUs of the machine have in common."""

    name: str
    memory: Size
    ecc: bool
    fabric: str
    features: frozenset[Feature]


class GpuSlot(_Strict, frozen=True):
    """Where one GPU sits."""

    pci_address: str
    numa_node: int
    pcie_switch: int
    gpu: GpuKind | None = None  # where it is not what the others are


class Nvlink(_Strict, frozen=True):
    """The links of each GPU, all to switches, and what they carry when all are up.

    `latency` is that of one load that waits for the one before, here and below.
    """

    generation: int
    links: int
    per_link: Rate
    atomics: bool
    write: Timing
    read: Timing
    kernel_write: Timing
    kernel_read: Timing
    latency: Duration


class Pcie(_Strict, frozen=True):
    """The PCIe link of each GPU, and what it carries between the GPU and the host.

    Memory is pinned but for `pageable_*`, and on the GPU's own NUMA node: on another one, all rates
    fall to the part `far_rate` of these.
    """

    generation: int
    width: int
    idle_generation: int
    to_device: Timing
    from_device: Timing
    pageable_to_device: Timing
    pageable_from_device: Timing
    kernel_write: Timing
    kernel_read: Timing
    latency: Duration
    far_rate: float


class Local(_Strict, frozen=True):
    """Copies inside a GPU, by its copy engine and by kernels."""

    copy: Timing
    kernel: Timing
    latency: Duration


class Managed(_Strict, frozen=True):
    """How managed memory migrates: by prefetch three ways, or page by page to who touches it."""

    to_device: Timing
    from_device: Timing
    between: Timing
    faults: Timing


class MachineFile(_Strict, frozen=True):
    """One machine; `staged` is a copy without peer access."""

    title: str
    driver_version: str
    cuda: tuple[int, int]
    gpu: GpuKind
    gpus: tuple[GpuSlot, ...]
    max_peers: int
    nvlink: Nvlink
    pcie: Pcie
    staged: Timing
    local: Local
    managed: Managed

    def kind_of(self, gpu: int) -> GpuKind:
        """What the GPU of that number is."""
        return self.gpus[gpu].gpu or self.gpu

    def with_kind(self, gpu: int, kind: GpuKind) -> MachineFile:
        """The same machine with another GPU there."""
        slots = list(self.gpus)
        slots[gpu] = msgspec.structs.replace(slots[gpu], gpu=kind)
        return msgspec.structs.replace(self, gpus=tuple(slots))

    def without(self, gpu: int) -> MachineFile:
        """The same machine with that GPU gone; those behind it move up."""
        return msgspec.structs.replace(self, gpus=self.gpus[:gpu] + self.gpus[gpu + 1 :])


def machine_names() -> tuple[str, ...]:
    """The machines that can be simulated."""
    found = (entry.name for entry in _MACHINES.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml")))


def load_machine(name: str) -> MachineFile:
    """The machine of that name. Raises SimulationError."""
    if name not in machine_names():
        raise unknown_name("simulated machine", name, machine_names())
    file = f"{name}.yaml"
    return parse_machine((_MACHINES / file).read_text(encoding="utf-8"), file)


def parse_machine(text: str, file: str) -> MachineFile:
    """The machine that `text` describes. Raises SimulationError naming `file` and the key."""
    try:
        return msgspec.convert(yaml.safe_load(text), MachineFile, dec_hook=_quantity)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise SimulationError(f"{file}: {' '.join(str(error).split())}") from None


def _quantity(kind: type[Any], value: Any) -> Any:
    """A quantity with its unit; msgspec adds the key to what is raised here."""
    parse = {Rate: units.parse_rate, Duration: units.parse_duration, Size: units.parse_size}[kind]
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit")
    return kind(parse(value))
