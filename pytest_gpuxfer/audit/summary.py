"""What a program moved, in words: the table at its end, and a line a second while it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Final

from pytest_gpuxfer.audit.traffic import Bytes, GpuTraffic, Traffic, UncertainBytes
from pytest_gpuxfer.model.units import GB, NS_PER_MS, format_bytes, format_duration, rate_of

_COLUMNS: Final = (
    ("NVLink sent", "nvlink_sent_bytes"),
    ("NVLink received", "nvlink_received_bytes"),
    ("PCIe sent", "pcie_sent_bytes"),
    ("PCIe received", "pcie_received_bytes"),
)
_STILL_BYTES_PER_S: Final = 0.01 * GB  # below which the live line does not name a GPU
_SURE: Final = (
    "Counted is all that each GPU moved meanwhile, for other processes too.",
    "NVLink: data bytes, to 1 KiB a link. PCIe: packets and all, about 8% above large copies' data",
    "(a copy to a GPU also sends 9% of it, the requests), and 1 to 3 MB/s of control traffic;",
    "PCIe does not tell peer-to-peer from host memory.",
)


def table(gpus: Sequence[GpuTraffic], interval_ns: int) -> list[str]:
    """The lines of the summary: a GPU each, pairs as far as they are certain, how sure it is."""
    rows = [("", *(title for title, _ in _COLUMNS))]
    rows += [(_name(index, gpu), *map(_amount, _amounts(gpu))) for index, gpu in enumerate(gpus)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]
    return [*lines, *_pairs(gpus), *_reasons(gpus), *_SURE, _sampling(gpus, interval_ns)]


def live_line(
    elapsed_ns: float, before: Sequence[GpuTraffic], now: Sequence[GpuTraffic], since_ns: float
) -> str:
    """What each GPU moves right now, sent/received, in GB/s."""
    parts = []
    for index, (old, new) in enumerate(zip(before, now, strict=True)):
        rates = [
            _rate(*amounts, since_ns) for amounts in zip(_amounts(old), _amounts(new), strict=True)
        ]
        if any(rate is None or rate >= _STILL_BYTES_PER_S for rate in rates):
            words = ["?" if rate is None else f"{rate / GB:.2f}" for rate in rates]
            parts.append("gpu{} NVLink {}/{} PCIe {}/{}".format(index, *words))
    moving = ", ".join(parts)
    return f"{format_duration(elapsed_ns)}  {f'{moving} GB/s' if moving else 'all still'}"


def _name(index: int, gpu: GpuTraffic) -> str:
    return f"gpu{index} {gpu.pci_address} {gpu.name}"


def _amounts(gpu: GpuTraffic) -> list[Bytes]:
    return [getattr(gpu, field) for _, field in _COLUMNS]


def _amount(amount: Bytes) -> str:
    if not isinstance(amount, UncertainBytes):
        return format_bytes(amount)
    least, most = amount.at_least_bytes, amount.at_most_bytes
    if not math.isfinite(most - least):
        return "unknown"
    return f"{format_bytes(int(least))} to {format_bytes(int(most))}"


def _rate(before: Bytes, now: Bytes, since_ns: float) -> float | None:
    """Known also between two uncertain amounts, if nothing was missed from one to the other."""
    (old_least, old_most), (least, most) = _bounds(before), _bounds(now)
    rose = least - old_least
    return rate_of(int(rose), since_ns) if rose == most - old_most else None


def _bounds(amount: Bytes) -> tuple[float, float]:
    if isinstance(amount, UncertainBytes):
        return amount.at_least_bytes, amount.at_most_bytes
    return amount, amount


def _pairs(gpus: Sequence[GpuTraffic]) -> list[str]:
    traffic = Traffic()
    traffic.complete(gpus)
    return [
        f"gpu{a} -> gpu{b}: {format_bytes(moved)} over NVLink"
        for a, b in permutations(range(len(gpus)), 2)
        if not isinstance(moved := traffic.between(a, b).nvlink_bytes, UncertainBytes) and moved
    ]


def _reasons(gpus: Sequence[GpuTraffic]) -> list[str]:
    return [
        f"gpu{index} {title} unknown: {amount.reason}"
        for index, gpu in enumerate(gpus)
        for (title, _), amount in zip(_COLUMNS, _amounts(gpu), strict=True)
        if isinstance(amount, UncertainBytes)
    ]


def _sampling(gpus: Sequence[GpuTraffic], interval_ns: int) -> str:
    gap = max((gpu.longest_gap_ns for gpu in gpus), default=0) / NS_PER_MS
    limit = min((gpu.gap_limit_ns for gpu in gpus), default=0) / NS_PER_MS
    every = interval_ns / NS_PER_MS
    return (
        f"PCIe read every {every:g} ms, longest gap {gap:.0f} ms; {limit:.0f} ms could hide a wrap."
    )
