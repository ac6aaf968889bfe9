"""Sixteen GPUs: behind NVSwitch, where all may map all, and on PCIe, where a GPU maps eight."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.hardware.simulated import open_machine
from pytest_gpuxfer.model.cell import Check, Initiator, parse_cell
from pytest_gpuxfer.model.evidence import conclude
from pytest_gpuxfer.model.measurement import Access, Measurement, PathKind
from pytest_gpuxfer.transfer import methods
from pytest_gpuxfer.transfer.bench import Bench

GPUS = 16
PAIRS = tuple(permutations(range(GPUS), 2))


def bench(name: str, folder: Path, max_peers: int) -> Bench:
    """A shipped machine's figures, with sixteen GPUs."""
    shipped = files("pytest_gpuxfer.hardware.simulated.machines") / f"{name}.yaml"
    machine: dict[str, Any] = yaml.safe_load(shipped.read_text("utf-8"))
    machine["max_peers"] = max_peers
    machine["gpus"] = [
        {"pci_address": f"0000:{16 + gpu:02x}:00.0", "numa_node": gpu // 8, "pcie_switch": gpu // 8}
        for gpu in range(GPUS)
    ]
    path = folder / "sixteen.yaml"
    path.write_text(yaml.safe_dump(machine), "utf-8")
    hardware = open_machine(str(path), ())
    return Bench(hardware, discover(hardware))


@pytest.fixture
def switched(tmp_path: Path) -> Iterator[Bench]:
    made = bench("hgx-h200", tmp_path, max_peers=GPUS)
    yield made
    made.close()


@pytest.fixture
def over_pcie(tmp_path: Path) -> Iterator[Bench]:
    made = bench("pcie-dual-socket", tmp_path, max_peers=8)
    yield made
    made.close()


def gb_per_s(measurement: Measurement) -> float:
    rates = measurement.rates()
    assert rates is not None, (measurement.cell.id, measurement.failure, measurement.access)
    return rates.median / 1e9


def test_disjoint_pairs_are_all_pairs_both_ways_once() -> None:
    check = Check("unified_copy", initiator=Initiator.WRITE, pattern="disjoint-pairs")
    cells = [parse_cell(f"{check}/{place}/512MiB") for place in methods.places_of(check, GPUS)]
    ends = [
        (route.source, route.destination)
        for cell in cells
        for route in methods.routes_of(cell, GPUS)
    ]
    assert len(cells) == 30
    assert sorted(ends) == sorted(PAIRS)


def test_behind_switches_pairs_at_once_are_as_fast_as_alone(switched: Bench) -> None:
    alone = gb_per_s(switched.measure(parse_cell("unified_copy.write/gpu3-gpu12/512MiB")))
    for place in ("round-1", "round-15", "back-8"):
        together = switched.measure(parse_cell(f"unified_copy.write.disjoint-pairs/{place}/512MiB"))
        assert len(together.flows) == 8
        assert gb_per_s(together) == pytest.approx(alone, rel=0.01)


def test_behind_switches_a_gpu_shares_its_links_among_fifteen(switched: Bench) -> None:
    for pattern in ("all-to-one/gpu5", "one-to-all/gpu5", "all-to-all/all"):
        measured = switched.measure(parse_cell(f"unified_copy.write.{pattern}/16MiB"))
        assert gb_per_s(measured) == pytest.approx(390 / 15, rel=0.06)
        assert conclude(measured.signals).proves(PathKind.NVLINK)
        assert all(side.answer is Access.ENABLED for side in measured.access)


def test_more_pairs_than_may_be_mapped_at_once_are_measured_in_turn(over_pcie: Bench) -> None:
    for source, destination in (pair for pair in PAIRS if 0 in pair):
        cell = parse_cell(f"peer_copy.write/gpu{source}-gpu{destination}/1MiB")
        measured = over_pcie.measure(cell)
        assert [side.answer for side in measured.access] == [Access.ENABLED] * 2, cell.id
        assert gb_per_s(measured) > 5


def test_so_are_the_machines_own_cells(over_pcie: Bench) -> None:
    for peer in range(1, GPUS):
        access = over_pcie.measure(parse_cell(f"machine.peer_access/gpu0-gpu{peer}")).access
        assert all(side.answer is Access.ENABLED and side.proven is True for side in access)
    again = over_pcie.measure(parse_cell("peer_copy.write/gpu0-gpu1/1MiB")).access
    assert [side.answer for side in again] == [Access.ENABLED] * 2
    assert not any(side.proven is True for side in again if side.mapper == 0), "mapped anew"


def test_what_needs_more_peers_at_once_than_may_be_mapped_says_so(over_pcie: Bench) -> None:
    measured = over_pcie.measure(parse_cell("unified_copy.write.one-to-all/gpu0/16MiB"))
    answers = [side.answer for side in measured.access if side.mapper == 0]
    assert answers == [Access.ENABLED] * 8 + [Access.TOO_MANY_PEERS] * 7
    assert not measured.samples
    assert gb_per_s(over_pcie.measure(parse_cell("unified_copy.write.ring/ring-3/16MiB"))) > 5
