"""The rules of judgement, in order; the first that holds wins. Pure and total."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import Check
from pytest_gpuxfer.model.evidence import conclude, silent
from pytest_gpuxfer.model.expectation import Bound, Expectation
from pytest_gpuxfer.model.machine import NvlinkPort
from pytest_gpuxfer.model.measurement import Access, Health, Measurement, Reading, Sample
from pytest_gpuxfer.model.statistics import Summary
from pytest_gpuxfer.model.unknown import Unknown


class Outcome(StrEnum):
    """What a verdict comes to."""

    PASS = "pass"
    DEGRADED = "degraded"
    FAIL = "fail"
    ABSENT = "absent"
    ERROR = "error"
    INCONCLUSIVE = "inconclusive"
    NOT_EXPECTED = "not_expected"
    WAIVED = "waived"

    @property
    def red(self) -> bool:
        return self in (Outcome.FAIL, Outcome.ABSENT, Outcome.ERROR, Outcome.INCONCLUSIVE)

    @property
    def undecided(self) -> bool:
        """Red, but not the machine's proven fault: JUnit's <error>."""
        return self in (Outcome.ERROR, Outcome.INCONCLUSIVE)


class Reason(StrEnum):
    """Why, as a word that programs may match on."""

    NOT_MEASURED = "not-measured"
    WRONG_DATA = "wrong-data"
    GPU_MISSING = "gpu-missing"
    MIG = "mig-enabled"
    NOT_SUPPORTED = "not-supported"
    REFUSED = "refused"
    NO_PEER_ACCESS = "no-peer-access"
    KERNELS_NOT_HEARD = "kernels-not-heard"
    LINKS_SHORT = "links-short"
    PCIE_SHORT = "pcie-short"
    ACCESS_NOT_PROVEN = "peer-access-not-proven"
    OTHER_PATH = "other-path"
    PATH_NOT_PROVEN = "path-not-proven"
    ABOVE_PHYSICAL = "above-physical-link"
    BELOW_FLOOR = "below-floor"
    UNHEALTHY = "below-floor-while-unhealthy"
    STRADDLES_FLOOR = "straddles-floor"
    NO_LIMIT = "no-limit"
    BELOW_EXPECTED = "below-expected"
    INSIDE = "inside-limits"
    NOT_READABLE = "not-readable"
    NOT_EXPECTED = "not-expected"
    WAIVED = "waived"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cell's judgement. `words` is one line for a person; `unchecked` is what it leaves out."""

    outcome: Outcome
    reason: Reason
    words: str
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Case:
    """What the rules look at."""

    measurement: Measurement
    expectation: Expectation
    health: Health
    baselines: Mapping[Check, float]


_Rule = Callable[[_Case], Verdict | None]


def judge(
    measurement: Measurement | None,
    expectation: Expectation,
    health: Health | None = None,
    baselines: Mapping[Check, float] | None = None,
) -> Verdict:
    """The verdict on one cell.

    `health` is None until it was read: it never gates then and is listed as not checked.
    `baselines` holds the median rates (bytes per second) of other checks at the same place.
    """
    if expectation.not_expected is not None:
        return Verdict(Outcome.NOT_EXPECTED, Reason.NOT_EXPECTED, expectation.not_expected)
    if measurement is None:
        return Verdict(Outcome.ERROR, Reason.NOT_MEASURED, "it was not measured")
    read = Health(unread=("health: not read",)) if health is None else health
    case = _Case(measurement, expectation, read, baselines or {})
    verdict = next(found for rule in _RULES if (found := rule(case)) is not None)
    verdict = replace(verdict, unchecked=(*verdict.unchecked, *read.unread))
    return _waive(verdict, expectation)


def _waive(verdict: Verdict, expectation: Expectation) -> Verdict:
    waiver = expectation.waiver
    if waiver is None or not verdict.outcome.red or verdict.reason is Reason.WRONG_DATA:
        return verdict
    words = f"{verdict.words}; waived by {waiver.owner} until {waiver.until}: {waiver.reason}"
    return replace(verdict, outcome=Outcome.WAIVED, reason=Reason.WAIVED, words=words)


def _not_measured(case: _Case) -> Verdict | None:
    failure = case.measurement.failure
    if failure is None:
        return None
    return Verdict(Outcome.ERROR, Reason.NOT_MEASURED, f"{failure.kind}: {failure.message}")


def _wrong_data(case: _Case) -> Verdict | None:
    integrity = case.measurement.integrity
    if integrity is None or integrity.mismatch is None:
        return None
    words = f"wrong data, its rate is void: {integrity.mismatch}"
    return Verdict(Outcome.FAIL, Reason.WRONG_DATA, words)


