"""What the fixtures hand to a test: copies to measure, limits to hold them against, peer access."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from pytest_gpuxfer.hardware.driver import CHAIN_LINE_BYTES, DeviceKind, DriverError
from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import Cell, CellError, Place, parse_cell, parse_check
from pytest_gpuxfer.model.expectation import Expectation
from pytest_gpuxfer.model.machine import Gpu, Machine
from pytest_gpuxfer.model.measurement import AccessDirection, FailureKind, Measurement
from pytest_gpuxfer.model.verdict import Outcome
from pytest_gpuxfer.parameters import GpuPair
from pytest_gpuxfer.plan import planned_cell
from pytest_gpuxfer.report import junit
from pytest_gpuxfer.report.records import CellLine, GateLine
from pytest_gpuxfer.selftest import Gate, try_gate
from pytest_gpuxfer.session import GpuxferSession, Red, failure_text
from pytest_gpuxfer.transfer import methods
from pytest_gpuxfer.transfer.arena import Arena, CannotAllocateError
from pytest_gpuxfer.transfer.bench import Bench
from pytest_gpuxfer.transfer.buffers import AnyBuffer
from pytest_gpuxfer.transfer.methods.local import LoadLatency
from pytest_gpuxfer.transfer.waiting import HangError

_DEFAULT_BUFFER = "64 MiB"
_LONGEST_CHAIN_BYTES = 64 * units.MIB  # a load a line, each after the other: a second or two
_NO_ACCESS = "no-access"
_LOAD_BYTES = 16  # what one load of a kernel copy moves

Buffer = TypeVar("Buffer", bound=AnyBuffer)


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


def read_size(text: object) -> int:
    """Bytes of a size that a test gives. Raises Red for what is no size, or nothing."""
    try:
        size_bytes = units.parse_size(str(text))
    except units.UnitError as error:
        raise Red(str(error), undecided=False) from None
    if not size_bytes:
        raise Red("a size of 0 is nothing to measure or to allocate", undecided=False)
    return size_bytes


def wanted_gpu(request: pytest.FixtureRequest) -> int:
    """The index of the test's `gpu`, or of gpu0 where it has none. Raises Red."""
    return index_of(request.getfixturevalue("gpu")) if "gpu" in request.fixturenames else 0


def wanted_size(request: pytest.FixtureRequest, given: str | None = None) -> int:
    """Bytes of a buffer: by indirect parametrisation, by marker, or else 64 MiB.

    `given` stands for the fixture's parameter where not all of that is the size. Raises Red.
    """
    text = getattr(request, "param", None) if given is None else given
    marker = request.node.get_closest_marker("gpuxfer_size")
    if not text and marker is not None:
        if len(marker.args) != 1 or marker.kwargs:
            raise Red('write a size in the marker: gpuxfer_size("256 MiB")', undecided=False)
        text = marker.args[0]
    return read_size(text or _DEFAULT_BUFFER)


def wanted_kind(request: pytest.FixtureRequest) -> tuple[DeviceKind, int]:
    """The kind and size of device memory: the parameter may name either or both ("64 MiB vmm")."""
    *words, last = str(getattr(request, "param", "")).split() or [""]
    if last in tuple(DeviceKind):
        return DeviceKind(last), wanted_size(request, " ".join(words))
    return DeviceKind.MALLOC, wanted_size(request)


@contextmanager
def lend(session: GpuxferSession, make: Callable[[Arena], Buffer]) -> Iterator[Buffer]:
    """A buffer for a while, whatever happens meanwhile. Raises Red where there is no memory."""
    with machine_faults():
        buffer = make(bench_of(session).arena)
    try:
        yield buffer
    finally:
        with machine_faults():
            buffer.close()


def index_of(gpu: Gpu) -> int:
    """The index of a test's `gpu`. Raises Red where a project's own fixture gives no GPU."""
    if not isinstance(gpu, Gpu):
        words = f"this test's own gpu fixture gives {gpu!r}: a buffer cannot tell which"
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


class TriedGate:
    """A gate of the self-test, tried; what is left is to say what became of it."""

    def __init__(self, line: GateLine) -> None:
        self.line = line

    def require(self) -> None:
        """Fail the test where the gate did not fail as it should."""
        if not self.line.holds:
            raise Red(f"gate {self.line.gate}: {self.line.words}", undecided=False)


