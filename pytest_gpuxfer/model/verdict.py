"""The rules of judgement, in order; the first that holds wins. Pure and total."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from pytest_gpuxfer.model import machine_rules, rules
from pytest_gpuxfer.model.cell import Check
from pytest_gpuxfer.model.expectation import Expectation
from pytest_gpuxfer.model.measurement import Health, Measurement
from pytest_gpuxfer.model.outcome import Case
from pytest_gpuxfer.model.outcome import Outcome as Outcome
from pytest_gpuxfer.model.outcome import Reason as Reason
from pytest_gpuxfer.model.outcome import Verdict as Verdict

_Rule = Callable[[Case], Verdict | None]

_RULES: Final[tuple[_Rule, ...]] = (
    rules.not_measured,
    rules.wrong_data,
    rules.xid,
    rules.refused,
    rules.absent,
    machine_rules.out_of_fabric,
    machine_rules.links_short,
    machine_rules.kernels_not_heard,
    rules.access_not_proven,
    rules.other_path,
    rules.path_not_proven,
    machine_rules.uneven,
    machine_rules.machine_check_done,
    rules.unusable,
    rules.above_physical,
    rules.rate_against_limit,
    rules.doubtful,
    rules.inside,
)


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
    case = Case(measurement, expectation, read, baselines or {})
    verdict = next(found for rule in _RULES if (found := rule(case)) is not None)
    verdict = replace(verdict, unchecked=(*verdict.unchecked, *read.unread))
    return _waive(_mark(verdict, case), expectation)


def _mark(verdict: Verdict, case: Case) -> Verdict:
    """A figure is not as good as it looks where errors rose meanwhile, or it took two attempts."""
    risen, crash = case.health.risen, case.measurement.crash
    if verdict.outcome is not Outcome.PASS or not (risen or crash):
        return verdict
    told = [f"{'; '.join(risen)} while it was measured"] if risen else []
    told += [f"{crash} at first"] if crash else []
    return replace(
        verdict,
        outcome=Outcome.DEGRADED,
        reason=Reason.ERRORS_ROSE if risen else Reason.CRASHED_ONCE,
        words=f"{verdict.words}, but {' and '.join(told)}",
    )


def _waive(verdict: Verdict, expectation: Expectation) -> Verdict:
    waiver = expectation.waiver
    if waiver is None or not verdict.outcome.red or verdict.reason is Reason.WRONG_DATA:
        return verdict
    words = f"{verdict.words}; waived by {waiver.owner} until {waiver.until}: {waiver.reason}"
    return replace(verdict, outcome=Outcome.WAIVED, reason=Reason.WAIVED, words=words)
