"""docs/simulator.md is true: every fault, machine and key of a machine file is in it."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

import msgspec
import pytest

from pytest_gpuxfer.hardware.driver import Feature
from pytest_gpuxfer.hardware.simulated import (
    FaultKind,
    SimulationError,
    fault_kinds,
    machine_names,
    open_machine,
)
from pytest_gpuxfer.hardware.simulated.machine_file import Ancestor, Hidden, HostLink, MachineFile

TEXT = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text(encoding="utf-8")
MACHINES = Path(__file__).parents[2] / "pytest_gpuxfer" / "hardware" / "simulated" / "machines"


def keys_of(kind: object, seen: set[object]) -> set[str]:
    """Every key that a machine file may have."""
    keys: set[str] = set()
    for part in (kind, *getattr(kind, "__args__", ())):
        if part in seen or not (isinstance(part, type) and issubclass(part, msgspec.Struct)):
            continue
        seen.add(part)
        for field in msgspec.structs.fields(part):
            keys |= {field.name, *keys_of(field.type, seen)}
    for part in getattr(kind, "__args__", ()):
        keys |= keys_of(part, seen)
    return keys


KEYS = sorted(keys_of(MachineFile, set()))


def test_the_keys_are_found() -> None:
    assert {"title", "carries", "opposed", "host_bridge", "far_rate"} <= set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_explained(key: str) -> None:
    assert f"`{key}`" in TEXT


@pytest.mark.parametrize("word", [*Hidden, *HostLink, *Ancestor, *Feature])
def test_a_word_that_a_key_takes_is_named(word: Enum) -> None:
    assert f"`{word.value}`" in TEXT


@pytest.mark.parametrize("name", machine_names())
def test_a_machine_is_listed_with_what_it_is(name: str) -> None:
    assert f"| `{name}` |" in TEXT


@pytest.mark.parametrize("kind", fault_kinds(), ids=[kind.name for kind in fault_kinds()])
def test_a_fault_is_told_with_its_meaning_and_forms(kind: FaultKind) -> None:
    (line,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{kind.name}` |")]
    assert kind.meaning in line
    assert all(f"`{form}`" in line for form in kind.forms)


def test_no_fault_is_listed_that_does_not_exist() -> None:
    table = TEXT.split("| fault |")[1].split("\n\n")[0]
    listed = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert listed == [kind.name for kind in fault_kinds()]


# Each message of the page, and the slip in a shipped file that brings it about.
SLIPS = {
    "our-machine.yaml: nvlink.per_link: 25 has no unit": (
        "dgx-a100.yaml", "per_link: 25 GB/s", "per_link: 25",
    ),
    "our-machine.yaml: nvlink.pairs: gpu0 has no link left for gpu0-gpu3": (
        "dgx1-v100.yaml", "gpu0-gpu2: 1", "gpu0-gpu2: 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", SLIPS)
def test_a_message_of_the_page_is_the_one_that_is_told(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert message in TEXT
    file, good, bad = SLIPS[message]
    monkeypatch.chdir(tmp_path)
    text = (MACHINES / file).read_text(encoding="utf-8")
    assert text.count(good) == 1
    Path("our-machine.yaml").write_text(text.replace(good, bad))
    with pytest.raises(SimulationError) as caught:
        open_machine("our-machine.yaml", ())
    assert str(caught.value) == message


def test_a_file_of_ones_own_is_a_machine_by_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text((MACHINES / "h100-nvl.yaml").read_text(encoding="utf-8"))
    hardware = open_machine(str(path), ("link-down",))
    assert (hardware.host.hostname, hardware.simulated) == ("ours", str(path))
    assert hardware.faults == ("link-down:gpu1/link7",)


@pytest.mark.parametrize(
    ("file", "good", "bad", "words"),
    [
        ("dgx-a100.yaml", "max_peers: 8", "max_peers: 8\nmax_peers: 9", "'max_peers' stands twice"),
        ("dgx-a100.yaml", "0000:0f:00.0", "0000:07:00.0", "gpus: two of them are at 0000:07:00.0"),
        ("dgx-a100.yaml", "0000:07:00.0", "0000:ff:00.0", "in the order of their PCI addresses"),
        ("dgx-a100.yaml", "generation: 4", "generation: 9", "pcie.generation: there is no"),
        ("dgx-a100.yaml", "far_rate: 0.85", "far_rate: 2", "host.far_rate: it is a part"),
        ("h100-nvl.yaml", "gpu0-gpu1: 12", "gpu1-gpu0: 12", "nvlink.pairs: 'gpu1-gpu0' names no"),
        ("h100-nvl.yaml", "gpu0-gpu1: 12", "gpu0-gpu7: 12", "nvlink.pairs: 'gpu0-gpu7' names no"),
        ("h100-nvl.yaml", "gpu0-gpu1: 12", "bridge: 12", "nvlink.pairs: 'bridge' is no gpuA-gpuB"),
        ("h100-nvl.yaml", "gpu0-gpu1: 12", "gpu0-gpu1: 0", "nvlink.pairs: no two GPUs are linked"),
        ("h100-nvl.yaml", "16, 17]", "16, 18]", "nvlink.unused: there is no link 18"),
        ("vm-h100-phb.yaml", "[pcie link,", "[pcie lnk,", "hidden[0]: Invalid enum value"),
    ],
)
def test_what_no_machine_has_is_told_with_its_key(
    file: str, good: str, bad: str, words: str, tmp_path: Path
) -> None:
    text = (MACHINES / file).read_text(encoding="utf-8")
    assert text.count(good) == 1
    path = tmp_path / "bad.yaml"
    path.write_text(text.replace(good, bad))
    with pytest.raises(SimulationError) as caught:
        open_machine(str(path), ())
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert words in message


def test_a_file_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match=r"cannot be read: .*No such file"):
        open_machine(str(tmp_path / "none.yaml"), ())