def try_in_setup(session: GpuxferSession, gate: Gate, item: pytest.Item) -> TriedGate:
    """Try a gate and note it on the item; skips what cannot be tried here.

    What could not be measured is raised here, as undecided.
    """
    bench_of(session)  # says why where there is none
    run = session.open()
    with machine_faults():
        line = try_gate(run, gate)
    item.user_properties.extend(junit.gate_properties(run.header, line))
    if line.skipped is not None:
        pytest.skip(line.words)
    failure = line.measurement.failure if line.measurement else None
    if failure is not None:
        raise Red(f"gate {gate.name}: {failure_text(failure)}")
    return TriedGate(line)


class Transfer:
    """Copies, each measured once a run, at the size that the suites measure unless told.

    What cannot be measured fails the test with the reason. A measurement's `rates()` are bytes per
    second, None where the machine's refusal of peer access left nothing to measure.
    """

    def __init__(self, session: GpuxferSession) -> None:
        self._session = session
        self._used_bench: Bench | None = None

    def peer_copy(
        self, gpu_pair: GpuPair, size: str | None = None, initiator: str = "write",
        pattern: str | None = None, *, access: bool = True,
    ) -> Measurement:  # fmt: skip
        """cuMemcpyPeerAsync; `initiator` is "write" (the source pushes) or "read".

        `pattern` may be "round-trip"; `access=False` is what it does without peer access.
        """
        parts = (initiator, pattern, None if access else _NO_ACCESS)
        return self._measure("peer_copy", parts, gpu_pair, size)

    def unified_copy(
        self, gpu_pair: GpuPair, size: str | None = None, initiator: str = "write",
        memory: str = "malloc", pattern: str | None = None, *, access: bool = True,
    ) -> Measurement:  # fmt: skip
        """cuMemcpyAsync on unified addresses, as cudaMemcpyDefault does.

        `memory` is "malloc", "pool" or "vmm"; `pattern` may be "bidirectional".
        """
        parts = (initiator, memory, pattern, None if access else _NO_ACCESS)
        return self._measure("unified_copy", parts, gpu_pair, size)

    def kernel_copy(
        self, gpu_pair: GpuPair, size: str | None = None, initiator: str = "write",
        pattern: str | None = None,
    ) -> Measurement:  # fmt: skip
        """A kernel loads and stores 16 bytes at a time; `pattern` may be "bidirectional"."""
        return self._measure("kernel_copy", ("sm", initiator, pattern), gpu_pair, size)

    def ipc_copy(
        self, gpu_pair: GpuPair, size: str | None = None, memory: str = "malloc",
        pattern: str | None = None,
    ) -> Measurement:  # fmt: skip
        """Into another process's memory, "malloc" by legacy handle or "vmm" by file descriptor.

        With the pattern "hidden" that process may see no GPU but its own.
        """
        return self._measure("ipc_copy", ("write", memory, pattern), gpu_pair, size)

    def host_relay(
        self, gpu_pair: GpuPair, size: str | None = None, memory: str = "pinned",
        pattern: str | None = None,
    ) -> Measurement:  # fmt: skip
        """To the host and on to the other GPU, through one buffer of a kind of host memory.

        With the pattern "pipelined" the two legs overlap.
        """
        return self._measure("host_relay", (memory, pattern), gpu_pair, size)

    def host_to_device(
        self, gpu: Gpu, size: str | None = None, memory: str = "pinned",
        pattern: str | None = None,
    ) -> Measurement:  # fmt: skip
        """From host memory: "pinned", "pageable", "registered" or "shared".

        `pattern` may be "bidirectional", or "far-node" for memory of another NUMA node.
        """
        return self._measure("host_to_device", (memory, pattern), gpu, size)

    def device_to_host(
        self, gpu: Gpu, size: str | None = None, memory: str = "pinned",
        pattern: str | None = None,
    ) -> Measurement:  # fmt: skip
        """To host memory: "pinned", "pageable", "registered" or "shared".

        `pattern` may be "far-node" for memory of another NUMA node.
        """
        return self._measure("device_to_host", (memory, pattern), gpu, size)

    def zero_copy(
        self, where: Gpu | GpuPair, size: str | None = None, initiator: str | None = None,
        pattern: str | None = None,
    ) -> Measurement:  # fmt: skip
        """A kernel loads from mapped host memory ("read", if not said), or stores to it ("write").

        Between two GPUs one stores and the other loads. `pattern` may be "bidirectional".
        """
        parts = ("sm", _asked_by_gpu(where, initiator), pattern)
        return self._measure("zero_copy", parts, where, size)

    def managed(
        self, where: Gpu | GpuPair, size: str | None = None, initiator: str | None = None,
        engine: str = "ce",
    ) -> Measurement:  # fmt: skip
        """Pages move to a GPU ("read", if not said), to the host ("write"), or between two GPUs.

        Engine "ce" is a prefetch, "sm" the page faults of a kernel.
        """
        return self._measure("managed", (engine, _asked_by_gpu(where, initiator)), where, size)

    def local_copy(self, gpu: Gpu, size: str | None = None) -> Measurement:
        """Within one GPU; bytes are counted once."""
        return self._measure("local_copy", (), gpu, size)

    def small_copy_latency(self, gpu_pair: GpuPair, *, access: bool = True) -> Measurement:
        """How long a copy of 16 bytes takes: nanoseconds in `latencies()`."""
        parts = (None if access else _NO_ACCESS,)
        return self._measure("small_copy_latency", parts, gpu_pair, None)

    def load_latency(self, where: Gpu | GpuPair) -> Measurement:
        """How long a load takes that waits for the one before: of a peer's memory, or the host's.

        Nanoseconds in `latencies()`.
        """
        memory = "mapped" if isinstance(where, Gpu) else None
        return self._measure("load_latency", ("sm", memory), where, None)

    def measure(self, cell: str) -> Measurement:
        """Any cell by its id, such as "unified_copy.write.all-to-all/all/128MiB"."""
        try:
            wanted = parse_cell(cell)
        except (CellError, units.UnitError) as error:
            raise Red(str(error), undecided=False) from None
        return self._measured(wanted)

    def close(self) -> None:
        """Put peer access back as it was."""
        if self._used_bench is not None:
            self._used_bench.peer_access.restore()

    def _measure(
        self, method: str, parts: tuple[str | None, ...], where: Gpu | GpuPair, size: str | None
    ) -> Measurement:
        gpus = (where,) if isinstance(where, Gpu) else where
        place = Place(tuple(gpu.index for gpu in gpus))
        try:
            check = parse_check(".".join((method, *filter(None, parts))))
        except CellError as error:
            raise Red(str(error), undecided=False) from None
        if check.pattern == "bidirectional" and place.is_pair:
            place = Place.pair(*sorted(place.gpus))  # the same from either end
        return self._measured(
            planned_cell(check, place) if size is None else Cell(check, place, read_size(size))
        )

    def _measured(self, cell: Cell) -> Measurement:
        self._used_bench = bench_of(self._session)  # says why where there is none
        if problem := _why_not(cell, len(machine_of(self._session).gpus)):
            raise Red(problem, undecided=False)
        measurement = self._session.open().measure(cell, in_process=True)
        if measurement.failure is not None:
            if measurement.failure.kind is FailureKind.HANG:
                self._used_bench = None  # putting peer access back would wait for that GPU
            raise Red(f"{cell}: {failure_text(measurement.failure)}")
        if measurement.lacking is not None:
            raise Red(f"{cell}: {measurement.lacking}", undecided=False)
        return measurement


