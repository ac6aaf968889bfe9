"""What GPUs moved, as values that a test may compare: what is not known never passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pytest_gpuxfer.model.units import format_bytes
from pytest_gpuxfer.model.unknown import Unknown


class UnknownTrafficError(Exception):
    """A comparison or sum was asked of bytes that are not known; the message is the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class UncertainBytes(Unknown):
    """An amount of bytes that is not known, or known only to lie between two bounds.

    It compares as a number where its bounds decide; else, and in any sum, UnknownTrafficError is
    raised with the reason. So no assertion passes, nor fails, by what nobody counted.
    """

    at_least_bytes: float = -math.inf
    at_most_bytes: float = math.inf

    def __lt__(self, other: Any) -> bool:
        if self.at_most_bytes < other:
            return True
        return False if self.at_least_bytes >= other else self._refuse()

    def __le__(self, other: Any) -> bool:
        if self.at_most_bytes <= other:
            return True
        return False if self.at_least_bytes > other else self._refuse()

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __eq__(self, other: object) -> bool:
        outside = isinstance(other, (int, float)) and (self < other or self > other)
        return False if outside else self._refuse()

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def _refuse(self, *_: object) -> NoReturn:
        raise UnknownTrafficError(self.reason)

    __bool__ = __int__ = __float__ = __index__ = __round__ = __abs__ = __neg__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse


Bytes = int | UncertainBytes


@dataclass(frozen=True, slots=True, eq=False)
class GpuTraffic:
    """What one GPU moved, whoever asked it to.

    NVLink: data bytes, to 1 KiB a link. PCIe: packets and all, about 8% above the data of large
    copies, and 1 to 3 MB/s of control traffic.
    """

    uuid: str
    pci_address: str
    name: str
    nvlink_sent_bytes: Bytes
    nvlink_received_bytes: Bytes
    pcie_sent_bytes: Bytes
    pcie_received_bytes: Bytes
    longest_gap_ns: int = 0  # between two readings of its PCIe counters
    gap_limit_ns: int = 0  # after which these could have wrapped unseen

    @classmethod
    def unknown(cls, uuid: str, pci_address: str, name: str, why: Unknown) -> GpuTraffic:
        """A GPU of which nothing was counted."""
        lost = UncertainBytes(why.reason)
        return cls(uuid, pci_address, name, lost, lost, lost, lost)


@dataclass(frozen=True, slots=True, eq=False)
class PairTraffic:
    """What went from one GPU to another; see `Traffic.between` for how sure it is."""

    nvlink_bytes: Bytes


class Traffic:
    """What each GPU moved during an audit; complete once its block has ended."""

    def __init__(self) -> None:
        self._gpus: tuple[GpuTraffic, ...] | None = None
        self._others: tuple[GpuTraffic, ...] = ()

    def complete(self, gpus: Sequence[GpuTraffic], others: Sequence[GpuTraffic] = ()) -> None:
        """Fill in gpu0 and on, and the machine's GPUs that have no number here."""
        self._gpus, self._others = tuple(gpus), tuple(others)

    @property
    def gpus(self) -> tuple[GpuTraffic, ...]:
        """gpu0 and on. Raises UnknownTrafficError inside the block."""
        if self._gpus is None:
            raise UnknownTrafficError("the audit still runs: ask after its `with` block")
        return self._gpus

    def gpu(self, index: int) -> GpuTraffic:
        """What gpuN moved. Raises IndexError for a GPU that is not there."""
        if not 0 <= index < len(self.gpus):
            raise IndexError(f"gpu{index} is not there; this audit has {len(self.gpus)} GPUs")
        return self.gpus[index]

    def between(self, source: int, destination: int) -> PairTraffic:
        """What went over NVLink from one GPU to another, between bounds that the counters allow.

        A GPU's counters say how much it sent and received, not to and from whom. At most the
        lesser of what the source sent and the destination received went between them; at least
        what no other GPU can have received or sent instead. Where the two meet (only these two
        moved bytes, or all others only sent, or only received) it is an int; else UncertainBytes
        with both bounds. GPUs that NVML does not list here are taken to be still.
        """
        if source == destination:
            raise ValueError(f"gpu{source} twice: a pair is of two GPUs")
        sent = self.gpu(source).nvlink_sent_bytes
        received = self.gpu(destination).nvlink_received_bytes
        if isinstance(sent, UncertainBytes):
            return PairTraffic(sent)
        if isinstance(received, UncertainBytes):
            return PairTraffic(received)
        others = [gpu for n, gpu in enumerate(self.gpus) if n not in (source, destination)]
        others += self._others
        to_others = _total(gpu.nvlink_received_bytes for gpu in others)
        from_others = _total(gpu.nvlink_sent_bytes for gpu in others)
        at_most = min(sent, received)
        at_least = max(0, min(sent - to_others, received - from_others, at_most))
        if at_least == at_most:
            return PairTraffic(at_most)
        bounds = f"between {format_bytes(int(at_least))} and {format_bytes(at_most)}"
        why = f"what other GPUs moved leaves it open: gpu{source} to gpu{destination}, {bounds}"
        return PairTraffic(UncertainBytes(why, at_least, at_most))


def _total(amounts: Iterable[Bytes]) -> float:
    """The most that it can be."""
    return sum(
        amount.at_most_bytes if isinstance(amount, UncertainBytes) else amount for amount in amounts
    )
