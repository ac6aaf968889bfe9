"""The rules for what was measured: data, path, rate. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.evidence import conclude, silent
from pytest_gpuxfer.model.expectation import Bound
from pytest_gpuxfer.model.measurement import Access
from pytest_gpuxfer.model.outcome import Case, Outcome, Reason, Verdict
from pytest_gpuxfer.model.statistics import Summary


def not_measured(case: Case) -> Verdict | None:
    """What could not be measured (rule 1)."""
    failure = case.measurement.failure
    if failure is None:
        return None
    return Verdict(Outcome.ERROR, Reason.NOT_MEASURED, f"{failure.kind}: {failure.message}")


def wrong_data(case: Case) -> Verdict | None:
    """Data first: a rate of wrong data is void (rule 2)."""
    integrity = case.measurement.integrity
    if integrity is None or integrity.mismatch is None:
        return None
    words = f"wrong data, its rate is void: {integrity.mismatch}"
    return Verdict(Outcome.FAIL, Reason.WRONG_DATA, words)


def absent(case: Case) -> Verdict | None:
    """Expected, and the machine cannot (rule 3)."""
    wanted, reading = case.expectation, case.measurement.reading
    if case.measurement.lacking is not None:
        return Verdict(Outcome.ABSENT, Reason.NOT_SUPPORTED, case.measurement.lacking)
    if reading is not None and reading.gpus is not None and wanted.gpus is not None:
        if len(reading.gpus) < wanted.gpus:
            words = f"{len(reading.gpus)} of {wanted.gpus} GPUs are there"
            return Verdict(Outcome.ABSENT, Reason.GPU_MISSING, words)
        if reading.mig_gpus:
            words = f"MIG is on: {', '.join(reading.mig_gpus)}"
            return Verdict(Outcome.ABSENT, Reason.MIG, words)
    if not wanted.peer_access_required:
        return None
    lacking = [side for side in case.measurement.access if not side.answer.on]
    if not lacking:
        return None
    # A refusal is the machine's; anything else is an access that should have come and did not.
    refused = any(side.answer is Access.REFUSED for side in lacking)
    words = "; ".join(map(str, lacking))
    outcome = Outcome.ABSENT if refused else Outcome.FAIL
    return Verdict(outcome, Reason.NO_PEER_ACCESS, f"no peer access: {words}")


def access_not_proven(case: Case) -> Verdict | None:
    """Peer access that was enabled, and through which stores are lost (rule 4)."""
    if not case.expectation.peer_access_required:
        return None
    broken = [side for side in case.measurement.access if side.proven is False]
    if not broken:
        return None
    words = "; ".join(map(str, broken))
    return Verdict(Outcome.FAIL, Reason.ACCESS_NOT_PROVEN, words)


def other_path(case: Case) -> Verdict | None:
    """Proven to have taken another path than the profile asks for (rule 5)."""
    path, signals = case.expectation.path, case.measurement.signals
    if path is None or not case.expectation.proof:
        return None
    control = not case.expectation.cell.check.access
    if control and any(side.answer.on for side in case.measurement.access):
        return None  # others keep access on: no control, and no fault of the path's
    conclusion = conclude(signals)
    # A witness beside the ones that the profile asks for proves nothing alone.
    if silent(signals, case.expectation.proof) or not conclusion.excludes(path):
        return None
    words = f"the bytes took {conclusion}, the profile asks for {path}"
    return Verdict(Outcome.FAIL, Reason.OTHER_PATH, words)


def path_not_proven(case: Case) -> Verdict | None:
    """Not proven by what the profile's class asks for (rule 6)."""
    path, proof = case.expectation.path, case.expectation.proof
    if path is None or not proof:
        return None
    conclusion = conclude(case.measurement.signals)
    missing = silent(case.measurement.signals, proof)
    if not missing and conclusion.proves(path):
        return None
    why = "; ".join(missing) or f"it is {conclusion}"
    words = f"the path is not proven to be {path}: {why}"
    return Verdict(Outcome.INCONCLUSIVE, Reason.PATH_NOT_PROVEN, words)


def xid(case: Case) -> Verdict | None:
    """What the driver reported of a GPU meanwhile is a fault of the machine."""
    if not case.health.xids:
        return None
    words = f"the driver reported {', '.join(case.health.xids)} while it was measured"
    return Verdict(Outcome.FAIL, Reason.XID, words)


def refused(case: Case) -> Verdict | None:
    """Without access, an error is the honest answer: what nobody may use was not moved."""
    refusal, check = case.measurement.refusal, case.expectation.cell.check
    if refusal is None:
        return None
    if check.access:
        return Verdict(Outcome.ERROR, Reason.NOT_MEASURED, refusal)
    return Verdict(Outcome.PASS, Reason.REFUSED, f"refused without access: {refusal}")


def unusable(case: Case) -> Verdict | None:
    """Samples that are missing, impossible or of unchecked data are no measurement."""
    measurement = case.measurement
    why = ""
    if not measurement.samples:
        why = "; ".join(dict.fromkeys(measurement.discarded)) or "no sample was taken"
    elif not all(sample.possible for sample in measurement.samples):
        why = "a sample's time or size is impossible"
    elif measurement.integrity is None or measurement.integrity.checked_bytes <= 0:
        why = "the data was not checked"
    return Verdict(Outcome.ERROR, Reason.NOT_MEASURED, why) if why else None


