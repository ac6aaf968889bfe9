"""What measuring one cell told: frozen, picklable, complete enough to judge it again anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import Cell
from pytest_gpuxfer.model.machine import NvlinkPort, PcieLink
from pytest_gpuxfer.model.statistics import Summary, summarize
from pytest_gpuxfer.model.unknown import Unknown

NOT_TRIED = Unknown("not tried")


class PathKind(StrEnum):
    """What bytes cross on their way."""

    NVLINK = "nvlink"
    PCIE_P2P = "pcie_p2p"
    STAGED = "staged"  # the driver copied through host memory behind our back
    HOST_LINK = "host_link"
    C2C = "c2c"
    LOCAL = "local"


class SignalName(StrEnum):
    """What can tell the path; a profile's `proof:` names the ones that suffice for a class."""

    COUNTERS = "counters"  # NVLink byte counters before and after
    ACCESS = "access"  # peer access enabled in both directions
    ENQUEUE = "enqueue"  # whether the driver enqueued the copy in pieces: it stages so
    STAGED_RATE = "staged_rate"  # the rate against the same pair's with access off
    LATENCY = "latency"  # how long a small copy takes


@dataclass(frozen=True, slots=True)
class Signal:
    """One witness of the path: the paths that agree with what it saw, and what that was."""

    name: SignalName
    agrees_with: tuple[PathKind, ...] | Unknown
    words: str


class Access(StrEnum):
    """What became of asking for peer access in one direction."""

    ENABLED = "enabled"
    ALREADY_ENABLED = "already enabled by others"
    OFF = "off"
    REFUSED = "refused by the driver"  # it says that this GPU cannot map that one
    UNSUPPORTED = "offered, yet enabling it failed as unsupported"
    TOO_MANY_PEERS = "too many peers are mapped already"
    WRONG_CONTEXT = "the context that asked is not valid"

    @property
    def on(self) -> bool:
        return self in (Access.ENABLED, Access.ALREADY_ENABLED)


@dataclass(frozen=True, slots=True)
class AccessDirection:
    """Whether `mapper` may use memory of `owner`, and whether a kernel proved that it can."""

    mapper: int
    owner: int
    answer: Access
    proven: bool | Unknown = NOT_TRIED

    def __str__(self) -> str:
        if isinstance(self.proven, Unknown):
            proof = f"kernel access {self.proven.reason}" if self.answer.on else ""
        else:
            proof = "proven by a kernel" if self.proven else "a kernel's stores did not arrive"
        words = f"gpu{self.mapper} to memory of gpu{self.owner}: {self.answer}"
        return f"{words}, {proof}" if proof else words


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed interval: `operations` copies of each flow, which moved `moved_bytes` together.

    Where several flows ran at once, `flows_ns` is how long each took; all moved the same.
    """

    elapsed_ns: float
    moved_bytes: int
    operations: int
    flows_ns: tuple[float, ...] = ()

    @property
    def possible(self) -> bool:
        """Whether its numbers can be those of a copy: a record's may be anything."""
        times_ns = (self.elapsed_ns, *self.flows_ns)
        if self.operations <= 0 or not all(0 < elapsed < math.inf for elapsed in times_ns):
            return False
        try:
            rates = (self.total_bytes_per_s, self.rate_bytes_per_s)
            return all(0 < part < math.inf for part in (*rates, self.elapsed_ns / self.operations))
        except OverflowError:  # a whole number that no float holds
            return False

    @property
    def total_bytes_per_s(self) -> float:
        return units.rate_of(self.moved_bytes, self.elapsed_ns)

    @property
    def flow_rates_bytes_per_s(self) -> tuple[float, ...]:
        """Each flow's own rate."""
        each_bytes = self.moved_bytes // max(len(self.flows_ns), 1)
        return tuple(units.rate_of(each_bytes, elapsed) for elapsed in self.flows_ns)

    @property
    def rate_bytes_per_s(self) -> float:
        """The rate of one direction: of the slowest flow, where there are several."""
        return min(self.flow_rates_bytes_per_s, default=self.total_bytes_per_s)


class Corruption(StrEnum):
    """What wrong data looks like, told from its first word and its extent."""

    NEVER_WRITTEN = "the destination was never written"
    ZEROS = "zeros"
    STALE = "data of an earlier copy"
    SHIFTED = "data of another place"
    FLIPPED_BIT = "one flipped bit"
    ONE_PAGE = "within one 64 KiB page"
    OTHER = "other data"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Wrong data at a destination. Offsets in bytes from its start, words as unsigned 64 bit."""

    wrong_words: int
    first_offset_bytes: int
    last_offset_bytes: int
    expected: int
    got: int
    corruption: Corruption

    def __str__(self) -> str:
        words = "word is" if self.wrong_words == 1 else "words are"
        return (
            f"{self.wrong_words} 8-byte {words} wrong ({self.corruption}), the first at byte"
            f" {self.first_offset_bytes}: expected {self.expected:#018x}, got {self.got:#018x}"
        )


@dataclass(frozen=True, slots=True)
class Integrity:
    """The data check by the owner of the destination, over all samples of a cell."""

    checked_bytes: int
    mismatch: Mismatch | None = None


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """How far a GPU's NVLink byte counters rose while the cell was measured."""

    gpu: int
    sent_bytes: int | Unknown
    received_bytes: int | Unknown


