"""The median of some samples, and how sure it is. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

CONFIDENCE: Final = 0.95
# Healthy pairs of one machine differ by 0.04% (H200); a tenth of a link's loss shows at 3%.
OUTLIER_DEVIATIONS: Final = 5.0  # median absolute deviations
OUTLIER_PART: Final = 0.03  # and of the median, both


@dataclass(frozen=True, slots=True)
class Summary:
    """A median with its confidence interval, all in the unit of the samples.

    `low` and `high` are order statistics that hold the true median with at least `CONFIDENCE`,
    whatever the distribution is; with fewer than six samples no two of them do, and the interval
    is the range from least to most.
    """

    count: int
    median: float
    low: float
    high: float
    least: float
    most: float

    @property
    def relative_halfwidth(self) -> float:
        """Half the interval's width, as a part of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else math.inf


@cache
def interval_rank(count: int) -> int:
    """How many samples to leave out at each end, so that the rest holds the median.

    The chance that the median lies outside the k-th smallest and largest of n samples is
    2 * sum(C(n, i), i < k) / 2^n (binomial; e.g. Conover, Practical Nonparametric Statistics).
    """
    tail, left_out = 0, 0
    while left_out < (count - 1) // 2:
        tail += math.comb(count, left_out)
        if 2 * tail / 2**count > 1 - CONFIDENCE:
            break
        left_out += 1
    return max(left_out - 1, 0)


def summarize(samples: Sequence[float]) -> Summary:
    """Median and interval of `samples`. Raises ValueError where one is not finite or none is."""
    if not samples or not all(math.isfinite(sample) for sample in samples):
        raise ValueError("a summary needs at least one sample, and finite ones alone")
    ordered = sorted(samples)
    count, rank = len(ordered), interval_rank(len(ordered))
    middle = count // 2
    # a/2 + b/2, for a + b may overflow
    median = ordered[middle] if count % 2 else ordered[middle - 1] / 2 + ordered[middle] / 2
    return Summary(count, median, ordered[rank], ordered[-1 - rank], ordered[0], ordered[-1])


def outliers(values: Mapping[str, float]) -> tuple[str, ...]:
    """The names whose value lies beyond both bounds from the median of all, least first."""
    middle = statistics.median(values.values())
    deviation = statistics.median(abs(value - middle) for value in values.values())
    bound = max(OUTLIER_DEVIATIONS * deviation, OUTLIER_PART * middle)
    beyond = [name for name, value in values.items() if abs(value - middle) > bound]
    return tuple(sorted(beyond, key=lambda name: values[name]))
