"""The self-test: on this machine, give each gate what it must not let through.

A gate that never fails proves nothing. What is judged here was measured here, and then spoilt in
one way; only the verdict that this one way deserves will do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from pytest_gpuxfer.hardware.driver import Comparison, Fill
from pytest_gpuxfer.model.cell import Cell, Check, Initiator, Place
from pytest_gpuxfer.model.expectation import Bound, Expectation, Limit, Location
from pytest_gpuxfer.model.measurement import (
    Health,
    Integrity,
    LinkTraffic,
    Measurement,
    PathKind,
    SignalName,
)
from pytest_gpuxfer.model.outcome import Outcome, Reason
from pytest_gpuxfer.model.pattern import WORD_BYTES, Pattern
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.model.verdict import judge
from pytest_gpuxfer.plan import make_plan, planned_cell
from pytest_gpuxfer.report.records import GateLine
from pytest_gpuxfer.run import Run
from pytest_gpuxfer.transfer import machine_checks, methods
from pytest_gpuxfer.transfer.bench import Bench
from pytest_gpuxfer.transfer.evidence import counters_signal
from pytest_gpuxfer.transfer.sampling import Sampler
from pytest_gpuxfer.transfer.waiting import wait_idle

_PEER_COPY: Final = Check("peer_copy", initiator=Initiator.WRITE)
_GPU: Final = Place.gpu(0)
_COPIED_BYTES: Final = 64 * MIB
_SPOILT_BYTE: Final = 3 * 4096 + WORD_BYTES  # on no boundary that a shortcut would look at
_HERE: Final = Location("--gpuxfer-selftest", 1)

_Spoilt = tuple[Measurement, Expectation]


class NotHereError(Exception):
    """Why this machine or its profile leaves a gate nothing to be tried with."""


@dataclass(frozen=True, slots=True)
class Gate:
    """`done` is what `spoil` does; `outcomes`, `reason` and `says` tell what it deserves."""

    name: str
    done: str
    outcomes: tuple[Outcome, ...]
    reason: Reason
    spoil: Callable[[Run], _Spoilt]
    says: str = ""  # stands in the verdict's words


def try_gate(run: Run, gate: Gate) -> GateLine:
    """What becomes of the gate on this machine; recorded. Raises DriverError, HangError."""
    line = GateLine(gate.name, gate.done, gate.outcomes, gate.reason, gate.says)
    try:
        measurement, expectation = gate.spoil(run)
    except NotHereError as error:
        line = structs.replace(line, skipped=str(error))
    else:
        # Health and waivers may only soften a verdict: they are not what is tried.
        expectation = replace(expectation, waiver=None, not_expected=None)
        verdict = judge(measurement, expectation, Health())
        line = structs.replace(
            line, measurement=measurement, expectation=expectation, verdict=verdict
        )
    run.note(line)
    return line


def _access_off(run: Run) -> _Spoilt:
    wanted = _between_peers(run)
    return _without_access(run, wanted), wanted


def _staged(run: Run) -> _Spoilt:
    wanted = _proven_by_counters(run)
    # Else the missing access would be told before the path.
    return _without_access(run, wanted), replace(wanted, peer_access_required=False)


def _unread_counters(run: Run) -> _Spoilt:
    wanted = _proven_by_counters(run)
    measured = run.measure(wanted.cell, in_process=True)
    if not all(side.answer.on for side in measured.access):
        raise NotHereError("peer access could not be enabled")
    unread = Unknown("hidden by the self-test")
    traffic = tuple(LinkTraffic(found.gpu, unread, unread) for found in measured.traffic)
    others = (found for found in measured.signals if found.name is not SignalName.COUNTERS)
    counters = (counters_signal(traffic, (), 0),) if traffic else ()
    return replace(measured, traffic=traffic, signals=(*counters, *others)), wanted


def _between_peers(run: Run) -> Expectation:
    """What is asked of the first pair that must have peer access. Raises NotHereError."""
    assert run.machine is not None
    if len(run.machine.gpus) < 2:
        raise NotHereError("a pair needs two GPUs, and this process sees one")
    found = (wanted for wanted in run.plan if wanted.cell.check == _PEER_COPY)
    asked = next((wanted for wanted in found if wanted.peer_access_required), None)
    if asked is None:
        raise NotHereError("the profile requires peer access of no pair")
    return asked


def _proven_by_counters(run: Run) -> Expectation:
    wanted = _between_peers(run)
    if wanted.path is not PathKind.NVLINK or SignalName.COUNTERS not in wanted.proof:
        raise NotHereError(f"class {wanted.link_class} is not proven by link counters")
    return wanted


def _without_access(run: Run, wanted: Expectation) -> Measurement:
    control = planned_cell(replace(wanted.cell.check, access=False), wanted.cell.place)
    measured = run.measure(control, in_process=True)
    if any(side.answer.on for side in measured.access):
        raise NotHereError("peer access was on before and is left on")
    return measured


def _wrong_word(run: Run) -> _Spoilt:
    """One bit of a copy within a GPU, turned by that GPU after the copy and before the check."""
    cell = Cell(Check("local_copy"), _GPU, _COPIED_BYTES)
    arena, (gpu,) = run.bench.arena, cell.place.gpus
    (route,) = methods.routes_of(cell, gpu + 1)
    flow = methods.named(cell.check.method).flow(cell.check, route, arena, _COPIED_BYTES)
    destination = arena.device(gpu, "destination 0", _COPIED_BYTES)
    spoilt = destination.window(_SPOILT_BYTE, WORD_BYTES)

    def compare(pattern: Pattern) -> Comparison:
        wrong = pattern.word(_SPOILT_BYTE // WORD_BYTES) ^ 1
        arena.driver.launch(Fill(spoilt, wrong), arena.stream(gpu))
        wait_idle(arena, gpu)
        return flow.compare(pattern)

    sampler = Sampler(arena, cell.id)
    spoiling = replace(flow, compare=compare)
    sampler.sample_until_sure([spoiling], 1, gated=False, decide_at=None)
    integrity = Integrity(sampler.checked_bytes, sampler.mismatch)
    measured = Measurement(cell, samples=tuple(sampler.samples), integrity=integrity)
    return measured, run.expect(cell)


def _raised_floor(run: Run) -> _Spoilt:
    measured, wanted, median = _host_link(run)
    floor = Bound(2 * median, "twice what was measured", _HERE)
    return measured, replace(wanted, limit=Limit(wanted.cell.check, _HERE, floor=floor))


def _lowered_link(run: Run) -> _Spoilt:
    measured, wanted, median = _host_link(run)
    physical = Bound(median / 2, "half of what was measured", _HERE)
    return measured, replace(wanted, physical=physical)


def _host_link(run: Run) -> tuple[Measurement, Expectation, float]:
    """A copy that every machine can make, and its median rate; 0 where it could not be made."""
    cell = planned_cell(Check("host_to_device"), _GPU)
    measured = run.measure(cell, in_process=True)
    rates = measured.rates()
    return measured, run.expect(cell), rates.median if rates else 0.0


def _hidden_gpu(run: Run) -> _Spoilt:
    assert run.hardware is not None
    assert run.machine is not None
    assert run.profile is not None
    fewer = replace(run.machine, gpus=run.machine.gpus[:-1])
    plan = make_plan(run.profile, fewer)
    wanted = next(wanted for wanted in plan if wanted.cell.check == machine_checks.GPUS)
    return Bench(run.hardware, fewer).measure(wanted.cell), wanted


# What is measured without peer access comes first, as in the plan.
GATES: Final[tuple[Gate, ...]] = (
    Gate(
        "access-off", "a copy with peer access off, judged as one with it",
        (Outcome.FAIL, Outcome.ABSENT), Reason.NO_PEER_ACCESS, _access_off,
    ),
    Gate(
        "staged", "a copy that the driver staged, judged as one over NVLink",
        (Outcome.FAIL,), Reason.OTHER_PATH, _staged,
    ),
    Gate(
        "unread-counters", "a copy over NVLink whose byte counters are hidden",
        (Outcome.INCONCLUSIVE,), Reason.PATH_NOT_PROVEN, _unread_counters,
    ),
    Gate(
        "wrong-data", "one bit of the destination turned after the copy",
        (Outcome.FAIL,), Reason.WRONG_DATA, _wrong_word, says=f"the first at byte {_SPOILT_BYTE}:",
    ),
    Gate(
        "raised-floor", "a copy judged by a floor of twice its rate",
        (Outcome.FAIL,), Reason.BELOW_FLOOR, _raised_floor,
    ),
    Gate(
        "lowered-link", "a copy judged by a link of half its rate",
        (Outcome.ERROR,), Reason.ABOVE_PHYSICAL, _lowered_link,
    ),
    Gate(
        "hidden-gpu", "the machine judged without its last GPU",
        (Outcome.ABSENT,), Reason.GPU_MISSING, _hidden_gpu,
    ),
)  # fmt: skip
