"""Pytest's side of one run: the cells selected, letters, the exit status. No rules of judgement."""

from __future__ import annotations

import signal
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pytest

from pytest_gpuxfer.lock import HostLock, LockError
from pytest_gpuxfer.model.expectation import Expectation
from pytest_gpuxfer.model.measurement import Failure
from pytest_gpuxfer.model.verdict import Outcome
from pytest_gpuxfer.report import junit, terminal
from pytest_gpuxfer.report.failure import failure_lines
from pytest_gpuxfer.report.records import CellLine
from pytest_gpuxfer.run import OperatorError, Run, open_run
from pytest_gpuxfer.settings import Settings, read_settings

try:
    # The one private import: no public name gives a test case a class of ours.
    from _pytest.junitxml import xml_key
except ImportError:
    xml_key = None  # type: ignore[assignment]

UNDECIDED_STATUS: Final = 6  # red only by what could not be decided
FULL_BLOCKS: Final = 10  # red tests told at length; the terminal gives the others one line each
CELL: Final = "cell"  # the parameter that holds an expectation
GATE: Final = "gpuxfer_gate"  # the parameter that holds a gate of the self-test
_VERDICT: Final = "verdict"  # the property that holds an outcome


class Red(pytest.fail.Exception):  # type: ignore[name-defined, misc]
    """A test that is red for a reason of ours, told in our words, without a traceback."""

    def __init__(self, brief: str, text: str | None = None, *, undecided: bool = True) -> None:
        super().__init__(text or brief, pytrace=False)
        self.brief, self.text, self.undecided = brief, text or brief, undecided


@dataclass(frozen=True, slots=True)
class _Crash:
    """The one line that pytest's short summary and JUnit's message print."""

    message: str

    def __str__(self) -> str:
        return self.message


class _Lines(Protocol):
    """What pytest's terminal writer is to us; it has no public name."""

    def line(self, text: str) -> None: ...


class _RedText:
    """What pytest prints for a red test; the terminal gets one line once there were many."""

    def __init__(self, error: Red, *, brief: bool) -> None:
        self.reprcrash = _Crash(error.brief)
        self._text, self._brief = error.text, brief

    def toterminal(self, tw: _Lines) -> None:
        for line in (self.reprcrash.message if self._brief else self._text).splitlines():
            tw.line(line)

    def __str__(self) -> str:
        return self._text


def failure_text(failure: Failure) -> str:
    """Why the machine could not be measured and what to do, in one line."""
    remedy = f"; {failure.remedy}" if failure.remedy else ""
    return f"{failure.kind}: {failure.message}{remedy}"


def red_for(line: CellLine) -> Red:
    """The error for a cell that is not as it should be."""
    text = "\n".join(failure_lines(line))
    return Red(line.verdict.words, text, undecided=line.verdict.outcome.undecided)


def start(config: pytest.Config, settings: Settings) -> GpuxferSession:
    """Open a run that options ask for, before anything is collected. Raises UsageError."""
    if settings.distributed:
        raise pytest.UsageError(
            "pytest-xdist's -n would measure several transfers at once; run gpuxfer without -n"
        )
    session = _register(config, settings)
    try:
        if settings.judges:
            session.guard()
        session.open()
    except (LockError, OperatorError) as error:
        raise pytest.UsageError(str(error)) from None
    return session


def session_of(config: pytest.Config) -> GpuxferSession:
    """The session object of this pytest run; made when a fixture of ours is first used."""
    if _SESSION in config.stash:
        return config.stash[_SESSION]
    return _register(config, read_settings(config))


def _register(config: pytest.Config, settings: Settings) -> GpuxferSession:
    session = config.stash[_SESSION] = GpuxferSession(config, settings)
    config.pluginmanager.register(session, "gpuxfer-session")
    return session


def expectation_of(item: pytest.Item) -> Expectation | None:
    """The expectation that one of the suites' items judges; None for every other item."""
    callspec = getattr(item, "callspec", None)
    found = callspec.params.get(CELL) if callspec else None
    return found if isinstance(found, Expectation) else None


