"""Figures that physics or the profile itself contradict are errors where they stand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuxfer import profiles
from pytest_gpuxfer.hardware import open_simulated
from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.model.cell import parse_check
from pytest_gpuxfer.plan import make_plan, registered_checks
from pytest_gpuxfer.profiles import ProfileError
from pytest_gpuxfer.profiles.methods import METHODS, Where
from pytest_gpuxfer.transfer import methods
from pytest_gpuxfer.transfer.methods.base import Shape

HEAD = """\
schema: 1
name: ours
title: Three GPUs, two of them linked
match: {gpus: [NVIDIA H200]}
gpus: 3
links:
  nvlink: {generation: 4, links: 18, per_link: 25 GB/s}
  pcie: {generation: 5, width: 16}
classes:
  NV18: {path: nvlink, peer_access: required, proof: [counters]}
  PIX: {path: pcie_p2p, peer_access: required, proof: [access, latency]}
pairs:
  all: PIX
  gpu0-gpu1: NV18
tolerance: 5%
limits:
"""
SOURCE = "source: {kind: derived, where: by hand}"


def _entry(**keys: str) -> str:
    lines = [f"    {key}: {value}\n" for key, value in keys.items()]
    if {"floor", "ceiling"} & set(keys):
        lines.append(f"    {SOURCE}\n")
    return "  -" + "".join(lines)[3:]


def _complaint(tmp_path: Path, *entries: str) -> str:
    path = tmp_path / "ours.yaml"
    path.write_text(HEAD + "".join(entries))
    try:
        profiles.load(str(path))
    except ProfileError as error:
        return str(error).removeprefix(f"{tmp_path}/")
    return ""


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"check": "peer_copy", "on": "NV18", "floor": "451 GB/s"}, "above the declared nvlink"),
        ({"check": "peer_copy", "floor": "360 GB/s"}, "above the declared pcie"),
        ({"check": "host_to_device", "floor": "64 GB/s"}, "above the declared pcie"),
        ({"check": "peer_copy.no-access", "floor": "100 GB/s"}, "above the declared pcie"),
        ({"check": "peer_copy", "on": "gpu1-gpu0", "floor": "30% of nvlink"}, "raise it"),
        ({"check": "host_to_device", "floor": "20 GB/s"}, "a sick machine would pass"),
        ({"check": "host_to_device.pageable", "floor": "8 GB/s"}, "add below_because"),
        ({"check": "host_relay", "floor": "20 GB/s"}, "add below_because"),
        ({"check": "peer_copy", "on": "PIX", "floor": "20 GB/s"}, "add below_because"),
        ({"check": "kernel_copy", "on": "NV18", "floor": "100 GB/s"}, "add below_because"),
        ({"check": "host_relay", "floor": "40 GB/s", "expect": "30 GB/s"}, "below the floor"),
        ({"check": "host_relay", "floor": "40 GB/s", "expect": "70 GB/s"}, "above the declared"),
        ({"check": "peer_copy", "ceiling": "6 us"}, "write a floor"),
        ({"check": "small_copy_latency", "floor": "6 GB/s"}, "write a ceiling"),
        ({"check": "host_relay.write", "not_expected": "x"}, "no write or read"),
        (
            {"check": "host_relay.no-access", "not_expected": "x"},
            "not measured without peer access",
        ),
        ({"check": "peer_copy", "on": "NV12", "not_expected": "x"}, "did you mean 'NV18'?"),
        ({"check": "peer_copy", "on": "gpu0-gpu3", "not_expected": "x"}, "are gpu0 to gpu2"),
        ({"check": "peer_copy", "on": "gpu0-gpu0", "not_expected": "x"}, "name a class"),
        ({"check": "peer_copy", "on": "gpu0", "not_expected": "x"}, "measured at each pair"),
        ({"check": "host_to_device", "on": "NV18", "not_expected": "x"}, "at each GPU"),
        ({"check": "host_to_device", "on": "gpu0-gpu1", "not_expected": "x"}, "at each GPU"),
        ({"check": "peer_copy", "floor": "3x peer_copy.write"}, "rest on itself"),
        ({"check": "host_relay", "floor": "3x peer_copy"}, "say which, peer_copy.write"),
        ({"check": "host_relay", "floor": "3x host_to_device"}, "measured at each GPU"),
        ({"check": "host_relay", "floor": "3x small_copy_latency"}, "a time, not a rate"),
    ],
)
def test_a_figure_that_cannot_be_right_is_an_error_at_its_line(
    tmp_path: Path, keys: dict[str, str], words: str
) -> None:
    text = _complaint(tmp_path, _entry(**keys))
    assert words in text
    line = int(text.split(":")[1])
    assert line > len(HEAD.splitlines())


@pytest.mark.parametrize(
    "keys",
    [
        {"check": "peer_copy", "on": "NV18", "floor": "80% of nvlink"},
        {"check": "peer_copy", "on": "PIX", "floor": "45 GB/s"},
        {"check": "peer_copy", "on": "PIX", "floor": "20 GB/s", "below_because": "across sockets"},
        {"check": "host_relay", "floor": "20 GB/s", "below_because": "it crosses twice"},
        {"check": "peer_copy", "on": "gpu0-gpu1", "floor": "3x host_relay"},
        {"check": "host_to_device", "on": "gpu2", "floor": "48 GB/s"},
        {"check": "peer_copy.bidirectional", "on": "NV18", "floor": "700 GB/s"},
        {"check": "small_copy_latency", "ceiling": "6 us"},
        {
            "check": "peer_copy",
            "on": "NV18",
            "floor": "60 GB/s",
            "sizes": "256 KiB",
            "below_because": "so small a copy pays for its start",
        },
    ],
)
def test_what_can_be_right_is_let_through(tmp_path: Path, keys: dict[str, str]) -> None:
    assert _complaint(tmp_path, _entry(**keys)) == ""


def test_a_reason_does_not_excuse_a_low_floor_where_copies_run_at_the_links_rate(
    tmp_path: Path,
) -> None:
    low = _entry(check="host_to_device", floor="20 GB/s", below_because="we like it low")
    assert "a sick machine would pass" in _complaint(tmp_path, low)


def test_in_a_mesh_a_pairs_own_links_count(tmp_path: Path) -> None:
    mesh = HEAD.replace("gpu0-gpu1: NV18", "gpu0-gpu1: NV2").replace("NV18:", "NV2:")
    path = tmp_path / "ours.yaml"
    path.write_text(mesh + _entry(check="peer_copy", on="NV2", floor="40 GB/s"))
    assert profiles.load(str(path)).limits  # 80% of two links, 9% of all eighteen
    path.write_text(mesh + _entry(check="peer_copy", on="NV2", floor="51 GB/s"))
    with pytest.raises(ProfileError, match=r"above the declared nvlink, 50\.00 GB/s"):
        profiles.load(str(path))


def test_a_second_limit_for_the_same_thing_in_one_file_is_an_error(tmp_path: Path) -> None:
    entry = _entry(check="host_relay", not_expected="x")
    text = _complaint(tmp_path, entry, entry)
    assert f"first in line {len(HEAD.splitlines()) + 1}" in text


def test_several_findings_are_counted(tmp_path: Path) -> None:
    text = _complaint(
        tmp_path,
        _entry(check="host_to_device", floor="64 GB/s"),
        _entry(check="device_to_host", floor="64 GB/s"),
    )
    assert text.endswith("(and 1 more)")


def test_lint_lists_every_finding_with_its_place() -> None:
    profile = profiles.load("h200-nvlink")
    assert profiles.lint(profile) == []
    assert profile.nvlink is not None
    slower = replace(profile, nvlink=replace(profile.nvlink, per_link_bytes_per_s=10e9))
    findings = profiles.lint(slower)
    assert len(findings) == 8  # floors and expects of peer_, unified_, kernel_ and ipc_copy
    assert str(findings[0]).startswith("thresholds/h200-nvlink.yaml:")


@pytest.mark.parametrize(
    ("name", "machine"), [("a100-nvlink", "dgx-a100"), ("h200-nvlink", "hgx-h200")]
)
def test_a_shipped_profile_has_a_limit_for_every_planned_size(name: str, machine: str) -> None:
    plan = make_plan(profiles.load(name), discover(open_simulated(machine)))
    moving = [wanted for wanted in plan if not wanted.cell.check.of_machine]
    assert len(moving) > 1900
    assert [wanted.cell.id for wanted in moving if wanted.limit is None] == []


def test_profiles_know_the_methods_that_are_measured_and_where() -> None:
    """The table that limits are held against, and the classes that measure, say the same."""
    assert set(METHODS) == {method.name for method in methods.ALL}
    places = {Where.PAIR: {"pair"}, Where.GPU: {"gpu"}, Where.EITHER: {"pair", "gpu"}}
    for method in methods.ALL:
        alone = [check for check in method.checks() if check.pattern is None]
        shapes = {shape for check in alone for shape in method.shape(check)}
        seen = {"pair" if shape is Shape.PAIR else "gpu" for shape in shapes}
        known = METHODS[method.name]
        assert seen <= places[known.where], method.name
        assert any(not check.access for check in method.checks()) == known.controlled, method.name
        assert known.initiators or not any(check.initiator for check in alone), method.name


@pytest.mark.parametrize("name", profiles.shipped())
def test_a_shipped_profile_speaks_of_every_check(name: str) -> None:
    assert len(registered_checks()) >= 11
    assert profiles.uncovered(profiles.load(name), registered_checks()) == []


def test_a_check_without_a_limit_on_some_class_is_uncovered(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(HEAD + _entry(check="peer_copy", on="NV18", floor="80% of nvlink"))
    checks = [parse_check(text) for text in ("peer_copy.write", "peer_copy.write.no-access")]
    lines = profiles.uncovered(profiles.load(str(path)), checks)
    assert [line.split(": ")[1].split(" has ")[0] for line in lines] == [
        "peer_copy.write on PIX",
        "peer_copy.write.no-access on PIX",
        "peer_copy.write.no-access on NV18",
    ]
