"""What is wrong with a simulated machine: the state that faults leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

Pair = tuple[int, int]  # source and destination; of peer access: who maps, and the owner
Way = tuple[int, ...]  # a pair, or one GPU: both ways between it and the host


class Damage(StrEnum):
    """What becomes of data on its way."""

    DROPPED = "dropped"  # posted writes alone
    ZEROS = "zeros"
    NAN = "nan"
    STALE = "stale"
    FLIPPED_BIT = "flipped bit"
    ONE_PAGE = "one page"


class Trouble(Enum):
    """What becomes of the call that moves data, or of the work that it enqueues."""

    COPY_HANGS = auto()
    KERNEL_HANGS = auto()
    CALL_HANGS = auto()
    STICKY_ERROR = auto()
    CRASH = auto()


class Counters(Enum):
    """What is wrong with a GPU's byte counters."""

    MISSING = auto()
    STUCK = auto()
    MOVED = auto()


@dataclass(slots=True)
class Defects:
    """All that faults did. GPUs are numbered as they are found, when some are missing."""

    # Links: a GPU and its link.
    down_links: set[Pair] = field(default_factory=set)
    half_links: set[Pair] = field(default_factory=set)
    flapping_links: set[Pair] = field(default_factory=set)
    # Peer access.
    refused_pairs: set[Pair] = field(default_factory=set)
    unsupported_pairs: set[Pair] = field(default_factory=set)
    # Ways.
    staged_pairs: set[Pair] = field(default_factory=set)
    damage: dict[Way, set[Damage]] = field(default_factory=dict)
    troubles: dict[Way, set[Trouble]] = field(default_factory=dict)
    slow_pairs: dict[Pair, float] = field(default_factory=dict)  # the part of its rate left
    late_pairs: set[Pair] = field(default_factory=set)
    collapsing: bool = False
    # GPUs.
    slow_gpus: dict[int, float] = field(default_factory=dict)  # the part of each rate left
    lower_generations: set[int] = field(default_factory=set)
    half_widths: set[int] = field(default_factory=set)
    sleepy: set[int] = field(default_factory=set)  # PCIe trains down to the first generation
    far_gpus: set[int] = field(default_factory=set)
    noisy: set[int] = field(default_factory=set)
    throttled: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)
    mig: set[int] = field(default_factory=set)
    erring: set[int] = field(default_factory=set)  # links count errors and replays
    xids: dict[int, int] = field(default_factory=dict)  # the code that comes in mid-run
    counters: dict[int, set[Counters]] = field(default_factory=dict)
    fabric: dict[int, str] = field(default_factory=dict)
    # The machine.
    fabric_not_ready: bool = False
    confidential: bool = False
    driver_gone: bool = False
