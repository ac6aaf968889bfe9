"""Machine files: the shipped ones by name, a user's own by its path, read strictly."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from pytest_gpuxfer.hardware.simulated.errors import SimulationError, unknown_name
from pytest_gpuxfer.hardware.simulated.links import check_wiring
from pytest_gpuxfer.hardware.simulated.machine_file import (
    Between,
    Duration,
    Host,
    MachineFile,
    Rate,
    Size,
    Timing,
)
from pytest_gpuxfer.model import units

_MACHINES: Final = files("pytest_gpuxfer.hardware.simulated.machines")
_SUFFIXES: Final = (".yaml", ".yml")


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            keys = [self.construct_object(key) for key, _ in node.value]
            twice = next(key for key in keys if keys.count(key) > 1)
            line = node.start_mark.line + 1
            raise yaml.YAMLError(f"key {twice!r} stands twice in the mapping of line {line}")
        return mapping


def machine_names() -> tuple[str, ...]:
    """The machines that are shipped."""
    found = (entry.name for entry in _MACHINES.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml")))


def short_name(machine: str) -> str:
    """What a machine is called for short: its name, or its file's without path and suffix."""
    return Path(machine).stem if machine.endswith(_SUFFIXES) else machine


def load_machine(machine: str) -> MachineFile:
    """The machine of that name, or of a file: what ends in .yaml. Raises SimulationError."""
    if machine.endswith(_SUFFIXES):
        try:
            return parse_machine(Path(machine).read_text(encoding="utf-8"), machine)
        except (OSError, UnicodeDecodeError) as error:
            raise SimulationError(f"{machine}: cannot be read: {error}") from None
    if machine not in machine_names():
        raise unknown_name("simulated machine", machine, (*machine_names(), "FILE.yaml"))
    file = f"{machine}.yaml"
    return parse_machine((_MACHINES / file).read_text(encoding="utf-8"), file)


def parse_machine(text: str, file: str) -> MachineFile:
    """The machine that `text` describes. Raises SimulationError naming `file` and the key."""
    try:
        document = yaml.load(text, _Loader)
        machine = msgspec.convert(document, MachineFile, dec_hook=_quantity)
        _check(machine)
    except yaml.YAMLError as error:
        raise SimulationError(f"{file}: {' '.join(str(error).split())}") from None
    except msgspec.ValidationError as error:
        what, _, key = str(error).partition(" - at `$")
        where = f"{key.removeprefix('.').removesuffix('`')}: " if key else ""
        raise SimulationError(f"{file}: {where}{' '.join(what.split())}") from None
    except SimulationError as error:
        raise SimulationError(f"{file}: {error}") from None
    return machine


def _quantity(kind: type[Any], value: Any) -> Any:
    """A quantity with its unit; msgspec adds the key to what is raised here."""
    parse = {Rate: units.parse_rate, Duration: units.parse_duration, Size: units.parse_size}[kind]
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit")
    quantity = parse(value)
    if kind is Rate and quantity <= 0:
        raise ValueError(f"{value!r} is no rate")
    return kind(quantity)


def _check(machine: MachineFile) -> None:
    """What fits no machine. Raises SimulationError with the key."""
    if not machine.gpus:
        raise SimulationError("gpus: there is none")
    addresses = [slot.pci_address for slot in machine.gpus]
    if twice := next((a for a in addresses if addresses.count(a) > 1), None):
        raise SimulationError(f"gpus: two of them are at {twice}")
    if addresses != sorted(addresses):
        raise SimulationError("gpus: they stand in the order of their PCI addresses")
    for key, generation in (
        ("pcie.generation", machine.pcie.generation),
        ("pcie.idle_generation", machine.pcie.idle_generation),
    ):
        if generation not in range(1, 7):
            raise SimulationError(f"{key}: there is no generation {generation}")
    if not 0 < machine.host.far_rate <= 1:
        raise SimulationError("host.far_rate: it is a part, above 0 and at most 1")
    if machine.max_peers < 1:
        raise SimulationError(f"max_peers: {machine.max_peers} is none")
    _check_ways(machine)
    check_wiring(machine)


def _check_ways(machine: MachineFile) -> None:
    """What no way can be. Raises SimulationError with the key."""
    ways: dict[str, Between | Host] = {f"p2p.{name}": way for name, way in machine.p2p.items()}
    ways["host"] = machine.host
    if machine.nvlink is not None:
        ways["nvlink.carries"] = machine.nvlink.carries
    for name, way in ways.items():
        latencies = (way.latency, way.loaded_latency)
        if any(latency is not None and latency <= 0 for latency in latencies):
            raise SimulationError(f"{name}: a latency is above 0")
    for key in ("to_device", "from_device", "kernel_write", "kernel_read"):
        timing: Timing = getattr(machine.host, key)
        if timing.crowded is not None and timing.opposed is None:
            raise SimulationError(f"host.{key}.crowded: it needs opposed")
