"""What the fixtures hand to a test: copies to measure, limits to hold them against, peer access."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_gpuxfer.hardware.driver import DriverError
from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import Cell, Check, Initiator, Place
from pytest_gpuxfer.model.expectation import Expectation
from pytest_gpuxfer.model.machine import Gpu, Machine
from pytest_gpuxfer.model.measurement import AccessDirection, Measurement
from pytest_gpuxfer.model.verdict import Outcome
from pytest_gpuxfer.parameters import GpuPair
from pytest_gpuxfer.report import junit
from pytest_gpuxfer.report.records import CellLine
from pytest_gpuxfer.session import GpuxferSession, Red, failure_text
from pytest_gpuxfer.transfer.arena import CannotAllocateError
from pytest_gpuxfer.transfer.bench import Bench
from pytest_gpuxfer.transfer.waiting import HangError

_DEFAULT_SIZE = "512 MiB"


def machine_of(session: GpuxferSession) -> Machine:
    """The machine. Raises Red where it could not be opened."""
    run = session.open()
    if run.failure is not None:
        raise Red(failure_text(run.failure))
    assert run.machine is not None
    return run.machine


def bench_of(session: GpuxferSession) -> Bench:
    """What measures and allocates. Raises Red without a GPU, and under pytest-xdist."""
    if session.settings.distributed:
        raise Red("pytest-xdist's -n would measure several transfers at once; run without -n")
    if not machine_of(session).gpus:
        raise Red("no GPU is visible; see `nvidia-smi -L`")
    return session.open().bench


@contextmanager
def machine_faults() -> Iterator[None]:
    """Tell a fault of the machine in one line, as Red."""
    try:
        yield
    except (CannotAllocateError, DriverError, HangError) as error:
        raise Red(str(error)) from None


def read_size(text: str) -> int:
    """Bytes of a size that a test gives. Raises Red for what is no size."""
    try:
        return units.parse_size(str(text))  # a bare number is told that its unit is missing
    except units.UnitError as error:
        raise Red(str(error), undecided=False) from None


def read_initiator(text: str) -> Initiator:
    """Who starts a copy, as a test says it. Raises Red for another word."""
    try:
        return Initiator(text)
    except ValueError:
        known = ", ".join(Initiator)
        raise Red(f"{text!r} is no initiator; known: {known}", undecided=False) from None


def index_of(gpu: Gpu) -> int:
    """The index of a test's `gpu`. Raises Red where a project's own fixture gives no GPU."""
    if not isinstance(gpu, Gpu):
        words = f"this test's own gpu fixture gives {gpu!r}: device_buffer cannot tell which"
        raise Red(f"{words} GPU that is; return one of topology.gpus", undecided=False)
    return gpu.index


class JudgedCell:
    """A cell of the suites, measured and decided; what is left is to say it."""

    def __init__(self, session: GpuxferSession, line: CellLine) -> None:
        self._session = session
        self.line = line

    def require(self) -> None:
        """Fail the test where the machine is not as its profile says."""
        self._session.settle(self.line)


def judge_in_setup(
    session: GpuxferSession, expectation: Expectation, item: pytest.Item
) -> JudgedCell:
    """Measure and judge a cell, and note it on the item.

    What is undecided, or not to be measured, is raised here: pytest and JUnit tell an error in
    the setup from a failure in the call.
    """
    line = session.judge(expectation)
    item.user_properties.extend(junit.properties(session.open().header, line))
    outcome = line.verdict.outcome
    if outcome.undecided or outcome in (Outcome.NOT_EXPECTED, Outcome.WAIVED):
        session.settle(line)
    return JudgedCell(session, line)


class Transfer:
    """Copies, each measured once a run. What cannot be measured fails the test with the reason."""

    def __init__(self, session: GpuxferSession) -> None:
        self._session = session

    def peer_copy(
        self, gpu_pair: GpuPair, size: str = _DEFAULT_SIZE, initiator: str = "write"
    ) -> Measurement:
        """cuMemcpyPeerAsync; `initiator` is "write" (the source pushes) or "read"."""
        return self._measure(
            Check("peer_copy", initiator=read_initiator(initiator)), gpu_pair, size
        )

    def unified_copy(
        self, gpu_pair: GpuPair, size: str = _DEFAULT_SIZE, initiator: str = "write"
    ) -> Measurement:
        """cuMemcpyAsync on unified addresses, as cudaMemcpyDefault does."""
        return self._measure(
            Check("unified_copy", initiator=read_initiator(initiator)), gpu_pair, size
        )

    def host_relay(self, gpu_pair: GpuPair, size: str = _DEFAULT_SIZE) -> Measurement:
        """To the host and on to the other GPU, through one pinned buffer."""
        return self._measure(Check("host_relay"), gpu_pair, size)

    def host_to_device(self, gpu: Gpu, size: str = _DEFAULT_SIZE) -> Measurement:
        """From pinned host memory to a GPU."""
        return self._measure(Check("host_to_device"), (gpu,), size)

    def device_to_host(self, gpu: Gpu, size: str = _DEFAULT_SIZE) -> Measurement:
        """From a GPU to pinned host memory."""
        return self._measure(Check("device_to_host"), (gpu,), size)

    def _measure(self, check: Check, gpus: tuple[Gpu, ...], size: str) -> Measurement:
        bench_of(self._session)  # says why where there is none
        cell = Cell(check, Place(tuple(gpu.index for gpu in gpus)), read_size(size))
        measurement = self._session.open().measure(cell)
        if measurement.failure is not None:
            raise Red(f"{cell}: {failure_text(measurement.failure)}")
        return measurement


class Thresholds:
    """The limits of the profile that --gpuxfer-hw names."""

    def __init__(self, session: GpuxferSession) -> None:
        self._session = session

    def require(self, measurement: Measurement) -> None:
        """Judge a measurement as the suites do, and fail the test with the same words."""
        run, cell = self._session.open(), measurement.cell
        assert run.profile is not None
        expectation = run.expect(cell)
        if expectation.limit is None:
            sizes = ", ".join(run.profile.sizes_with_limit(cell.check)) or "no size"
            at = "" if cell.size_bytes is None else f" at {units.format_size(cell.size_bytes)}"
            words = f"profile {run.profile.name} has no limit for {cell.check}{at}"
            raise Red(f"{words}; it has for: {sizes}", undecided=False)
        self._session.settle(self._session.judge(expectation))


class PeerAccessSwitch:
    """Peer access between two GPUs, in both directions at once."""

    def __init__(self, bench: Bench) -> None:
        self._access = bench.peer_access

    def enable(self, gpu: Gpu, peer: Gpu) -> tuple[AccessDirection, AccessDirection]:
        """Switch it on; the answers say what became of it."""
        with machine_faults():
            return self._access.enable(gpu.index, peer.index)

    def disable(self, gpu: Gpu, peer: Gpu) -> tuple[AccessDirection, AccessDirection]:
        """Switch it off, but for what was on before this process was ours."""
        with machine_faults():
            return self._access.disable(gpu.index, peer.index)

    def state(self, gpu: Gpu, peer: Gpu) -> tuple[AccessDirection, AccessDirection]:
        """Both directions, as they stand."""
        return self._access.state(gpu.index, peer.index)