@dataclass(frozen=True, slots=True)
class Health:
    """What was wrong with the machine while a cell was measured, and what could not be read."""

    concerns: tuple[str, ...] = ()  # "gpu3 throttled: hardware thermal slowdown", ...
    unread: tuple[str, ...] = ()
    risen: tuple[str, ...] = ()  # "NVLink errors of gpu3 rose by 12", ...
    xids: tuple[str, ...] = ()  # "Xid 74 on gpu3", ...: what the driver reported meanwhile
    modes: tuple[str, ...] = ()  # "confidential computing on gpu3", ...: no fault, yet it costs


class FailureKind(StrEnum):
    """Why a cell could not be measured."""

    NO_DRIVER = "no driver"
    NOT_READY = "driver or fabric not ready"
    DRIVER_ERROR = "driver error"
    STICKY_ERROR = "sticky GPU error"  # no call of the process that met it works any more
    HANG = "hang"
    CRASH = "crash"
    CANNOT_ALLOCATE = "cannot allocate"
    DEADLINE = "deadline"  # of the whole run


@dataclass(frozen=True, slots=True)
class Failure:
    """The one line that says why a cell was not measured, and what to do about it."""

    kind: FailureKind
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """How many of what was asked for came to pass."""

    seen: int
    asked: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What a check of the machine itself read; the fields of other checks stay None."""

    gpus: tuple[str, ...] | None = None  # product names in PCI order
    mig_gpus: tuple[str, ...] = ()  # labels of GPUs with MIG on
    nvlinks: tuple[NvlinkPort, ...] | Unknown | None = None
    fabric: str | Unknown | None = None  # of a GPU: "completed", "not supported", ...
    pcie_under_load: PcieLink | None = None
    answered: Count | None = None  # rounds of flags between two running kernels
    added: Count | None = None  # atomic additions that arrived
    medians: Mapping[str, float] | None = None  # bytes per second, by place, of equal cells


@dataclass(frozen=True, slots=True)
class Measurement:
    """Everything that measuring a cell told. Verdicts rest on this and on the profile alone."""

    cell: Cell
    samples: tuple[Sample, ...] = ()
    discarded: tuple[str, ...] = ()  # why samples were thrown away
    doubt: str | None = None  # why some samples may look better than the truth
    gated: bool = False
    moved_bytes: int = 0  # between the two counter readings: probe, warm-up and samples
    integrity: Integrity | None = None
    traffic: tuple[LinkTraffic, ...] = ()
    access: tuple[AccessDirection, ...] = ()
    signals: tuple[Signal, ...] = ()
    flows: tuple[str, ...] = ()  # "gpu0-gpu1", "host-gpu3", ...: in the order of `Sample.flows_ns`
    lacking: str | None = None  # why the machine cannot do this at all
    refusal: str | None = None  # how the driver refused what lacks access
    reading: Reading | None = None
    health: Health = Health()
    failure: Failure | None = None
    crash: str | None = None  # how the first attempt ended, where the second one did not
    duration_ns: float = 0.0

    def rates(self) -> Summary | None:
        """The rates of all samples in bytes per second, or None where there are none."""
        return summarize([s.rate_bytes_per_s for s in self.samples]) if self.samples else None

    def flow_rates(self) -> tuple[Summary, ...]:
        """The rates of each of several flows in bytes per second, in the order of `flows`."""
        each = zip(*(sample.flow_rates_bytes_per_s for sample in self.samples), strict=False)
        return tuple(map(summarize, each))

    def fastest_flow(self) -> Summary | None:
        """The rates of the fastest flow in bytes per second; of the one, where there is one."""
        return max(self.flow_rates(), key=lambda rates: rates.median, default=self.rates())

    def totals(self) -> Summary | None:
        """All flows' bytes over the time until the last has ended, in bytes per second."""
        return summarize([s.total_bytes_per_s for s in self.samples]) if self.samples else None

    def latencies(self) -> Summary | None:
        """Nanoseconds an operation, or None where there are no samples."""
        if not self.samples:
            return None
        return summarize([sample.elapsed_ns / sample.operations for sample in self.samples])