def above_physical(case: Case) -> Verdict | None:
    """Faster than the declared link can carry: measured wrongly (rule 7)."""
    bound, fastest = case.expectation.physical, case.measurement.fastest_flow()
    if bound is None or fastest is None:
        return None
    if not 0 < bound.value < math.inf:
        return _no_limit(bound, bound.value)
    if fastest.median <= bound.value:
        return None
    words = (
        f"{units.format_rate(fastest.median)} is above the link's {bound.text}: measured wrongly"
    )
    return Verdict(Outcome.ERROR, Reason.ABOVE_PHYSICAL, words)


def _no_limit(bound: Bound, value: float) -> Verdict:
    """What compares with everything, or with nothing, limits nothing."""
    words = f"{bound.text}, {bound.location}, comes to {value}: no limit"
    return Verdict(Outcome.ERROR, Reason.NO_LIMIT, words)


@dataclass(frozen=True, slots=True)
class _Side:
    """A limit's hard bound turned so that more is better: `margin` is above 1 when it is met."""

    bound: Bound
    value: float
    summary: Summary
    is_ceiling: bool

    @property
    def missed(self) -> bool:
        best = self.summary.low if self.is_ceiling else self.summary.high
        return best > self.value if self.is_ceiling else best < self.value

    @property
    def straddled(self) -> bool:
        return self.summary.low < self.value < self.summary.high

    def __str__(self) -> str:
        show = units.format_duration if self.is_ceiling else units.format_rate
        kind = "ceiling" if self.is_ceiling else "floor"
        side = "above" if self.is_ceiling else "below"
        median = show(self.summary.median)
        relation = side if self.missed else "astride"
        figure = self.bound.text
        if self.bound.is_relative:
            figure = f"{show(self.value)} ({self.bound.text})"
        return f"{median} is {relation} the {kind} {figure}, {self.bound.location}"


def rate_against_limit(case: Case) -> Verdict | None:
    """Beyond the floor or ceiling, or astride it (rules 8 and 9)."""
    limit = case.expectation.limit
    if limit is None or (limit.floor is None and limit.ceiling is None and not limit.unlimited):
        words = "the profile has no limit for this check and size"
        return Verdict(Outcome.ERROR, Reason.NO_LIMIT, words)
    bound = limit.ceiling or limit.floor
    if bound is None:
        return None
    value = bound.resolve(case.baselines)
    if value is None:
        return _no_base(bound, case)
    if not 0 < value < math.inf:
        return _no_limit(bound, value)
    is_ceiling = limit.ceiling is not None
    summary = case.measurement.latencies() if is_ceiling else case.measurement.rates()
    assert summary is not None
    side = _Side(bound, value, summary, is_ceiling)
    if side.missed and case.health.concerns:
        words = f"{side}, but {'; '.join(case.health.concerns)}"
        return Verdict(Outcome.INCONCLUSIVE, Reason.UNHEALTHY, words)
    if side.missed:
        return Verdict(Outcome.FAIL, Reason.BELOW_FLOOR, str(side))
    if side.straddled:
        return Verdict(Outcome.INCONCLUSIVE, Reason.STRADDLES_FLOOR, str(side))
    return None


def _no_base(bound: Bound, case: Case) -> Verdict:
    place = case.expectation.cell.place
    words = f"{bound.text}: {bound.of_check} has no sound figure at {place}, see its own cells"
    return Verdict(Outcome.INCONCLUSIVE, Reason.NO_BASE, words)


def doubtful(case: Case) -> Verdict | None:
    """Samples that look better than the truth can fail a cell, and not pass it."""
    doubt = case.measurement.doubt
    return Verdict(Outcome.INCONCLUSIVE, Reason.DOUBTFUL, doubt) if doubt else None


def inside(case: Case) -> Verdict:
    """Within the limits, or below what is expected (rules 10 and 11)."""
    rates, limit = case.measurement.rates(), case.expectation.limit
    assert rates is not None
    assert limit is not None
    is_latency = case.expectation.cell.check.is_latency
    show = units.format_duration if is_latency else units.format_rate
    summary = case.measurement.latencies() if is_latency else rates
    assert summary is not None
    words = show(summary.median)
    if limit.unlimited:
        what = "time" if is_latency else "rate"
        unchecked = (f"{what}: {limit.unlimited}",)
        return Verdict(Outcome.PASS, Reason.INSIDE, f"{words}, the {what} is not judged", unchecked)
    if limit.expect is None:
        return Verdict(Outcome.PASS, Reason.INSIDE, words)
    wanted, tolerance = limit.expect.resolve(case.baselines), case.expectation.tolerance
    if wanted is None:
        return _no_base(limit.expect, case)
    least = wanted * (1 - tolerance)
    if not 0 < least < math.inf:
        return _no_limit(limit.expect, least)
    if rates.high < least:
        words = f"{words} is more than {tolerance:.0%} below the {show(wanted)} expected"
        return Verdict(Outcome.DEGRADED, Reason.BELOW_EXPECTED, f"{words}, {limit.expect.location}")
    return Verdict(Outcome.PASS, Reason.INSIDE, words)