def _absent(case: _Case) -> Verdict | None:
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


def _links_short(case: _Case) -> Verdict | None:
    reading, wanted = case.measurement.reading, case.expectation
    if reading is None:
        return None
    if wanted.nvlink is not None and reading.nvlinks is not None:
        if isinstance(reading.nvlinks, Unknown):
            words = f"NVLinks: {reading.nvlinks}"
            return Verdict(Outcome.INCONCLUSIVE, Reason.NOT_READABLE, words)
        return _nvlinks_short(reading.nvlinks, wanted)
    if wanted.pcie is not None and reading.pcie_under_load is not None:
        link = reading.pcie_under_load
        asked = {"generation": wanted.pcie.generation, "width": wanted.pcie.width}
        seen = {"generation": link.generation, "width": link.width}
        for name, value in seen.items():
            if not isinstance(value, Unknown) and value < asked[name]:
                words = f"PCIe {name} {value} under load, the profile asks for {asked[name]}"
                return Verdict(Outcome.FAIL, Reason.PCIE_SHORT, words)
    return None


def _nvlinks_short(ports: tuple[NvlinkPort, ...], wanted: Expectation) -> Verdict | None:
    assert wanted.nvlink is not None
    up = sum(1 for port in ports if port.active is True)
    down = [str(port.link) for port in ports if port.active is False]
    unread = [str(port.link) for port in ports if isinstance(port.active, Unknown)]
    if up < wanted.nvlink.links and up + len(unread) >= wanted.nvlink.links:
        words = f"state of NVLink {', '.join(unread)} not readable, {up} are up"
        return Verdict(Outcome.INCONCLUSIVE, Reason.NOT_READABLE, words)
    if up < wanted.nvlink.links:
        which = f" (down: link {', '.join(down)})" if down else ""
        words = f"{up} of {wanted.nvlink.links} NVLinks are up{which}"
        return Verdict(Outcome.FAIL, Reason.LINKS_SHORT, words)
    for port in ports:
        generation = port.generation
        if not isinstance(generation, Unknown) and generation < wanted.nvlink.generation:
            words = f"NVLink {port.link} is of generation {generation}"
            return Verdict(Outcome.FAIL, Reason.LINKS_SHORT, words)
        rate = port.rate_bytes_per_s
        if not isinstance(rate, Unknown) and rate < wanted.nvlink.per_link_bytes_per_s:
            words = f"NVLink {port.link} runs at {units.format_rate(rate)}"
            return Verdict(Outcome.FAIL, Reason.LINKS_SHORT, words)
    return None


def _kernels_not_heard(case: _Case) -> Verdict | None:
    reading = case.measurement.reading
    if reading is None:
        return None
    for count, what in ((reading.answered, "rounds of flags"), (reading.added, "atomic additions")):
        if count is not None and count.seen != count.asked:
            words = f"{count.seen} of {count.asked} {what} arrived"
            return Verdict(Outcome.FAIL, Reason.KERNELS_NOT_HEARD, words)
    return None


def _access_not_proven(case: _Case) -> Verdict | None:
    if not case.expectation.peer_access_required:
        return None
    broken = [side for side in case.measurement.access if side.proven is False]
    if not broken:
        return None
    words = "; ".join(map(str, broken))
    return Verdict(Outcome.FAIL, Reason.ACCESS_NOT_PROVEN, words)


def _other_path(case: _Case) -> Verdict | None:
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


def _path_not_proven(case: _Case) -> Verdict | None:
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


def _machine_check_done(case: _Case) -> Verdict | None:
    """A check of the machine itself has no rate: what it asked for was found, or not read."""
    if not case.expectation.cell.check.of_machine:
        return None
    reading = case.measurement.reading
    if reading is None:
        unproven = [s for s in case.measurement.access if isinstance(s.proven, Unknown)]
        if unproven or not case.measurement.access:
            words = "; ".join(map(str, unproven)) or "nothing was read"
            return Verdict(Outcome.INCONCLUSIVE, Reason.NOT_READABLE, words)
        words = "; ".join(map(str, case.measurement.access))
        return Verdict(Outcome.PASS, Reason.INSIDE, words)
    link = reading.pcie_under_load
    if link is not None and (
        isinstance(link.generation, Unknown) or isinstance(link.width, Unknown)
    ):
        # Virtual machines hide these: nothing to pass, nothing to fail; the rate is judged apart.
        words = f"PCIe link under load: generation {link.generation}, width {link.width}"
        return Verdict(Outcome.NOT_EXPECTED, Reason.NOT_READABLE, words, (words,))
    return Verdict(Outcome.PASS, Reason.INSIDE, _describe_reading(case), _nvlinks_unread(reading))


