"""Each simulated machine in health against the profile made for its kind: no red, no false word."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest

from pytest_gpuxfer import profiles
from pytest_gpuxfer.hardware import Hardware
from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.hardware.simulated import machine_names, open_machine
from pytest_gpuxfer.model.cell import Check, Initiator, Place, parse_cell
from pytest_gpuxfer.model.expectation import Bound, Expectation, Limit, Location, Profile
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import Measurement
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.model.verdict import Outcome, Reason, Verdict, judge
from pytest_gpuxfer.plan import expect, make_plan, needs
from pytest_gpuxfer.transfer.bench import Bench

MIB = 2**20
MADE_FOR = {
    "dgx-a100": "a100-nvlink",
    "dgx1-v100": "v100-dgx1",
    "gb200-tray": "gb200-tray",
    "h100-nvl": "h100-nvl",
    "h200-alone": "h200-single",
    "hgx-h200": "h200-nvlink",
    "mixed-a6000-ada": "rtx-a6000-ada",
    "pcie-dual-socket": "a100-pcie-gen3",
    "rtx4090": "geforce-4090",
    "vm-h100-phb": "h100-nvlink",
}


HERE, WRITE = Location("site.yaml", 7), Initiator.WRITE
SITE = """
schema: 1
name: site
extends: a100-nvlink
limits:
  - check: unified_copy.disjoint-pairs
    floor: 1 GB/s
    below_because: a test
    expect: 1x unified_copy.write
    tolerance: 1%
    source: {kind: derived, where: a test}
