"""Options and ini keys become one value."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuxfer.settings import Settings, SettingsError, read_settings


def settings(pytester: pytest.Pytester, *options: str) -> Settings:
    return read_settings(pytester.parseconfig(*options))


def test_without_options_nothing_is_asked(pytester: pytest.Pytester) -> None:
    assert settings(pytester) == Settings(
        hardware=None, simulated=None, faults=(), out=None, gpus=None, degraded_fails=False,
        isolate=None, deadline_ns=None, lock=Path("/tmp"), selftest=False, judges=True,
        prints_only=False, distributed=False,
    )  # fmt: skip
    assert not settings(pytester).asked


def test_options_are_read(pytester: pytest.Pytester) -> None:
    found = settings(
        pytester, "--gpuxfer-hw=auto", "--gpuxfer-sim=toy", "--gpuxfer-fault=a:gpu1",
        "--gpuxfer-fault=b", "--gpuxfer-out=results", "--gpuxfer-gpus=2",
        "--gpuxfer-degraded=fail",
    )  # fmt: skip
    assert found.asked
    assert (found.hardware, found.simulated, found.gpus) == ("auto", "toy", 2)
    assert found.faults == ("a:gpu1", "b")
    assert found.degraded_fails
    assert found.out == pytester.path / "results"


@pytest.mark.parametrize("option", ["--collect-only", "--fixtures", "--setup-plan"])
def test_runs_that_judge_nothing(pytester: pytest.Pytester, option: str) -> None:
    assert not settings(pytester, option).judges


@pytest.mark.parametrize("option", ["-n2", "--dist=load"])
def test_workers_are_seen(pytester: pytest.Pytester, option: str) -> None:
    assert settings(pytester, option).distributed


@pytest.mark.parametrize(
    "options",
    [
        ["--gpuxfer-gpus=0", "--gpuxfer-hw=x"],
        ["--gpuxfer-gpus=-1", "--gpuxfer-hw=x"],
        ["--gpuxfer-gpus=\N{SUPERSCRIPT TWO}", "--gpuxfer-hw=x"],
        ["--gpuxfer-degraded=perhaps"],
        ["--gpuxfer-fault=a"],
        ["--gpuxfer-out="],
        ["--gpuxfer-selftest"],
    ],
    ids=lambda options: options[0],
)
def test_impossible_values_are_one_line(pytester: pytest.Pytester, options: list[str]) -> None:
    with pytest.raises(SettingsError) as raised:
        settings(pytester, *options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("gpuxfer_hw", "auto", "hardware"),
        ("gpuxfer_degraded", "fail", "degraded_fails"),
        ("gpuxfer_out", "results", "out"),
    ],
)
def test_each_ini_key_has_effect(
    pytester: pytest.Pytester, key: str, value: str, field: str
) -> None:
    before = getattr(settings(pytester), field)
    pytester.makeini(f"[pytest]\n{key} = {value}\n")
    assert getattr(settings(pytester), field) != before