class GpuxferSession:
    """Pytest's hooks around one `Run`."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.settings = settings
        self._config = config
        self._run: Run | None = None
        self._undecided = 0  # reports that are red by what could not be decided
        self._red_blocks = 0
        self._status: int | pytest.ExitCode = pytest.ExitCode.INTERNAL_ERROR  # until all is done
        self._lock: HostLock | None = None
        self._sigterm: Any = None  # what SIGTERM did before

    def guard(self) -> None:
        """Keep other runs of this host out, and end in order on SIGTERM. Raises LockError."""
        if self.settings.lock is not None:
            self._lock = HostLock(self.settings.lock)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._sigterm = signal.signal(signal.SIGTERM, signal.default_int_handler)

    def pytest_unconfigure(self) -> None:
        """Put back what `guard` took."""
        if self._lock is not None:
            self._lock.release()
        if self._sigterm is not None:
            signal.signal(signal.SIGTERM, self._sigterm)

    def open(self) -> Run:
        """The run; its machine is opened at the first call. Raises OperatorError."""
        if self._run is None:
            self._run = open_run(self.settings)
        return self._run

    def judge(self, expectation: Expectation) -> CellLine:
        """The verdict on a cell that this run is about."""
        run = self.open()
        run.selected.add(expectation.cell.id)
        return run.judge(expectation)

    def settle(self, line: CellLine) -> None:
        """Raise what a verdict means to pytest: a skip, or Red."""
        outcome = line.verdict.outcome
        if outcome in (Outcome.NOT_EXPECTED, Outcome.WAIVED):
            pytest.skip(f"{outcome}: {line.verdict.words}")
        if outcome.red or (outcome is Outcome.DEGRADED and self.settings.degraded_fails):
            raise red_for(line)

    def pytest_sessionstart(self) -> None:
        """Say in JUnit XML that nothing in it is of a real machine."""
        xml = self._config.stash.get(xml_key, None) if xml_key else None
        if xml is not None and self.settings.simulated is not None:
            machine = " ".join((self.settings.simulated, *self.settings.faults))
            xml.add_global_property("SIMULATED", machine)

    def pytest_report_header(self) -> list[str]:
        if self._run is None:
            return []
        return [f"gpuxfer: {line}" for line in terminal.header_lines(self._run.header)]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put our items, and no others, into the plan's order: peer access off comes first.

        A self-test is of gates alone.
        """
        if self._run is None:
            return
        if self.settings.selftest:
            others = [item for item in items if _gate_of(item) is None]
            self._config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if _gate_of(item) is not None]
        order = {wanted.cell.id: number for number, wanted in enumerate(self._run.plan)}
        ours = [(number, item) for number, item in enumerate(items) if expectation_of(item)]
        by_plan = sorted((item for _, item in ours), key=lambda item: order[_cell_id(item)])
        for (number, _), item in zip(ours, by_plan, strict=True):
            items[number] = item

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self._run is not None and self.settings.judges:
            self._run.begin(_cell_id(item) for item in session.items if expectation_of(item))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Name the item's test case in JUnit XML after its cell, or its gate."""
        xml = self._config.stash.get(xml_key, None) if xml_key else None
        wanted = expectation_of(item)
        gate = _gate_of(item) if self.settings.selftest else None
        if xml is not None and (wanted is not None or gate is not None):
            case = xml.node_reporter(item.nodeid)
            method = wanted.cell.check.method if wanted else "selftest"
            case.add_attribute("classname", junit.classname(self.open().header, method))
            case.add_attribute("name", wanted.cell.id if wanted else gate)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        error = call.excinfo.value if call.excinfo else None
        if isinstance(error, Red) and report.failed:
            self._undecided += error.undecided
            self._red_blocks += 1
            brief = self._red_blocks > FULL_BLOCKS
            report.longrepr = _RedText(error, brief=brief)  # type: ignore[assignment]
        return report

    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, str] | None:
        """A letter of their own for degraded and inconclusive cells."""
        outcome = dict(getattr(report, "user_properties", ())).get(_VERDICT)
        if outcome == Outcome.DEGRADED and report.when == "call" and report.passed:
            return "degraded", "d", "DEGRADED"
        if outcome == Outcome.INCONCLUSIVE and report.when == "setup" and report.failed:
            return "error", "I", "INCONCLUSIVE"
        return None

    @pytest.hookimpl(trylast=True)  # after Ctrl-C, pytest's own tears the fixtures down
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.settings.judges:
            return
        status = self._exit_status(session)
        if self._run is not None:
            self._run.finish(int(status))
            green_or_undecided = status in (pytest.ExitCode.OK, UNDECIDED_STATUS)
            if self._run.record_error is not None and green_or_undecided:
                status = pytest.ExitCode.INTERNAL_ERROR
        self._status = session.exitstatus = status

    def _exit_status(self, session: pytest.Session) -> int | pytest.ExitCode:
        """Never 0 where something selected was not judged, or nothing was."""
        status = session.exitstatus
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return status
        run, red = self._run, self._red_outcomes()
        # The verdicts count too: a test that was marked xfail does not make a machine green.
        if session.testsfailed > self._undecided or any(not found.undecided for found in red):
            return pytest.ExitCode.TESTS_FAILED
        idle = self.settings.hardware is not None and run is not None and not run.measured_any
        if self._undecided or red or idle or (run is not None and run.unjudged):
            return UNDECIDED_STATUS
        return status

    def _red_outcomes(self) -> set[Outcome]:
        lines = self._run.lines.values() if self._run else ()
        outcomes = {line.verdict.outcome for line in lines if line.selected}
        return {outcome for outcome in outcomes if outcome.red}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        run = self._run
        if run is None or not self.settings.judges:
            return
        terminalreporter.section("gpuxfer SIMULATED" if run.header.simulated else "gpuxfer")
        if self.settings.hardware is None:
            return
        say = terminal.selftest_lines if self.settings.selftest else terminal.summary_lines
        *lines, result = say(run.record)
        for line in lines:
            terminalreporter.write_line(line)
        if run.record_error is not None:
            terminalreporter.write_line(f"record: {run.record_error}", red=True)
        elif run.record_path is not None:
            terminalreporter.write_line(f"record: {run.record_path}")
        green = self._status == pytest.ExitCode.OK
        terminalreporter.write_line(
            f"{result}; exit status {int(self._status)}", bold=True, green=green, red=not green
        )


_SESSION: Final = pytest.StashKey[GpuxferSession]()


def _gate_of(item: pytest.Item) -> str | None:
    """The gate of the self-test that an item tries; None for every other item."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.id) if callspec and GATE in callspec.params else None


def _cell_id(item: pytest.Item) -> str:
    wanted = expectation_of(item)
    assert wanted is not None
    return wanted.cell.id