def _nvlinks_unread(reading: Reading) -> tuple[str, ...]:
    """What a profile declares of NVLinks and these did not tell, though they are up."""
    ports = () if isinstance(reading.nvlinks, Unknown) else reading.nvlinks or ()
    unread = {
        f"NVLink {name}: {value}"
        for port in ports
        if port.active is True
        for name, value in (("generation", port.generation), ("rate", port.rate_bytes_per_s))
        if isinstance(value, Unknown)
    }
    return tuple(sorted(unread))


def _describe_reading(case: _Case) -> str:
    reading = case.measurement.reading
    assert reading is not None
    if reading.gpus is not None:
        return f"{len(reading.gpus)} GPUs"
    if reading.pcie_under_load is not None:
        link = reading.pcie_under_load
        return f"PCIe Gen{link.generation} x{link.width} under load"
    for count, what in ((reading.answered, "rounds of flags"), (reading.added, "atomic additions")):
        if count is not None:
            return f"{count.seen} {what} arrived"
    ports = () if isinstance(reading.nvlinks, Unknown) else reading.nvlinks or ()
    return f"{sum(1 for port in ports if port.active is True)} NVLinks up"


def _refused(case: _Case) -> Verdict | None:
    """Without access, an error is the honest answer: what nobody may use was not moved."""
    refusal, check = case.measurement.refusal, case.expectation.cell.check
    if refusal is None:
        return None
    if check.access:
        return Verdict(Outcome.ERROR, Reason.NOT_MEASURED, refusal)
    return Verdict(Outcome.PASS, Reason.REFUSED, f"refused without access: {refusal}")


def _unusable(case: _Case) -> Verdict | None:
    """Samples that are missing, impossible or of unchecked data are no measurement."""
    measurement = case.measurement
    why = ""
    if not measurement.samples:
        why = "; ".join(dict.fromkeys(measurement.discarded)) or "no sample was taken"
    elif not all(_possible(sample) for sample in measurement.samples):
        why = "a sample's time or size is impossible"
    elif measurement.integrity is None or measurement.integrity.checked_bytes <= 0:
        why = "the data was not checked"
    return Verdict(Outcome.ERROR, Reason.NOT_MEASURED, why) if why else None


def _possible(sample: Sample) -> bool:
    return (
        math.isfinite(sample.elapsed_ns)
        and sample.elapsed_ns > 0
        and sample.moved_bytes > 0
        and sample.operations > 0
        and all(math.isfinite(elapsed) and elapsed > 0 for elapsed in sample.flows_ns)
    )


def _above_physical(case: _Case) -> Verdict | None:
    bound, rates = case.expectation.physical, case.measurement.rates()
    if bound is None or rates is None or rates.median <= bound.value:
        return None
    words = f"{units.format_rate(rates.median)} is above the link's {bound.text}: measured wrongly"
    return Verdict(Outcome.ERROR, Reason.ABOVE_PHYSICAL, words)


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


def _rate_against_limit(case: _Case) -> Verdict | None:
    limit = case.expectation.limit
    if limit is None or (limit.floor is None and limit.ceiling is None and not limit.unlimited):
        words = "the profile has no limit for this check and size"
        return Verdict(Outcome.ERROR, Reason.NO_LIMIT, words)
    bound = limit.ceiling or limit.floor
    if bound is None:
        return None
    value = bound.resolve(case.baselines)
    if value is None:
        words = f"{bound.text}: {bound.of_check} has no figure at {case.expectation.cell.place}"
        return Verdict(Outcome.INCONCLUSIVE, Reason.NO_LIMIT, words)
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


def _inside(case: _Case) -> Verdict:
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
    wanted = limit.expect.resolve(case.baselines) if limit.expect else None
    tolerance = case.expectation.tolerance
    if wanted is not None and rates.high < wanted * (1 - tolerance):
        words = f"{words} is more than {tolerance:.0%} below the {show(wanted)} expected"
        assert limit.expect is not None
        return Verdict(Outcome.DEGRADED, Reason.BELOW_EXPECTED, f"{words}, {limit.expect.location}")
    return Verdict(Outcome.PASS, Reason.INSIDE, words)


_RULES: Final[tuple[_Rule, ...]] = (
    _not_measured,
    _wrong_data,
    _refused,
    _absent,
    _links_short,
    _kernels_not_heard,
    _access_not_proven,
    _other_path,
    _path_not_proven,
    _machine_check_done,
    _unusable,
    _above_physical,
    _rate_against_limit,
    _inside,
)
