"""What a simulated machine shows of itself, its faults, and what a person may write wrong."""

from __future__ import annotations

from importlib.resources import files

import msgspec
import pytest

from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.hardware.driver import Fill
from pytest_gpuxfer.hardware.simulated import (
    FaultKind,
    SimulationError,
    fault_kinds,
    fault_lines,
    machine_names,
    open_machine,
)
from pytest_gpuxfer.hardware.simulated.defects import Defects
from pytest_gpuxfer.hardware.simulated.machine_file import Hidden
from pytest_gpuxfer.hardware.simulated.machine_reader import load_machine, parse_machine
from pytest_gpuxfer.hardware.simulated.node import Node
from pytest_gpuxfer.hardware.simulated.telemetry import SimulatedTelemetry
from pytest_gpuxfer.hardware.telemetry import NvlinkBytes
from pytest_gpuxfer.model.machine import PcieLink
from pytest_gpuxfer.model.measurement import Access
from pytest_gpuxfer.model.pattern import Pattern
from pytest_gpuxfer.model.unknown import Unknown
from tests.unit.simulated_rig import MIB, Rig

SIZE = 64 * MIB
PATTERN = Pattern(99)
A100 = (files("pytest_gpuxfer.hardware.simulated.machines") / "dgx-a100.yaml").read_text("utf-8")


# What it shows


@pytest.mark.parametrize(
    ("name", "gpu", "link_class"),
    [("dgx-a100", "NVIDIA A100-SXM4-80GB", "NV12"), ("hgx-h200", "NVIDIA H200", "NV18")],
)
def test_discovery_finds_the_machine(name: str, gpu: str, link_class: str) -> None:
    machine = discover(open_machine(name, ()))
    assert [found.name for found in machine.gpus] == [gpu] * 8
    assert machine.simulated == name
    assert len({found.uuid for found in machine.gpus}) == 8
    assert {machine.link_class(0, peer) for peer in range(1, 8)} == {link_class}
    assert all(machine.peer_access_offered.values())


def test_the_pci_tree_of_a_dgx_a100() -> None:
    ancestors = discover(open_machine("dgx-a100", ())).ancestors
    assert [ancestors[f"gpu0-gpu{peer}"] for peer in (1, 2, 4)] == ["PXB", "NODE", "SYS"]


@pytest.mark.parametrize(("name", "idle", "loaded"), [("dgx-a100", 1, 4), ("hgx-h200", 5, 5)])
def test_the_pcie_generation_is_full_only_while_something_runs(
    name: str, idle: int, loaded: int
) -> None:
    rig = Rig(name)
    host, memory = rig.host(SIZE), rig.device(0, SIZE)

    def generation(ordinal: int) -> object:
        link: PcieLink = rig.hardware.telemetry.pcie_link(rig.uuid(ordinal))
        assert (link.width, link.max_generation) == (16, loaded)
        return link.generation

    assert generation(0) == idle
    rig.driver.copy(memory, host, rig.stream(0))
    assert (generation(0), generation(1)) == (loaded, idle)
    rig.wait(rig.stream(0))
    assert generation(0) == idle


# Faults


def test_one_link_down_takes_its_share_of_the_rate_and_of_the_class() -> None:
    rig = Rig("dgx-a100", "link-down:gpu3/link7")
    machine = discover(rig.hardware)
    assert [machine.link_class(3, 0), machine.link_class(0, 1)] == ["NV11", "NV12"]
    for peer in (0, 1):
        rig.enable(peer, 3)
    rig.enable(0, 1)
    whole = rig.rate(rig.device(1, SIZE), rig.device(0, SIZE), 0)
    for destination, source in ((3, 0), (0, 3)):
        short = rig.rate(rig.device(destination, SIZE), rig.device(source, SIZE), source)
        assert short / whole == pytest.approx(11 / 12, rel=0.01)


def test_with_all_links_of_a_gpu_down_no_peer_access_is_offered() -> None:
    rig = Rig("dgx-a100", "link-down:gpu3")
    offered = discover(rig.hardware).peer_access_offered
    refused = {pair for pair, answer in offered.items() if not answer}
    assert refused == {pair for pair in offered if "gpu3" in pair}
    assert len(refused) == 14


def test_refused_peer_access_is_unsupported_both_ways_and_nowhere_else() -> None:
    rig = Rig("dgx-a100", "peer-access-refused:gpu2-gpu5")
    for mapper, owner in ((2, 5), (5, 2)):
        assert not rig.driver.can_access_peer(mapper, owner)
        answer = rig.driver.enable_peer_access(rig.context(mapper), rig.context(owner))
        assert answer is Access.UNSUPPORTED
    rig.enable(2, 4)


def test_copies_are_staged_despite_access_that_is_really_on() -> None:
    rig = Rig("dgx-a100", "staged-despite-access:gpu0-gpu1")
    rig.enable(0, 1)
    memories = rig.device(1, SIZE), rig.device(0, SIZE)
    before = rig.hardware.telemetry.nvlink_bytes(rig.uuid(0))
    assert rig.rate(*memories, 0, gated=False) < 21
    assert rig.rate(*memories[::-1], 0, gated=False) < 21
    assert isinstance(before, NvlinkBytes)
    assert rig.hardware.telemetry.nvlink_bytes(rig.uuid(0)) == before


