"""A machine without a driver: one red cell, with record and JUnit, never green, no traceback."""

from __future__ import annotations

import ctypes
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpuxfer.hardware import Hardware, HardwareError
from pytest_gpuxfer.report.records import read
from pytest_gpuxfer.transfer import opening


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def assert_one_red_cell(result: pytest.RunResult, junit: Path, record: Path) -> None:
    assert result.ret == 6
    found = result.parseoutcomes()
    assert (found["errors"], set(found)) == (1, {"errors", "skipped"})
    result.stdout.fnmatch_lines(["ERROR machine.gpus/all: no driver: *", "*exit status 6"])
    result.stdout.no_fnmatch_line("*Traceback*")
    (case,) = (case for case in ET.parse(junit).iter("testcase") if case.find("error") is not None)
    assert case.get("name") == "machine.gpus/all"
    read_back = read(record)
    assert read_back.header.machine is None
    assert read_back.header.failure is not None
    assert [line.verdict.outcome for line in read_back.cells] == ["error"]
    assert read_back.end is not None
    assert read_back.end.exit_status == 6


@pytest.mark.skipif(has_driver(), reason="this machine has a driver")
def test_this_machine(pytester: pytest.Pytester, record_file: Callable[[], Path]) -> None:
    result = pytester.runpytest_subprocess(
        "--pyargs", "pytest_gpuxfer.suites", "--gpuxfer-hw=a100-nvlink",
        "--gpuxfer-out=out", "--junitxml=j.xml",
    )  # fmt: skip
    assert_one_red_cell(result, pytester.path / "j.xml", record_file())


@pytest.mark.parametrize("profile", ["a100-nvlink", "auto"])
def test_fabric_that_is_not_ready(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    def refuse() -> Hardware:
        raise HardwareError("SYSTEM_NOT_READY", "start nvidia-fabricmanager", not_ready=True)

    monkeypatch.setattr(opening, "open_hardware", refuse)
    result = pytester.runpytest_inprocess(
        "--pyargs", "pytest_gpuxfer.suites", f"--gpuxfer-hw={profile}"
    )
    assert result.ret == 6
    result.stdout.fnmatch_lines(
        [
            "ERROR machine.gpus/all: driver or fabric not ready: SYSTEM_NOT_READY",
            "*start nvidia-fabricmanager*",
        ]
    )


def test_tests_of_others_get_the_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Hardware:
        raise HardwareError("libcuda.so.1 is not here", "install the driver")

    monkeypatch.setattr(opening, "open_hardware", refuse)
    pytester.makepyfile(
        """
        def test_gpu(gpu): ...
        def test_pair(gpu_pair): ...
        def test_topology(topology): ...
        def test_buffer(pinned_buffer): ...
        """
    )
    result = pytester.runpytest_inprocess()
    assert result.ret == 6
    result.assert_outcomes(errors=4)
    words = "no driver: libcuda.so.1 is not here; install the driver"
    assert result.outlines.count(words) == 4
