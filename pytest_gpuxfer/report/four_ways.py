"""The four ways from GPU to GPU that people choose between, beside what is published of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from pytest_gpuxfer.model import units
from pytest_gpuxfer.report.failure import rates_of
from pytest_gpuxfer.report.records import CellLine, Record


@dataclass(frozen=True, slots=True)
class Way:
    """A check that stands for a way, and the rate published for it on A100."""

    what: str
    published_bytes_per_s: float


# Four ways of moving 128 MiB between two of 8 x A100-SXM4-80GB, NV12, CUDA 12.8: the first two
# there and back 10 times, the others one way.
_PUBLISHED: Final = "published for 8 x A100-SXM4-80GB, NV12, CUDA 12.8, 128 MiB"
_PUBLISHED_WHY: Final = (
    "its rates of mapped and managed memory come from loads that are not coalesced and",
    "from pages that move one by one, not from the machine",
)
WAYS: Final[Mapping[str, Way]] = {
    "peer_copy.write.round-trip": Way("peer to peer", 249.0e9),
    "host_relay": Way("by way of the host", 11.8e9),
    "zero_copy.sm": Way("mapped host memory", 2.9e9),
    "managed": Way("managed memory", 2.1e9),
}
_SIZES_BYTES: Final = (128 * units.MIB, 256 * units.MIB)  # as the suites measure them
_PRODUCT: Final = "A100"


def four_ways(record: Record) -> Iterator[str]:
    """One small table, where at least two of the ways were measured."""
    here = {check: rate for check in WAYS if (rate := _median(check, record.cells)) is not None}
    if len(here) < 2:
        return
    machine = record.header.machine
    beside = machine is not None and any(_PRODUCT in gpu.name for gpu in machine.gpus)
    yield ""
    yield "From GPU to GPU, median of all pairs:"
    for check, rate in here.items():
        way = WAYS[check]
        published = f"{units.format_rate(way.published_bytes_per_s):>14}" if beside else ""
        yield f"  {way.what:<20}{check:<28}{units.format_rate(rate):>12}{published}"
    if beside:
        yield f"  last column: {_PUBLISHED};"
        yield from (f"  {words}" for words in _PUBLISHED_WHY)


def _median(check: str, cells: Sequence[CellLine]) -> float | None:
    found = [
        rates.median
        for line in cells
        if str(line.expectation.cell.check) == check
        and line.expectation.cell.size_bytes in _SIZES_BYTES
        and (rates := rates_of(line)) is not None
    ]
    return median(found) if found else None