def _why_not(cell: Cell, gpu_count: int) -> str | None:
    """Why a cell is none that can be measured on a machine of so many GPUs, in one line."""
    check, size_bytes = cell.check, cell.size_bytes
    method = next((method for method in methods.ALL if method.name == check.method), None)
    if method is None:
        known = ", ".join(method.name for method in methods.ALL)
        return f"{check.method!r} is no way to move bytes; there are {known}"
    if check not in method.checks():
        return f"there is no check {check}; there are {', '.join(map(str, method.checks()))}"
    places = methods.places_of(check, gpu_count)
    if cell.place not in places:
        known = f"at {places[0]} and its like" if places else f"nowhere among {gpu_count} GPUs"
        return f"{check} is not measured at {cell.place}, but {known}"
    if size_bytes is None or size_bytes % _LOAD_BYTES:
        size = "no size" if size_bytes is None else units.format_size(size_bytes)
        return f"{check} moves multiples of {_LOAD_BYTES} B, and this is {size}"
    if check.method == LoadLatency.name and (
        size_bytes % CHAIN_LINE_BYTES or not 0 < size_bytes <= _LONGEST_CHAIN_BYTES
    ):
        most, size = units.format_size(_LONGEST_CHAIN_BYTES), units.format_size(size_bytes)
        return f"{check} follows lines of {CHAIN_LINE_BYTES} B, up to {most}, and this is {size}"
    return None


def _asked_by_gpu(where: Gpu | GpuPair, initiator: str | None) -> str | None:
    """A GPU alone reads from the host unless told; between two of them nothing is to be told."""
    return "read" if initiator is None and isinstance(where, Gpu) else initiator


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
