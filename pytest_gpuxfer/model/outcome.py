"""What a verdict is, and what the rules look at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pytest_gpuxfer.model.cell import Check
from pytest_gpuxfer.model.expectation import Expectation
from pytest_gpuxfer.model.measurement import Health, Measurement


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
    OUT_OF_FABRIC = "out-of-fabric"
    LINKS_SHORT = "links-short"
    PCIE_SHORT = "pcie-short"
    ACCESS_NOT_PROVEN = "peer-access-not-proven"
    OTHER_PATH = "other-path"
    PATH_NOT_PROVEN = "path-not-proven"
    ABOVE_PHYSICAL = "above-physical-link"
    BELOW_FLOOR = "below-floor"
    UNHEALTHY = "below-floor-while-unhealthy"
    STRADDLES_FLOOR = "straddles-floor"
    DOUBTFUL = "doubtful"
    NO_LIMIT = "no-limit"
    NO_BASE = "no-base"
    XID = "xid"
    ERRORS_ROSE = "errors-rose"
    CRASHED_ONCE = "crashed-once"
    OUTLIER = "outlier"
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
class Case:
    """What the rules look at."""

    measurement: Measurement
    expectation: Expectation
    health: Health
    baselines: Mapping[Check, float]
