"""Which machine a profile is for; machines are built from plain values."""

from __future__ import annotations

import pytest

from pytest_gpuxfer import profiles
from pytest_gpuxfer.model.machine import Gpu, HostFacts, Machine, NvlinkPort, PcieLink
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.profiles import ProfileError

UP = tuple(NvlinkPort(link, active=True) for link in range(18))
DOWN = tuple(NvlinkPort(link, active=False) for link in range(18))
UNSEEN = Unknown("NVML does not say")


def _machine(*names: str, nvlinks: tuple[NvlinkPort, ...] | Unknown = UP) -> Machine:
    gpus = tuple(
        Gpu(n, n, f"GPU-{n}", f"0000:0{n}:00.0", name, 2**37, nvlinks, PcieLink(5, 16))
        for n, name in enumerate(names)
    )
    return Machine(HostFacts("here"), gpus, "580.159", "13.0")


H200 = "NVIDIA H200"
A100 = "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        (_machine(*[H200] * 8), "h200-nvlink"),
        (_machine(*[H200] * 7), "h200-nvlink"),
        (_machine(H200, H200, nvlinks=DOWN), "h200-nvlink"),
        (_machine(H200), "h200-nvlink"),
        (_machine(H200, nvlinks=()), "h200-single"),
        (_machine(*[A100] * 8), "a100-nvlink"),
        (_machine("NVIDIA A100-SXM4-40GB"), "a100-nvlink"),
    ],
)
def test_auto_picks_the_one_that_fits_product_and_form(machine: Machine, name: str) -> None:
    choice = profiles.choose(machine)
    assert choice.profile.name == name
    assert machine.gpus[0].name in choice.words
    assert ("no NVLink" in choice.words) == (name == "h200-single")


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (_machine("NVIDIA L40S"), "a100-nvlink: for NVIDIA A100-SXM4-40GB or"),
        (_machine(H200, A100), "no profile fits 1 x NVIDIA H200 and 1 x NVIDIA A100"),
        (_machine(H200, H200, nvlinks=()), "h200-nvlink: for GPUs with NVLink, and none is seen"),
        (_machine(H200, H200, nvlinks=()), "h200-single: for 1 GPU, and 2 are here"),
        (_machine(H200, nvlinks=UNSEEN), "whether there is NVLink is unknown (NVML does not say)"),
        (_machine(H200, nvlinks=DOWN), "h200-nvlink, h200-single all fit"),
        (_machine(), "no GPU is seen"),
    ],
)
def test_auto_that_cannot_tell_says_why(machine: Machine, words: str) -> None:
    with pytest.raises(ProfileError) as caught:
        profiles.choose(machine)
    assert words in str(caught.value)


def test_a_profile_for_another_product_names_the_right_one() -> None:
    with pytest.raises(ProfileError) as caught:
        profiles.check_match(profiles.load("a100-nvlink"), _machine(*[H200] * 8))
    assert str(caught.value) == (
        "profile a100-nvlink is for NVIDIA A100-SXM4-40GB or NVIDIA A100-SXM4-80GB,"
        " this machine has 8 x NVIDIA H200; try --gpuxfer-hw=h200-nvlink or auto"
    )


def test_where_no_shipped_profile_fits_the_advice_is_to_write_one() -> None:
    with pytest.raises(ProfileError, match="write one and give its path"):
        profiles.check_match(profiles.load("a100-nvlink"), _machine("NVIDIA L40S"))


@pytest.mark.parametrize(
    "machine",
    [
        _machine(*[H200] * 8),
        _machine(*[H200] * 7),
        _machine(),
        _machine(*[H200] * 8, nvlinks=()),
        _machine(*[H200] * 8, nvlinks=UNSEEN),
    ],
)
def test_what_a_cell_will_judge_is_no_mismatch(machine: Machine) -> None:
    profiles.check_match(profiles.load("h200-nvlink"), machine)


def test_more_gpus_than_the_profile_has_would_go_unjudged() -> None:
    profile, machine = profiles.load("h200-single"), _machine(H200, H200)
    with pytest.raises(
        ProfileError, match=r"for 1 GPU, and 2 are here.*try --gpuxfer-hw=h200-nvlink"
    ):
        profiles.check_match(profile, machine)


def test_a_declared_part_says_so_and_is_no_mismatch() -> None:
    whole = profiles.load("h200-nvlink")
    part = profiles.declare_partial(whole, 2)
    assert (part.gpus, part.partial) == (2, "2 of 8 GPUs, as declared")
    profiles.check_match(part, _machine(*[H200] * 8))
    assert profiles.declare_partial(whole, 8) == whole
    assert profiles.declare_partial(whole, None) == whole


@pytest.mark.parametrize("gpus", [9, 0, -1])
def test_a_part_that_is_none_is_an_error(gpus: int) -> None:
    with pytest.raises(ProfileError, match="declare at"):
        profiles.declare_partial(profiles.load("h200-nvlink"), gpus)
