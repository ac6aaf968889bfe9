"""The sampler's process and `watch`, over the stand-in for NVML."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.abi.conftest import Run

ALL = 0xFFFFFFFF
COUNTERS = f"138:{ALL}:0:3:{{sent}} 139:{ALL}:0:3:{{received}} 197:0:0:1:7 198:0:0:1:7"
STILL = COUNTERS.format(sent=5, received=5)

AUDIT = """
import os, signal, subprocess, sys, time
from functools import partial
from pathlib import Path
from pytest_gpuxfer.audit import path_audit, sampler
from pytest_gpuxfer.audit.sampler import Sampler

def gone(pid):  # ended, if not yet waited for
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False
"""
WATCH = """
import sys
from pytest_gpuxfer.audit.watch import main
status = main(sys.argv[1:])
print("status", status)
"""
# Runs `watch` in a process of its own, so that it may be sent signals.
WATCHED = (
    AUDIT
    + """
def watch(*command):
    call = "import sys; from pytest_gpuxfer.audit.watch import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen([sys.executable, "-c", call, "--", *command],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
"""
)
WAITING = "trap 'exit 5' TERM; trap 'exit 6' INT; echo $$; while :; do sleep 0.02; done"


def _watch(*arguments: str) -> str:
    return f"import sys\nsys.argv[1:] = {list(arguments)!r}\nsys.stderr = sys.stdout\n{WATCH}"


def test_bytes_of_a_block_are_counted_by_another_process(under_nvml: Run, tmp_path: Path) -> None:
    counters = tmp_path / "counters"
    counters.write_text(COUNTERS.format(sent=2**40, received=9))
    after = COUNTERS.format(sent=2**40 + 3, received=11)
    script = AUDIT + (
        "with path_audit() as traffic:\n"
        f"    Path({str(tmp_path / 'new')!r}).write_text({after!r})\n"
        f"    os.rename({str(tmp_path / 'new')!r}, {str(counters)!r})\n"
        "gpu = traffic.gpu(0)\n"
        "print(gpu.pci_address, gpu.nvlink_sent_bytes, gpu.nvlink_received_bytes)\n"
    )
    assert under_nvml(script, STUB_FILE=str(counters)) == "0000:1b:00.0 3072 2048"


def test_readings_too_far_apart_make_pcie_bytes_uncertain(under_nvml: Run) -> None:
    script = AUDIT + (
        "with path_audit(partial(Sampler, 60 * 10**9)) as traffic:\n"
        "    time.sleep(0.1)\n"
        "print(traffic.gpu(0).pcie_sent_bytes, traffic.gpu(0).nvlink_sent_bytes)\n"
    )
    output = under_nvml(script, STUB_FIELDS=STILL)
    assert output.startswith("unknown (sampling gap of 1")
    assert "the counter may wrap within 34 ms: between 0 B and " in output
    assert output.endswith(") 0")


def test_a_gpu_known_to_have_no_nvlink_moved_nothing_over_it(under_nvml: Run) -> None:
    script = AUDIT + (
        "with path_audit() as traffic: pass\n"
        "print(traffic.gpu(0).nvlink_sent_bytes, traffic.gpu(0).pcie_sent_bytes)\n"
    )
    assert under_nvml(script) == "0 unknown (NVML: Not Supported)"


@pytest.mark.parametrize(
    ("blow", "reason"),
    [
        ("SIGKILL", "the sampler ended with status -9"),
        ("SIGSTOP", "the sampler did not answer within 0 s, and was killed"),
    ],
)
def test_a_lost_sampler_is_unknown_and_no_hang(under_nvml: Run, blow: str, reason: str) -> None:
    script = AUDIT + (
        "sampler._ANSWER_S = 0.2\n"
        "counting = Sampler()\n"
        "with path_audit(lambda: counting) as traffic:\n"
        f"    os.kill(counting.pid, signal.{blow})\n"
        "for gpu in traffic.gpus: print(gpu.name, gpu.nvlink_sent_bytes, gpu.pcie_sent_bytes)\n"
        "print(gone(counting.pid))\n"
    )
    output = under_nvml(script, STUB_FIELDS=STILL)
    assert output.splitlines() == [f"Stub unknown ({reason}) unknown ({reason})", "True"]


def test_a_block_that_raises_is_counted_and_leaves_no_process(under_nvml: Run) -> None:
    script = AUDIT + (
        "counting = Sampler()\n"
        "try:\n"
        "    with path_audit(lambda: counting) as traffic: raise KeyboardInterrupt\n"
        "except KeyboardInterrupt:\n"
        "    print(traffic.gpu(0).nvlink_sent_bytes, gone(counting.pid))\n"
    )
    assert under_nvml(script, STUB_FIELDS=STILL) == "0 True"


def test_the_sampler_ends_with_the_process_that_asked(under_nvml: Run) -> None:
    """Even while it is stopped, and so sees no end of its socket."""
    script = AUDIT + (
        "call = '''\nfrom pytest_gpuxfer.audit.sampler import Sampler\nimport os, signal\n"
        "counting = Sampler()\nos.kill(counting.pid, signal.SIGSTOP)\n"
        "print(counting.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n'''\n"
        "done = subprocess.run([sys.executable, '-c', call], stdout=subprocess.PIPE)\n"
        "print(done.returncode, gone(int(done.stdout)))\n"
    )
    assert under_nvml(script) == "-9 True"


def test_without_nvml_there_is_a_reason(without_libraries: Run) -> None:
    output = without_libraries(_watch("--", "echo", "ran"))
    if "ran" in output.splitlines():
        pytest.skip("this machine has a driver")
    assert output.startswith("gpuxfer watch: no traffic can be counted: NVML does not start")
    assert output.endswith("echo was not run\nstatus 6")


def test_watch_ends_as_its_program_and_says_what_it_moved(under_nvml: Run) -> None:
    lines = under_nvml(_watch("--", "sh", "-c", "exit 7"), STUB_FIELDS=STILL).splitlines()
    assert lines[0].startswith("gpuxfer watch: sh ended with status 7 after ")
    assert lines[2].split()[:7] == ["gpu0", "0000:1b:00.0", "Stub", "0", "B", "0", "B"]
    assert lines[-1] == "status 7"


@pytest.mark.parametrize(
    ("arguments", "words", "status"),
    [
        (("--", "sh", "-c", "kill -9 $$"), "sh was ended by signal 9 after", 137),
        (("--", "no-such-program"), "no-such-program: No such file or directory", 127),
        (("--", "/"), "/: Permission denied", 126),
    ],
    ids=["signal", "missing", "no program"],
)
def test_status_is_that_of_a_shell(
    under_nvml: Run, arguments: tuple[str, ...], words: str, status: int
) -> None:
    output = under_nvml(_watch(*arguments))
    assert f"gpuxfer watch: {words}" in output
    assert output.endswith(f"status {status}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("echo", "ran"), "unrecognized arguments: echo ran"),
        ((), "no program is named; write it after --"),
        (("--interval", "10", "--", "echo", "ran"), "the unit is missing"),
        (("--interval=1us", "--", "echo", "ran"), "1us is too short"),
    ],
    ids=["no dashes", "nothing", "no unit", "too short"],
)
def test_the_operators_mistakes_are_one_line_and_status_4(
    under_nvml: Run, arguments: tuple[str, ...], words: str
) -> None:
    script = "import atexit\n" + _watch(*arguments)
    script = script.replace("status = main(sys.argv[1:])", "try: status = main(sys.argv[1:])\n"
                            "except SystemExit as exit: status = exit.code")  # fmt: skip
    line, status = under_nvml(script).splitlines()
    assert words in line
    assert status == "status 4"


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 5), ("SIGINT", 6)])
def test_signals_reach_the_program(under_nvml: Run, name: str, status: int) -> None:
    script = WATCHED + (
        f"watching = watch('sh', '-c', {WAITING!r})\n"
        "pid = watching.stdout.readline()\n"
        f"watching.send_signal(signal.{name})\n"
        "errors = watching.communicate(timeout=20)[1]\n"
        "print(watching.returncode, gone(int(pid)), 'sh ended with status' in errors)\n"
    )
    assert under_nvml(script, STUB_FIELDS=STILL) == f"{status} True True"


def test_a_terminals_interrupt_reaches_the_program_once(under_nvml: Run) -> None:
    """The terminal sends it to both; handing it on as well would be a second one."""
    program = (
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {2})\n"
        "print('ready', flush=True)\n"
        "signal.sigtimedwait({2}, 20)\n"
        "sys.exit(10 if signal.sigtimedwait({2}, 1) is None else 20)\n"
    )
    script = (
        "import os, pty, subprocess, sys, time\n"
        "from pytest_gpuxfer.audit.watch import main\n"
        # One handed on at once could merge with the terminal's own, and so hide.
        "hand_on = subprocess.Popen.send_signal\n"
        "subprocess.Popen.send_signal = lambda *to: (time.sleep(0.1), hand_on(*to))\n"
        "pid, terminal = pty.fork()\n"
        f"if not pid: os._exit(main(['--', sys.executable, '-c', {program!r}]))\n"
        "said = b''\n"
        "while b'ready' not in said: said += os.read(terminal, 1000)\n"
        "os.write(terminal, b'\\x03')\n"
        "while b'ended with' not in said: said += os.read(terminal, 1000)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert under_nvml(script, STUB_FIELDS=STILL) == "10"


def test_a_killed_watch_leaves_no_program(under_nvml: Run) -> None:
    script = WATCHED + (
        f"watching = watch('sh', '-c', {WAITING!r})\n"
        "pid = watching.stdout.readline()\n"
        "watching.kill()\n"
        "watching.communicate(timeout=20)\n"
        "print(gone(int(pid)))\n"
    )
    assert under_nvml(script, STUB_FIELDS=STILL) == "True"


def test_live_lines_come_while_it_runs(under_nvml: Run) -> None:
    output = under_nvml(_watch("--live", "--", "sleep", "1.5"), STUB_FIELDS=STILL)
    assert output.splitlines()[0].startswith("gpuxfer watch: 1.0")
