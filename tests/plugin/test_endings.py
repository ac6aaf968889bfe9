"""Runs that are ended, killed, or refused: the record is valid and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpuxfer.lock import HostLock, LockError
from pytest_gpuxfer.report.records import read
from tests.plugin.conftest import Run
from tests.processes import gone, measuring_children

HANGING = (  # one cell that passes, then one that hangs
    "--gpuxfer-fault=call-hangs:gpu0-gpu1", "-k",
    "gpu0-gpu1 and (host_relay and 128MiB or peer_copy and 512MiB) and not pip",
)  # fmt: skip


def start_suites(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs",
            "pytest_gpuxfer.suites", "--gpuxfer-hw=a100-nvlink", "--gpuxfer-sim=dgx-a100",
            "--gpuxfer-out=out", *options,
        ],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def wait_for_lines(folder: Path, count: int) -> Path:
    """The record, once it has so many whole lines."""
    for _ in range(1500):
        for path in (folder / "out").glob("*.jsonl"):
            if path.read_text("utf-8").count("\n") >= count:
                return path
        time.sleep(0.02)
    raise AssertionError("the run writes no record")


def child_of(run: subprocess.Popen[bytes]) -> int:
    for _ in range(500):
        if found := measuring_children(run.pid):
            return found[0]
        time.sleep(0.02)
    raise AssertionError("nothing measures")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_valid_record_and_no_process(
    tmp_path: Path, ending: signal.Signals
) -> None:
    run = start_suites(tmp_path, *HANGING, "--junitxml=j.xml")
    path = wait_for_lines(tmp_path, 3)
    child = child_of(run)
    run.send_signal(ending)
    assert run.wait(60) == 2
    assert gone(child)
    record = read(path)
    assert record.broken is None
    assert record.end is not None
    assert record.end.exit_status == 2
    assert record.end.judged >= 1
    assert (tmp_path / "j.xml").exists()


def test_a_killed_run_leaves_no_process(tmp_path: Path) -> None:
    run = start_suites(tmp_path, *HANGING)
    path = wait_for_lines(tmp_path, 3)
    child = child_of(run)
    run.kill()
    run.wait(60)
    assert gone(child)
    record = read(path)
    assert record.end is None
    assert record.cells


def test_a_disk_that_fills_is_told_and_the_run_goes_on(
    pytester: pytest.Pytester, record_file: Callable[[], Path]
) -> None:
    pytester.makepyfile(
        full="""
        import resource

        def pytest_runtest_setup(item):
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        """
    )
    result = pytester.runpytest_subprocess(
        "-p", "full", "-p", "no:cacheprovider", "--pyargs", "pytest_gpuxfer.suites",
        "--gpuxfer-hw=a100-nvlink", "--gpuxfer-sim=dgx-a100", "--gpuxfer-out=out",
        "-k", "machine and (gpu0 or gpu1)",
    )  # fmt: skip
    assert result.ret == 3
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"passed", "deselected"}
    result.stdout.fnmatch_lines(["record: *.jsonl ends before the run does: *", "*exit status 3"])
    record = read(record_file())
    assert record.end is None
    assert 0 < len(record.cells) < outcomes["passed"]


def real_run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(
        "--pyargs", "pytest_gpuxfer.suites", "--gpuxfer-hw=a100-nvlink", *options
    )


def test_a_second_run_on_a_host_is_refused_in_one_line(pytester: pytest.Pytester) -> None:
    held = HostLock(pytester.path)
    result = real_run(pytester, f"--gpuxfer-lock={pytester.path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = (line for line in result.errlines if line)
    assert f"another run measures on this host: pid {os.getpid()}, since 20" in line
    held.release()
    HostLock(pytester.path).release()


def test_a_run_that_judges_nothing_and_a_simulated_one_take_no_lock(
    pytester: pytest.Pytester, suites: Run
) -> None:
    held = HostLock(pytester.path)
    lock = f"--gpuxfer-lock={pytester.path}"
    assert real_run(pytester, lock, "--collect-only").ret != pytest.ExitCode.USAGE_ERROR
    assert suites(lock, "-k", "machine.nvlink/gpu0").ret == 0
    held.release()


def test_a_run_gives_the_lock_back(pytester: pytest.Pytester) -> None:
    real_run(pytester, f"--gpuxfer-lock={pytester.path}", "-k", "no_such_test")
    HostLock(pytester.path).release()


def test_a_dead_process_holds_no_lock(tmp_path: Path) -> None:
    program = """if True:
        import sys, time, pathlib
        from pytest_gpuxfer.lock import HostLock
        lock = HostLock(pathlib.Path(sys.argv[1]))
        print("held", flush=True)
        time.sleep(60)
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    with holder.stdout:
        holder.stdout.readline()
    with pytest.raises(LockError, match=f"pid {holder.pid}, since "):
        HostLock(tmp_path)
    holder.kill()
    holder.wait(60)
    HostLock(tmp_path).release()


def test_a_lock_of_another_user_may_be_taken_by_all(tmp_path: Path) -> None:
    HostLock(tmp_path).release()
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o666


def test_a_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "gpuxfer.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(LockError, match="--gpuxfer-lock=DIR"):
        HostLock(tmp_path)
    assert not (tmp_path / "precious").exists()
