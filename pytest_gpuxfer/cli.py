"""`gpuxfer ...`: what needs no test run. The operator's mistakes are one line and status 4."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from pytest_gpuxfer import __version__
from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import CellError, Place, parse_place

OK, RED, OPERATOR, UNDECIDED = 0, 1, 4, 6  # as the plugin's exit status
_FAULT_HELP: Final = "KIND[:WHERE], may be given again; see `gpuxfer faults`"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(OPERATOR, f"{self.prog}: {message}\n")


class _MistakeError(Exception):
    """What the operator asked for cannot be; the message is one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["watch"]:  # what follows is another program's
        from pytest_gpuxfer.audit.watch import main as watch

        return watch(words[1:])
    options = _parser().parse_args(words)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        status = run(options)
        sys.stdout.flush()
    except _MistakeError as error:
        print(f"gpuxfer {options.command}: {error}", file=sys.stderr)
        return OPERATOR
    except BrokenPipeError:
        # The reader, as `head` does, had enough; nor may Python flush to it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE  # and never green: `judge` may have had more to say
    return status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gpuxfer", description="Which way bytes travel between GPUs.")
    parser.add_argument("--version", action="version", version=f"pytest-gpuxfer {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> _Parser:
        added: _Parser = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    topo = command("topo", "Print the machine as it is found.", _topo)
    topo.add_argument("--sim", metavar="MACHINE", help="a simulated machine instead of this one")
    topo.add_argument("--fault", action="append", default=[], metavar="FAULT", help=_FAULT_HELP)
    guess = command(
        "predict", "Rank the methods by the time of a transfer, from a record.", _predict
    )
    guess.add_argument("record", type=Path, metavar="RECORD")
    guess.add_argument("--size", required=True, metavar="SIZE", help="like 300MiB")
    guess.add_argument("--pair", required=True, metavar="A,B", help="from gpuA to gpuB, like 0,1")
    again = command("judge", "Judge a record's measurements again, by this version.", _judge)
    again.add_argument("record", type=Path, metavar="RECORD")
    check = command("lint", "Hold a profile against physics and against every check.", _lint)
    check.add_argument("profile", metavar="PROFILE", help="a shipped name, or a file's path")
    command("faults", "List what can be broken in a simulated machine.", _faults)
    command("machines", "List the simulated machines.", _machines)
    commands.add_parser("watch", help="Run a program and tell which way its bytes go: -- COMMAND")
    return parser


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        # A record's words may be anyone's: none of their control codes reaches the terminal.
        print("".join(c if c.isprintable() else "?" for c in line))


def _topo(options: argparse.Namespace) -> int:
    from pytest_gpuxfer.hardware import HardwareError, open_hardware, open_simulated
    from pytest_gpuxfer.hardware.discovery import discover
    from pytest_gpuxfer.hardware.driver import DriverError
    from pytest_gpuxfer.hardware.simulated import SimulationError
    from pytest_gpuxfer.report.topology import topology_lines

    if options.fault and not options.sim:
        raise _MistakeError("--fault breaks simulated machines only; add --sim=MACHINE")
    try:
        if options.sim:
            hardware = open_simulated(options.sim, tuple(options.fault))
        else:
            hardware = open_hardware()
        _print(topology_lines(discover(hardware)))
    except SimulationError as error:
        raise _MistakeError(str(error)) from None
    except HardwareError as error:
        print(f"gpuxfer topo: {error.message}; {error.remedy}", file=sys.stderr)
        return UNDECIDED
    except DriverError as error:
        print(f"gpuxfer topo: {error}", file=sys.stderr)
        return UNDECIDED
    return OK


def _predict(options: argparse.Namespace) -> int:
    from pytest_gpuxfer.predict import PredictionError, forecast_lines, predict
    from pytest_gpuxfer.report.records import RecordError, read

    try:
        size_bytes = units.parse_size(options.size)
        record = read(options.record)
        forecast = predict(record, _pair(options.pair), size_bytes)
    except (units.UnitError, CellError, RecordError, PredictionError) as error:
        raise _MistakeError(str(error)) from None
    _print(forecast_lines(forecast, record))
    return OK


def _pair(text: str) -> Place:
    """The pair of "0,1" or "gpu0-gpu1". Raises CellError."""
    parts = text.split(",")
    name = "-".join(f"gpu{part.strip()}" for part in parts) if len(parts) == 2 else text
    try:
        place = parse_place(name)
    except CellError:
        place = Place.all()
    if not place.is_pair or len(set(place.gpus)) == 1:
        raise CellError(f"{text!r} is no pair of two GPUs; write it like 0,1")
    return place


def _judge(options: argparse.Namespace) -> int:
    import msgspec

    from pytest_gpuxfer.report.failure import failure_lines
    from pytest_gpuxfer.report.records import RecordError, read
    from pytest_gpuxfer.report.terminal import header_lines, summary_lines

    try:
        record = read(options.record)
    except RecordError as error:
        raise _MistakeError(str(error)) from None
    cells = tuple(
        msgspec.structs.replace(line, verdict=line.judge_again()) for line in record.cells
    )
    _print(header_lines(record.header))
    for line in cells:
        if line.selected and line.verdict.outcome.red:
            _print(failure_lines(line))
    _print(
        f"{now.cell}: recorded as {was.verdict.outcome}, judged {now.verdict.outcome} now"
        for was, now in zip(record.cells, cells, strict=True)
        if was.verdict.outcome is not now.verdict.outcome
    )
    _print(summary_lines(replace(record, cells=cells)))
    if record.end is None:
        print(f"NOT CLOSED: {record.broken or 'the run did not end in order'}")
    judged = [line.verdict.outcome for line in cells if line.selected]
    if any(outcome.red and not outcome.undecided for outcome in judged):
        return RED
    complete = record.end is not None and record.end.judged == record.end.selected
    return OK if judged and complete and not any(o.red for o in judged) else UNDECIDED


def _lint(options: argparse.Namespace) -> int:
    from pytest_gpuxfer import profiles
    from pytest_gpuxfer.plan import registered_checks

    try:
        profile = profiles.load(options.profile)
    except profiles.ProfileError as error:
        raise _MistakeError(str(error)) from None
    checks = registered_checks()
    if lines := profiles.uncovered(profile, checks):
        _print(lines)
        return OPERATOR
    count = len(profile.limits)
    print(f"{profile.file}: {count} limits, at least one for each of {len(checks)} checks")
    return OK


def _faults(options: argparse.Namespace) -> int:
    from pytest_gpuxfer.hardware.simulated import fault_lines

    del options
    _print(fault_lines())
    return OK


def _machines(options: argparse.Namespace) -> int:
    from pytest_gpuxfer.hardware.simulated import machine_names

    del options
    _print(machine_names())
    return OK