"""


class Run:
    """A machine, its profile, and verdicts on the cells that are asked for."""

    def __init__(self, name: str, *faults: str, seed: int = 0) -> None:
        self.hardware: Hardware = open_machine(name, faults, seed)
        self.machine: Machine = discover(self.hardware)
        self.profile: Profile = profiles.load(MADE_FOR[name])
        profiles.check_match(self.profile, self.machine)
        self._bench = Bench(self.hardware, self.machine)

    @cache  # noqa: B019 (it lives as long as its test)
    def measured(self, cell_id: str) -> Measurement:
        return self._bench.measure(parse_cell(cell_id))

    def verdict(self, expectation: Expectation) -> Verdict:
        if expectation.not_expected:
            return judge(None, expectation)
        medians: dict[Check, float] = {}
        for cell in needs(expectation, len(self.machine.gpus)):
            rates = self.measured(cell.id).rates()
            assert rates is not None
            medians[cell.check] = min(rates.median, medians.get(cell.check, math.inf))
        measurement = self.measured(expectation.cell.id)
        return judge(measurement, expectation, measurement.health, medians)

    def expect(self, cell_id: str) -> Expectation:
        return expect(self.profile, self.machine, parse_cell(cell_id))

    def verdict_on(self, cell_id: str) -> Verdict:
        return self.verdict(self.expect(cell_id))

    def gbps(self, cell_id: str) -> float:
        rates = self.measured(cell_id).rates()
        assert rates is not None
        return rates.median / 1e9

    def sample(self) -> Iterator[Expectation]:
        """The plan's cells at one GPU, at one pair of each class, and of small machines at groups.

        Sizes of the sweep are left out: nothing is asked of their rates.
        """
        pairs: dict[str, Place] = {}
        for ends in permutations(range(len(self.machine.gpus)), 2):
            if spec := self.profile.class_of(Place.pair(*ends)):
                pairs.setdefault(spec.name, Place.pair(*ends))
        some = {"gpu0", *map(str, pairs.values())}
        for expectation in make_plan(self.profile, self.machine):
            place, size_bytes = expectation.cell.place, expectation.cell.size_bytes
            grouped = not place.gpus and len(self.machine.gpus) <= 4
            swept = size_bytes is not None and MIB <= size_bytes <= 16 * MIB
            if (str(place) in some or grouped) and not swept and not expectation.members:
                yield expectation


def test_every_machine_has_a_profile_made_for_it() -> None:
    assert set(MADE_FOR) == set(machine_names())


@pytest.mark.parametrize("name", sorted(MADE_FOR))
def test_a_healthy_machine_shows_no_red(name: str) -> None:
    run = Run(name)
    red, judged = {}, 0
    for expectation in run.sample():
        verdict = run.verdict(expectation)
        judged += 1
        if verdict.outcome.red:
            red[expectation.cell.id] = verdict.words
        assert verdict.outcome is not Outcome.DEGRADED, (expectation.cell.id, verdict.words)
    assert red == {}
    assert judged > 10


@pytest.mark.parametrize(("name", "seed"), [("h100-nvl", 1), ("h200-alone", 2), ("h200-alone", 3)])
def test_noise_alone_makes_nothing_red(name: str, seed: int) -> None:
    run = Run(name, "noise", seed=seed)
    verdicts = {e.cell.id: run.verdict(e) for e in run.sample() if e.cell.place.gpus}
    assert {cell: v.words for cell, v in verdicts.items() if v.outcome.red} == {}


@pytest.mark.parametrize("name", sorted(MADE_FOR))
def test_auto_finds_the_profile_of_a_machine(name: str) -> None:
    machine = discover(open_machine(name, ()))
    assert profiles.choose(machine).profile.name == MADE_FOR[name]


# Traps


def test_pairs_that_are_slower_at_once_than_alone_are_told(tmp_path: Path) -> None:
    """Above its floor: what the limit expects is what the same pairs reach alone."""
    site = tmp_path / "site.yaml"
    site.write_text(SITE)
    for fault, outcome in (((), Outcome.PASS), (("switch-collapse",), Outcome.DEGRADED)):
        run = Run("dgx-a100", *fault)
        run.profile = profiles.load(str(site))
        for place in ("round-1/512MiB", "back-5/512MiB", "round-2/64MiB"):
            verdict = run.verdict_on(f"unified_copy.write.disjoint-pairs/{place}")
            assert verdict.outcome is outcome, verdict.words


def test_flows_over_pairs_of_several_classes_have_no_limit_in_common() -> None:
    verdict = Run("dgx1-v100").verdict_on("unified_copy.write.disjoint-pairs/round-4/512MiB")
    assert (verdict.outcome, verdict.reason) == (Outcome.ERROR, Reason.NO_LIMIT)


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("unified_copy.sm.write", "there is no unified_copy.sm.write"),
        ("unified_copy.write.ring", "unified_copy.write.ring is not measured at round-1"),
    ],
)
def test_a_limit_rests_on_nothing_that_is_not_measured(
    tmp_path: Path, base: str, words: str
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(SITE.replace("1x unified_copy.write", f"1x {base}"))
    machine = discover(open_machine("dgx-a100", ()))
    with pytest.raises(profiles.ProfileError, match=f"site.yaml:9:13: .* has no base: {words}"):
        make_plan(profiles.load(str(site)), machine)


def test_flows_that_share_a_gpu_are_held_against_each_pair_alone() -> None:
    run = Run("dgx-a100")
    wanted = run.expect("unified_copy.write.one-to-all/gpu2/64MiB")
    limit = Limit(
        wanted.cell.check,
        HERE,
        expect=Bound(1.0, "1x", HERE, Check("unified_copy", initiator=WRITE)),
    )
    bases = [cell.id for cell in needs(replace(wanted, limit=limit), 8)]
    assert bases == [f"unified_copy.write/gpu2-gpu{gpu}/64MiB" for gpu in (0, 1, 3, 4, 5, 6, 7)]


def test_twelve_of_eighteen_links_are_all_that_an_h100_nvl_has() -> None:
    run = Run("h100-nvl")
    ports = run.machine.gpus[0].nvlinks
    assert not isinstance(ports, Unknown)
    assert (len(ports), run.machine.gpus[0].active_nvlinks()) == (18, 12)
    assert {port.remote for port in ports if port.active} == {run.machine.gpus[1].pci_address}
    assert run.verdict_on("machine.nvlink/gpu0").words == "12 NVLinks up"
    assert run.verdict_on("peer_copy.write/gpu0-gpu1/512MiB").outcome is Outcome.PASS


def test_eleven_of_them_are_one_too_few() -> None:
    run = Run("h100-nvl", "link-down:gpu1/link2")
    for gpu in (0, 1):  # a link has two ends
        assert "11 of 12 NVLinks are up" in run.verdict_on(f"machine.nvlink/gpu{gpu}").words


def test_peer_access_over_pcie_may_be_slower_than_staging() -> None:
    run = Run("pcie-dual-socket")
    for pair in ("gpu0-gpu1", "gpu0-gpu2"):
        assert run.gbps(f"peer_copy.write/{pair}/512MiB") < run.gbps(
            f"peer_copy.write.no-access/{pair}/512MiB"
        )
        verdict = run.verdict_on(f"peer_copy.write/{pair}/512MiB")
        assert not verdict.outcome.red


def test_geforce_boards_are_not_asked_for_peer_access() -> None:
    run = Run("rtx4090")
    words = "the driver offers GeForce boards no peer access"
    for cell in ("peer_copy.write/gpu0-gpu1/512MiB", "kernel_copy.sm.read/gpu0-gpu1/512MiB"):
        verdict = run.verdict_on(cell)
        assert (verdict.outcome, verdict.words) == (Outcome.NOT_EXPECTED, words)
    assert run.verdict_on("machine.peer_access/gpu0-gpu1").outcome is Outcome.NOT_EXPECTED
    assert run.verdict_on("peer_copy.write.no-access/gpu0-gpu1/512MiB").outcome is Outcome.PASS


def test_gen1_at_idle_is_no_fault() -> None:
    run = Run("rtx4090")
    assert run.machine.gpus[0].pcie.generation == 1
    assert run.verdict_on("machine.pcie/gpu0").words == "PCIe Gen4 x16 under load"


def test_a_virtual_machine_that_hides_pcie_is_told_and_not_blamed() -> None:
    run = Run("vm-h100-phb")
    assert set(run.machine.ancestors.values()) == {"PHB"}
    assert isinstance(run.machine.gpus[0].numa_node, Unknown)
    assert run.machine.link_class(0, 7) == "NV18"
    verdict = run.verdict_on("machine.pcie/gpu0")
    assert (verdict.outcome, verdict.reason) == (Outcome.NOT_EXPECTED, Reason.NOT_READABLE)
    assert "PCIe link under load" in verdict.unchecked[0]


def test_pairs_of_a_mesh_are_held_to_their_own_links() -> None:
    run = Run("dgx1-v100")
    classes = [run.machine.link_class(0, peer) for peer in range(1, 8)]
    assert classes == ["NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS"]
    one, two = (run.gbps(f"peer_copy.write/gpu0-gpu{peer}/512MiB") for peer in (1, 3))
    assert two == pytest.approx(2 * one, rel=0.02)
    assert run.verdict_on("peer_copy.write/gpu0-gpu5/512MiB").outcome is Outcome.NOT_EXPECTED


def test_links_of_a_mesh_do_not_share_what_switched_ones_do() -> None:
    run = Run("dgx1-v100")
    alone = run.gbps("unified_copy.write/gpu0-gpu3/512MiB")
    many = run.measured("unified_copy.write.ring/ring-1/128MiB")
    assert many.lacking is None
    assert alone == pytest.approx(48.4, rel=0.01)


def test_gpus_of_two_models_are_peers_of_their_own_model_alone() -> None:
    run = Run("mixed-a6000-ada")
    assert len({gpu.name for gpu in run.machine.gpus}) == 2
    offered = run.machine.peer_access_offered
    assert {pair for pair, on in offered.items() if on} == {
        "gpu0-gpu1", "gpu1-gpu0", "gpu2-gpu3", "gpu3-gpu2",
    }  # fmt: skip
    assert "different models" in run.verdict_on("peer_copy.write/gpu0-gpu2/512MiB").words


def test_host_memory_over_c2c_is_no_pcie_traffic() -> None:
    run = Run("gb200-tray")
    telemetry, uuid = run.hardware.telemetry, run.machine.gpus[0].uuid
    before = telemetry.pcie_bytes(uuid)
    assert run.gbps("host_to_device/gpu0/512MiB") == pytest.approx(200, rel=0.02)
    after = telemetry.pcie_bytes(uuid)
    assert not isinstance(before, Unknown)
    assert not isinstance(after, Unknown)
    moved = (after.received_bytes - before.received_bytes) % 2**32
    assert moved < 2**29  # the trickle of idling, and none of many copies of 512 MiB
    assert run.verdict_on("machine.pcie/gpu0").outcome is Outcome.NOT_EXPECTED


def test_one_gpu_alone_is_asked_for_nothing_between_gpus() -> None:
    run = Run("h200-alone")
    assert run.machine.gpus[0].nvlinks == ()
    checks = {e.cell.check for e in make_plan(run.profile, run.machine) if not e.not_expected}
    assert Check("host_to_device") in checks
    assert not any(check.method.startswith(("peer", "unified", "ipc")) for check in checks)


def test_a_gpu_lost_from_a_mesh_leaves_its_neighbours_links_down() -> None:
    machine = discover(open_machine("dgx1-v100", ("gpu-missing:gpu7",)))
    assert [gpu.active_nvlinks() for gpu in machine.gpus] == [6, 6, 6, 5, 4, 5, 4]
    assert machine.link_class(0, 3) == "NV2"


@pytest.mark.parametrize(
    ("name", "fault", "why"),
    [
        ("rtx4090", "link-down", "the machine has no NVLink"),
        ("h100-nvl", "link-down:gpu0/link4", "link4 of gpu0 is down by design"),
        ("h100-nvl", "fabric-dropout", "the machine has no NVSwitch fabric"),
        ("h100-nvl", "switch-collapse", "the machine has no two pairs of peers"),
        ("rtx4090", "staged-despite-access", "gpu0-gpu1 have no peer access on this machine"),
        ("gb200-tray", "pcie-width", "data goes over C2C here"),
        ("h200-alone", "gpu-missing", "the machine has one GPU"),
        ("hgx-h200", "numa-far", "the machine has one NUMA node"),
    ],
)
def test_a_fault_that_a_machine_cannot_have_is_refused(name: str, fault: str, why: str) -> None:
    with pytest.raises(Exception, match=why) as caught:
        open_machine(name, (fault,))
    assert str(caught.value).startswith(f"fault {fault.partition(':')[0]}: ")


@pytest.mark.parametrize(
    ("name", "fault", "placed"),
    [
        ("h100-nvl", "link-down", "link-down:gpu1/link7"),
        ("dgx1-v100", "link-down", "link-down:gpu3/link5"),
        ("h200-alone", "copy-hangs", "copy-hangs:gpu0"),
        ("rtx4090", "crash", "crash:gpu0"),
    ],
)
def test_a_default_place_is_one_that_the_machine_has(name: str, fault: str, placed: str) -> None:
    assert open_machine(name, (fault,)).faults == (placed,)


def test_where_peer_access_is_optional_its_checks_are_not_expected() -> None:
    run = Run("dgx1-v100")
    for check in ("machine.peer_access", "machine.handshake", "machine.atomics"):
        expectation = expect(run.profile, run.machine, parse_cell(f"{check}/gpu0-gpu5"))
        assert expectation.not_expected == "the profile asks SYS pairs for no peer access"
        linked = expect(run.profile, run.machine, parse_cell(f"{check}/gpu0-gpu3"))
        assert linked.not_expected is None
        assert replace(linked, cell=expectation.cell).peer_access_required