@pytest.mark.parametrize(
    ("fault", "flipped"),
    [("flipped-bit:gpu0-gpu1", {"0 to 1"}), ("flipped-bit:gpu0", {"0 to host", "host to 0"})],
)
def test_flipped_bits_come_where_they_were_asked_for(fault: str, flipped: set[str]) -> None:
    rig = Rig("dgx-a100", fault)
    rig.enable(0, 1)
    memories = {"0": rig.device(0, SIZE), "1": rig.device(1, SIZE), "host": rig.host(SIZE)}
    found = {}
    for way in ("0 to 1", "1 to 0", "0 to host", "host to 0", "1 to host", "host to 1"):
        source, _, destination = way.partition(" to ")
        if source == "host":
            rig.driver.fill_host(memories[source], PATTERN)
        else:
            rig.driver.launch(Fill(memories[source], PATTERN), rig.stream(int(source)))
            rig.wait(rig.stream(int(source)))
        rig.driver.copy(memories[destination], memories[source], rig.stream(0))
        rig.wait(rig.stream(0))
        found[way] = rig.driver.compare(memories[destination], PATTERN)
    assert {way for way, seen in found.items() if seen.wrong_words} == flipped
    for way in flipped:
        assert found[way].wrong_words == 1
        assert (found[way].expected ^ found[way].got).bit_count() == 1


@pytest.mark.parametrize("kind", fault_kinds(), ids=[kind.name for kind in fault_kinds()])
def test_every_fault_has_a_default_place_and_is_told_with_it(kind: FaultKind) -> None:
    assert open_machine("dgx-a100", (kind.name,)).faults == (f"{kind.name}:{kind.default}",)
    lines = [line for line in fault_lines() if line.split()[0] == kind.name]
    assert len(lines) == 1
    assert kind.meaning in lines[0]
    assert kind.forms == ("all",) or lines[0].endswith(f": {kind.default}]")


# What may be written wrong


@pytest.mark.parametrize(
    ("name", "faults", "words"),
    [
        ("dgx-a10", (), "no simulated machine 'dgx-a10': did you mean dgx-a100 or"),
        ("dgx-a100", ("link-dwon",), "no fault 'link-dwon': did you mean link-down?"),
        ("dgx-a100", ("link-down:gpu9",), "no gpu9; there are gpu0 to gpu7"),
        ("dgx-a100", ("link-down:gpu1/link12",), "no link12; there are link0 to link11"),
        ("dgx-a100", ("link-down:gpu0-gpu1",), "'gpu0-gpu1' is no gpuN/linkM or gpuN"),
        ("dgx-a100", ("flipped-bit:here",), "'here' is no gpuA-gpuB or gpuN"),
        ("dgx-a100", ("peer-access-refused:gpu1-gpu1",), "names one GPU twice"),
    ],
)
def test_a_mistake_is_told_in_one_line(name: str, faults: tuple[str, ...], words: str) -> None:
    with pytest.raises(SimulationError) as caught:
        open_machine(name, faults)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_machine_is_told_all_that_there_are() -> None:
    with pytest.raises(SimulationError) as caught:
        open_machine("cray-1", ())
    assert all(name in str(caught.value) for name in machine_names())


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("per_link: 25 GB/s", "per_lnk: 25 GB/s", ("unknown field `per_lnk`", "nvlink")),
        ("per_link: 25 GB/s", "per_link: 25", ("25 has no unit", "nvlink.per_link")),
        ("per_link: 25 GB/s", "per_link: 0 GB/s", ("'0 GB/s' is no rate", "nvlink.per_link")),
        ("max_peers: 8", "max_peers: 0", ("max_peers: 0 is none",)),
        ("  far_rate: ", "  loaded_latency: 0 ns\n  far_rate: ", ("host: a latency is above 0",)),
        ("per_link: 25 GB/s", "per_link: 25 Gb/s", ("unit 'Gb/s' is not known", "per_link")),
        ("memory pools", "memory pols", ("Invalid enum value 'memory pols'", "gpu.features")),
        ("links: 12", "links: twelve", ("Expected `int`", "nvlink.links")),
        ("max_peers: 8", "max_peers: [", ("file.yaml",)),
    ],
)
def test_a_machine_file_is_read_strictly(good: str, bad: str, words: tuple[str, ...]) -> None:
    assert A100.count(good) == 1
    with pytest.raises(SimulationError) as caught:
        parse_machine(A100.replace(good, bad), "file.yaml")
    message = str(caught.value)
    assert message.startswith("file.yaml: ")
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("hidden", list(Hidden))
def test_what_a_machine_hides_is_unknown_and_the_rest_is_not(hidden: Hidden) -> None:
    machine = msgspec.structs.replace(load_machine("dgx-a100"), hidden=frozenset({hidden}))
    node = Node("hiding", machine, Defects())
    telemetry = SimulatedTelemetry(node)
    one, other = node.uuids[:2]
    told = {
        Hidden.PCIE_LINK: telemetry.pcie_link(one).generation,
        Hidden.PCIE_BYTES: telemetry.pcie_bytes(one),
        Hidden.NUMA_NODE: telemetry.numa_node(one),
        Hidden.COMMON_ANCESTOR: telemetry.common_ancestor(one, other),
        Hidden.NVLINKS: telemetry.nvlinks(one),
        Hidden.NVLINK_BYTES: telemetry.nvlink_bytes(one),
    }
    assert {what for what, answer in told.items() if isinstance(answer, Unknown)} == {hidden}
