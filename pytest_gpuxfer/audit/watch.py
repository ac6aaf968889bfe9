"""`gpuxfer watch -- COMMAND`: which way a program's bytes go."""

from __future__ import annotations

import argparse
import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final, NoReturn

from pytest_gpuxfer.audit.sampler import INTERVAL_NS, Sampler, SamplerError
from pytest_gpuxfer.audit.summary import live_line, table
from pytest_gpuxfer.model.units import (
    NS_PER_MS,
    NS_PER_S,
    UnitError,
    format_duration,
    parse_duration,
)

_OPERATOR_STATUS: Final = 4
_NOT_COUNTED_STATUS: Final = 6
_NOT_RUN_STATUS: Final = {FileNotFoundError: 127, PermissionError: 126}  # as a shell has them
_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_WAITED: Final = frozenset({*_FORWARDED, signal.SIGCHLD})
_FROM_TERMINAL: Final = 0x80  # SI_KERNEL
_LIVE_NS: Final = 10**9
_LEAST_INTERVAL_NS: Final = NS_PER_MS
_PR_SET_PDEATHSIG: Final = 1


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(_OPERATOR_STATUS, f"{self.prog}: {message}\n")


def _interval(text: str) -> int:
    try:
        interval_ns = int(parse_duration(text))
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if interval_ns < _LEAST_INTERVAL_NS:
        raise argparse.ArgumentTypeError(f"{text} is too short; 1 ms is the shortest")
    return interval_ns


def main(argv: Sequence[str]) -> int:
    """Run a program and tell what each GPU moved meanwhile; its exit status, 128 + N by signal N.

    All of ours goes to stderr. Status 4 for the operator's mistake; 6 where nothing can be counted,
    and then the program is not run.
    """
    split = list(argv).index("--") if "--" in argv else len(argv)
    options, command = argv[:split], list(argv[split + 1 :])
    parser = _Parser(
        prog="gpuxfer watch",
        usage="%(prog)s [--interval 10ms] [--live] -- COMMAND [ARGUMENT ...]",
        description="Run a program and tell how many bytes each GPU moved over NVLink and PCIe.",
    )
    parser.add_argument(
        "--interval", type=_interval, default=INTERVAL_NS, help="between two readings; 10ms"
    )
    parser.add_argument(
        "--live", action="store_true", help="a line a second, also where stderr is no terminal"
    )
    given = parser.parse_args(options)
    if not command:
        parser.error("no program is named; write it after --, as in gpuxfer watch -- ./train.py")
    try:
        sampler = Sampler(given.interval)
    except SamplerError as error:
        _say(f"{error}; {command[0]} was not run")
        return _NOT_COUNTED_STATUS
    try:
        return _watch(command, sampler, given.interval, given.live or sys.stderr.isatty())
    finally:
        sampler.close()


def _watch(command: Sequence[str], sampler: Sampler, interval_ns: int, live: bool) -> int:
    started_ns = time.monotonic_ns()
    # Blocked and waited for, so that none is lost between two looks at the program.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    try:
        try:
            program = _start(command, mask)
        except OSError as error:
            _say(f"{command[0]}: {error.strerror}")
            return _NOT_RUN_STATUS.get(type(error), 126)
        _attend(program, sampler, started_ns, live)
        moved = sampler.report()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    status = program.returncode
    ended = f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
    _say(f"{command[0]} {ended} after {format_duration(time.monotonic_ns() - started_ns)}")
    for line in table(moved, interval_ns):
        print(line, file=sys.stderr)
    return status if status >= 0 else 128 - status


def _start(command: Sequence[str], mask: set[int]) -> subprocess.Popen[bytes]:
    """The program, in our process group: the terminal stays its own."""
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # Should we be killed: launchers end their workers on SIGTERM, and could not on SIGKILL.
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return subprocess.Popen(command, preexec_fn=prepare)


def _attend(
    program: subprocess.Popen[bytes], sampler: Sampler, started_ns: int, live: bool
) -> None:
    """Until the program ends: hand on signals, and say what moves."""
    shown, shown_ns = sampler.report(), time.monotonic_ns()
    while program.poll() is None:
        left_ns = max(0, shown_ns + _LIVE_NS - time.monotonic_ns())
        caught = signal.sigtimedwait(_WAITED, left_ns / NS_PER_S)
        if caught is not None:
            # What the terminal sends went to its whole process group: the program has it.
            if caught.si_signo in _FORWARDED and caught.si_code != _FROM_TERMINAL:
                program.send_signal(caught.si_signo)
            continue
        now, now_ns = sampler.report(), time.monotonic_ns()
        if live:
            _say(live_line(now_ns - started_ns, shown, now, now_ns - shown_ns))
        shown, shown_ns = now, now_ns
    while signal.sigtimedwait(_WAITED, 0) is not None:
        pass  # what came as it ended must not end us before the summary


def _say(text: str) -> None:
    print(f"gpuxfer watch: {text}", file=sys.stderr, flush=True)
