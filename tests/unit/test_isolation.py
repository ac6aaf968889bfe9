"""A process that measures: what it answers, and what its hangs and its end cost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pytest_gpuxfer.hardware.child import start_child
from pytest_gpuxfer.model.cell import parse_cell
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import Failure, FailureKind
from pytest_gpuxfer.transfer import isolation
from pytest_gpuxfer.transfer.bench import Bench
from pytest_gpuxfer.transfer.isolation import Isolated, MeasuringError
from pytest_gpuxfer.transfer.opening import open_machine
from tests.processes import gone, measuring_children

COPY = parse_cell("peer_copy.write/gpu0-gpu1/64MiB")
READ = parse_cell("peer_copy.read/gpu0-gpu1/64MiB")
UNIFIED = parse_cell("unified_copy.write/gpu0-gpu1/64MiB")
BY_KERNEL = parse_cell("kernel_copy.sm.write/gpu0-gpu1/64MiB")
ELSEWHERE = parse_cell("peer_copy.write/gpu0-gpu2/64MiB")

Isolate = Callable[..., Isolated]


def machine_with(*faults: str) -> Machine:
    machine = open_machine("dgx-a100", faults).machine
    assert machine is not None
    return machine


@pytest.fixture
def isolate() -> Iterator[Isolate]:
    """A process that measures a DGX A100 with some faults."""
    made: list[Isolated] = []

    def make(*faults: str, ends_at_ns: int | None = None) -> Isolated:
        made.append(Isolated(machine_with(*faults), ends_at_ns))
        return made[-1]

    yield make
    for isolated in made:
        isolated.close()
    assert measuring_children(os.getpid()) == []


def failure_of(isolated: Isolated, cell: object) -> Failure:
    failure = isolated.measure(cell).failure  # type: ignore[arg-type]
    assert failure is not None
    return failure


def test_a_child_measures_what_this_process_would(isolate: Isolate) -> None:
    opened = open_machine("dgx-a100", ())
    assert opened.hardware is not None
    assert opened.machine is not None
    bench, isolated = Bench(opened.hardware, opened.machine), isolate()
    for cell in (COPY, BY_KERNEL):
        measured = isolated.measure(cell, 200e9)
        assert measured.samples
        assert measured == bench.measure(cell, 200e9)
    bench.close()


def test_one_child_lives_on_from_cell_to_cell(isolate: Isolate) -> None:
    isolated = isolate()
    isolated.measure(COPY)
    (first,) = measuring_children(os.getpid())
    isolated.measure(READ)
    assert measuring_children(os.getpid()) == [first]
    isolated.close()
    assert gone(first)


def test_a_crash_costs_the_cell_that_met_it(isolate: Isolate) -> None:
    isolated = isolate("crash:gpu0-gpu1")
    failure = failure_of(isolated, COPY)
    assert failure.kind is FailureKind.CRASH
    assert failure.message == "the measuring process was ended by SIGABRT"
    assert isolated.measure(ELSEWHERE).failure is None


def test_a_crash_that_does_not_come_again_is_told_of_the_second_attempt(isolate: Isolate) -> None:
    isolated = isolate()
    assert isolated.measure(COPY).crash is None
    (child,) = measuring_children(os.getpid())
    os.kill(child, signal.SIGSEGV)
    measured = isolated.measure(READ)
    assert (measured.failure, measured.crash) == (
        None, "the measuring process was ended by SIGSEGV",
    )  # fmt: skip
    assert measured.samples
    assert isolated.measure(COPY).crash is None


def test_a_sticky_error_costs_the_cell_that_met_it(isolate: Isolate) -> None:
    isolated = isolate("sticky-error:gpu0-gpu1")
    failure = failure_of(isolated, COPY)
    assert failure.kind is FailureKind.STICKY_ERROR
    assert "(700)" in failure.message
    assert isolated.measure(ELSEWHERE).failure is None


def test_a_copy_that_never_ends_costs_its_cell_alone(isolate: Isolate) -> None:
    isolated = isolate("copy-hangs:gpu0-gpu1")
    assert failure_of(isolated, COPY).kind is FailureKind.HANG
    assert isolated.measure(ELSEWHERE).failure is None


def test_a_call_that_never_returns_costs_its_cell_alone(
    isolate: Isolate, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolated = isolate("call-hangs:gpu0-gpu1")
    assert isolated.measure(ELSEWHERE).failure is None
    (hanging,) = measuring_children(os.getpid())
    monkeypatch.setattr(isolation, "_allowed_s", lambda cell: 0.5)
    failure = failure_of(isolated, COPY)
    monkeypatch.undo()
    assert failure.kind is FailureKind.HANG
    assert gone(hanging)
    assert isolated.measure(ELSEWHERE).failure is None


def test_after_two_hangs_the_rest_of_a_pair_and_engine_is_not_tried(isolate: Isolate) -> None:
    isolated = isolate("copy-hangs:gpu0-gpu1")
    tried = [failure_of(isolated, cell).message for cell in (COPY, READ)]
    assert not any("not tried" in message for message in tried)
    assert failure_of(isolated, UNIFIED).message == (
        "not tried: 2 cells at gpu0-gpu1 by ce have hung before"
    )
    assert isolated.measure(BY_KERNEL).failure is None
    assert isolated.measure(ELSEWHERE).failure is None


def test_the_end_of_the_run_ends_a_cell(isolate: Isolate) -> None:
    isolated = isolate("call-hangs:gpu0-gpu1", ends_at_ns=time.monotonic_ns() + 2 * 10**9)
    assert failure_of(isolated, COPY).kind is FailureKind.DEADLINE


def test_another_machine_than_before_is_not_measured() -> None:
    machine = machine_with()
    first, *others = machine.gpus
    changed = replace(machine, gpus=(replace(first, uuid="GPU-of-yesterday"), *others))
    isolated = Isolated(changed)
    for cell in (COPY, BY_KERNEL):
        assert "not the 8 found before" in failure_of(isolated, cell).message
    assert measuring_children(os.getpid()) == []


def test_a_child_that_does_not_start_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "PROGRAM", "pytest_gpuxfer.no_such_module")
    isolated = Isolated(machine_with())
    words = "not tried: as it started, the measuring process ended with status 1"
    assert failure_of(isolated, COPY).message == words
    monkeypatch.undo()
    assert failure_of(isolated, READ).message == words


def test_a_crash_as_the_child_starts_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = iter(["pytest_gpuxfer.no_such_module"])
    monkeypatch.setattr(
        isolation, "start_child",
        lambda program, descriptor: start_child(next(programs, program), descriptor),
    )  # fmt: skip
    isolated = Isolated(machine_with())
    assert isolated.measure(COPY).samples
    isolated.close()


def test_a_mistake_of_ours_is_no_verdict_on_the_machine(isolate: Isolate) -> None:
    isolated = isolate()
    with pytest.raises(MeasuringError, match="Traceback"):
        isolated.measure(replace(COPY, size_bytes=None))
    assert isolated.measure(COPY).failure is None
