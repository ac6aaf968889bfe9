"""The operator's mistakes: one line, status 4, nothing measured. Then options and ini keys."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import ONE, PAIR, Run


def the_one_line(result: pytest.RunResult) -> str:
    """What an operator reads; also asserts that it is one line and status 4."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = (line for line in result.errlines if line)
    assert line.startswith("ERROR: ")
    return line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpuxfer-hw=a100-nvlnk"], ["a100-nvlnk", "did you mean 'a100-nvlink'"]),
        (["--gpuxfer-hw=./site.yaml"], ["site.yaml"]),
        (
            ["--gpuxfer-hw=h200-nvlink", "--gpuxfer-sim=dgx-a100"],
            ["8 x NVIDIA A100-SXM4-80GB", "--gpuxfer-hw=a100-nvlink"],
        ),
        (["--gpuxfer-sim=dgx-a10"], ["dgx-a10", "dgx-a100"]),
        (["--gpuxfer-sim=dgx-a100", "--gpuxfer-fault=link-dwn"], ["link-dwn", "link-down"]),
        (["--gpuxfer-sim=dgx-a100", "--gpuxfer-fault=link-down:gpu9"], ["gpu9"]),
        (["--gpuxfer-fault=link-down"], ["add --gpuxfer-sim=MACHINE"]),
        (["--gpuxfer-sim=dgx-a100", "--gpuxfer-degraded=maybe"], ["maybe", "pass or fail"]),
        (["--gpuxfer-hw=a100-nvlink", "--gpuxfer-gpus=some"], ["some", "visible"]),
        (["--gpuxfer-gpus=2"], ["add --gpuxfer-hw=NAME"]),
        (
            ["--gpuxfer-hw=a100-nvlink", "--gpuxfer-sim=dgx-a100", "--gpuxfer-gpus=2"],
            ["--gpuxfer-gpus=2", "sees 8 GPUs"],
        ),
        (["--gpuxfer-hw=~nobody-has-this-name/s.yaml"], ["~nobody-has-this-name/s.yaml"]),
        (["--gpuxfer-out=~nobody-has-this-name"], ["~nobody-has-this-name", "another folder"]),
        (["--gpuxfer-hw="], ["--gpuxfer-hw is empty"]),
        (["--gpuxfer-sim=dgx-a100", "-n2"], ["without -n"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_mistake_is_one_line(
    pytester: pytest.Pytester, options: list[str], words: list[str]
) -> None:
    line = the_one_line(pytester.runpytest_inprocess(*options))
    assert all(word in line for word in words), line


def test_record_folder_is_tried_before_anything_is_measured(
    suites: Run, pytester: pytest.Pytester
) -> None:
    pytester.path.joinpath("taken").write_text("a file stands here")
    line = the_one_line(suites("--gpuxfer-out=taken/results"))
    assert "taken/results" in line
    assert "name another folder" in line


def test_profile_in_the_home_folder(
    suites: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(pytester.mkdir("home")))
    site = "schema: 1\nname: site\ntitle: One of ours\nextends: a100-nvlink\n"
    pytester.path.joinpath("home/site.yaml").write_text(site)
    assert suites("-k", f"host_relay and {PAIR}", profile="~/site.yaml").ret == 0


def test_ini_names_the_profile(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpuxfer_hw = a100-nvlnk\n")
    assert "a100-nvlink" in the_one_line(pytester.runpytest_inprocess())


def test_ini_names_the_record_folder(suites: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpuxfer_out = from-ini\n")
    suites("-k", "host_relay/gpu0-gpu1/128MiB")
    assert len(list(pytester.path.glob("from-ini/dgx-a100-*.jsonl"))) == 1


def test_ini_makes_degraded_fail_and_the_option_wins(
    suites: Run, pytester: pytest.Pytester
) -> None:
    pytester.makeini("[pytest]\ngpuxfer_degraded = fail\n")
    chosen = ("--gpuxfer-fault=link-down:gpu1/link7", "-k", ONE)
    assert suites(*chosen).ret == 1
    assert suites("--gpuxfer-degraded=pass", *chosen).ret == 0


@pytest.mark.parametrize("option", ["--help", "--version", "--markers"])
def test_what_only_prints_touches_no_machine(suites: Run, option: str) -> None:
    result = suites(option, "--gpuxfer-out=/proc/nowhere", machine="no-such-machine")
    assert result.ret == 0


def test_help_and_markers_speak_of_ours(pytester: pytest.Pytester) -> None:
    help_text = pytester.runpytest_inprocess("--help").stdout.str()
    assert "--gpuxfer-hw=NAME|FILE|auto" in help_text
    assert "gpuxfer(*methods)" in pytester.runpytest_inprocess("--markers").stdout.str()


def test_fixtures_are_listed_with_their_words(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--fixtures")
    result.stdout.fnmatch_lines(["gpu_pair *", "*Each ordered pair of GPUs, one test each*"])


def test_no_workers_is_no_distribution(suites: Run) -> None:
    assert suites("-n0", "-k", f"host_relay and {PAIR}").ret == 0
