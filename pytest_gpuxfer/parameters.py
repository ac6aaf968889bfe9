"""What tests are parametrised with: the plan's cells, the GPUs, the pairs. Never with nothing.

An empty parameter set is a silent skip to pytest. Ours says why there is nothing: a `Missing`
takes the place of the values, and whoever asks for one gets its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple, TypeVar

import pytest

from pytest_gpuxfer.model.expectation import Expectation
from pytest_gpuxfer.model.machine import Gpu
from pytest_gpuxfer.run import Run
from pytest_gpuxfer.selftest import GATES, Gate
from pytest_gpuxfer.session import CELL, GATE, GpuxferSession, Red, failure_text, session_of

Value = TypeVar("Value")


class GpuPair(NamedTuple):
    """An ordered pair of GPUs."""

    source: Gpu
    destination: Gpu


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no value; `skips` where there need be none, or another test is red for it."""

    label: str
    reason: str
    skips: bool = False


def given(value: Value | Missing) -> Value:
    """The value. Raises Red, or skips, where there is none."""
    if not isinstance(value, Missing):
        return value
    if value.skips:
        pytest.skip(value.reason)
    raise Red(value.reason)


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test its cells, GPUs and pairs."""
    session = session_of(metafunc.config)
    marker = metafunc.definition.get_closest_marker("gpuxfer")
    if CELL in metafunc.fixturenames and marker is not None:
        _give(metafunc, CELL, _cells(session, marker.args))
    if GATE in metafunc.fixturenames:
        _give(metafunc, GATE, _gates(session))
    if "gpuxfer_gpu" in metafunc.fixturenames:
        _give(metafunc, "gpuxfer_gpu", _gpus(session.open()))
    if "gpuxfer_gpu_pair" in metafunc.fixturenames:
        _give(metafunc, "gpuxfer_gpu_pair", _pairs(session.open()))


def _give(metafunc: pytest.Metafunc, name: str, values: Sequence[object]) -> None:
    metafunc.parametrize(name, values, ids=[_label(value) for value in values], scope="session")


def _label(value: object) -> str:
    if isinstance(value, Expectation):
        return value.cell.id
    if isinstance(value, GpuPair):
        return f"{value.source.label}-{value.destination.label}"
    if isinstance(value, Gate):
        return value.name
    assert isinstance(value, (Gpu, Missing))
    return value.label


def _gates(session: GpuxferSession) -> Sequence[Gate | Missing]:
    if not session.settings.selftest:
        return [Missing("no-selftest", "the self-test runs with --gpuxfer-selftest", skips=True)]
    return GATES


def _cells(session: GpuxferSession, methods: Sequence[str]) -> Sequence[Expectation | Missing]:
    if session.settings.hardware is None:
        from pytest_gpuxfer.profiles import shipped

        names = ", ".join(shipped())
        words = f"no hardware profile: run pytest --gpuxfer-hw=NAME (profiles: {names}), or auto"
        return [Missing("no-profile", words)]
    from pytest_gpuxfer.plan import registered_methods

    known = registered_methods()
    if wrong := [method for method in methods if method not in known]:
        # A test that nothing would ever run is not skipped.
        words = f"gpuxfer marks methods, {wrong[0]!r} is none; known: {', '.join(known)}"
        return [Missing("no-method", words)]
    run = session.open()
    found = [wanted for wanted in run.plan if wanted.cell.check.method in methods]
    return found or [_why_no_cells(run, ", ".join(methods))]


def _why_no_cells(run: Run, methods: str) -> Missing:
    # A machine that cannot be opened, or lacks GPUs, is red as machine.gpus/all.
    if run.failure is not None:
        return Missing("no-machine", f"not_measured: {run.failure.message}", skips=True)
    assert run.profile is not None
    assert run.machine is not None
    there, wanted = len(run.machine.gpus), run.profile.gpus
    if there < wanted:
        return Missing("no-gpus", f"absent: {there} of {wanted} GPUs are here", skips=True)
    words = f"not_expected: profile {run.profile.name} has no cells of {methods}"
    return Missing("no-cells", words, skips=True)


def _gpus(run: Run) -> Sequence[Gpu | Missing]:
    if run.failure is not None:
        return [Missing("no-machine", failure_text(run.failure))]
    assert run.machine is not None
    return run.machine.gpus or [Missing("no-gpu", "no GPU is visible; see `nvidia-smi -L`")]


def _pairs(run: Run) -> Sequence[GpuPair | Missing]:
    gpus = _gpus(run)
    there = [gpu for gpu in gpus if isinstance(gpu, Gpu)]
    if len(there) == 1:
        return [Missing("no-pair", "a pair needs two GPUs, and this process sees one")]
    pairs = [GpuPair(source, destination) for source, destination in permutations(there, 2)]
    return pairs or [gpu for gpu in gpus if isinstance(gpu, Missing)]
