"""How a transfer is timed so that it can be trusted: probe, warm-up, poison, gate, samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pytest_gpuxfer.hardware.driver import Memory
from pytest_gpuxfer.model.measurement import Mismatch, Sample
from pytest_gpuxfer.model.pattern import Pattern
from pytest_gpuxfer.model.statistics import summarize
from pytest_gpuxfer.model.units import MIB, NS_PER_MS, NS_PER_S
from pytest_gpuxfer.transfer import integrity
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import Transfer
from pytest_gpuxfer.transfer.waiting import wait_idle

PROBE_BYTES: Final = (MIB, 64 * MIB)
FEWEST_SAMPLES: Final = 9  # the fewest whose interval leaves an outlier out at each end
MOST_SAMPLES: Final = 33
PRECISION: Final = 0.005  # sample on until half the interval is within this part of the median
_SAMPLE_NS: Final = 10 * NS_PER_MS  # an interval so long that start-up and clock grain vanish
_MOST_COPIES: Final = 64  # the queue behind a gate is finite; enqueues would block
_GATE_LIMIT_NS: Final = int(NS_PER_S)
_WARM_UPS: Final = 2
_PROBES: Final = 3
_GROWTH: Final = 3.0  # between one time for any size, and 64 times for 64 times the size


@dataclass(frozen=True, slots=True)
class Probe:
    """The first, ungated copies of a cell: a short and a long one, each several times.

    The least of several enqueue times counts: the first call initializes the driver, and a busy
    host delays any. Enqueuing a copy that the GPUs carry out by themselves takes the same time for
    any size (14 to 33 us on H200, whether 16 or 64 MiB); one that the driver stages is enqueued in
    pieces, and takes the longer the more there is to move (240 to 400 us for 64 MiB).
    """

    short_enqueue_ns: float
    enqueue_ns: float
    elapsed_ns: float
    size_bytes: int

    @property
    def in_pieces(self) -> bool:
        """Whether the driver enqueued the long copy piece by piece."""
        return self.enqueue_ns > _GROWTH * self.short_enqueue_ns

    def copies_for(self, size_bytes: int) -> int:
        """How many copies of `size_bytes` make an interval long enough."""
        expected_ns = self.elapsed_ns * size_bytes / self.size_bytes
        return max(1, min(_MOST_COPIES, round(_SAMPLE_NS / expected_ns)))


class Sampler:
    """Takes the samples of one cell; counts every byte that it moves."""

    def __init__(self, arena: Arena, cell_id: str) -> None:
        self._arena = arena
        self._cell_id = cell_id
        self._round = 0
        self._last: Pattern | None = None
        self.gated = False
        self.moved_bytes = 0
        self.checked_bytes = 0
        self.mismatch: Mismatch | None = None
        self.samples: list[Sample] = []
        self.discarded: list[str] = []

    def probe(self, short: Transfer, long: Transfer) -> Probe:
        """Copies with no gate, each checked. Raises HangError, DriverError."""
        short_enqueue_ns, _ = self._probe_size(short)
        enqueue_ns, elapsed_ns = self._probe_size(long)
        return Probe(short_enqueue_ns, enqueue_ns, elapsed_ns, long.size_bytes)

    def _probe_size(self, transfer: Transfer) -> tuple[float, float]:
        took = [self._probe_once(transfer) for _ in range(_PROBES)]
        return min(enqueue for enqueue, _ in took), min(elapsed for _, elapsed in took)

    def _probe_once(self, transfer: Transfer) -> tuple[float, float]:
        clock = self._arena.clock
        source, pattern = self._load(transfer)
        self._poison(transfer)
        self._start(transfer)
        before = clock.now_ns()
        transfer.enqueue(source)
        enqueue_ns = float(clock.now_ns() - before)
        self._record_end(transfer)
        elapsed_ns = self._elapsed(transfer)
        self.moved_bytes += transfer.size_bytes
        self._check(transfer, pattern)
        return enqueue_ns, elapsed_ns

    def sample_until_sure(
        self, transfer: Transfer, copies: int, *, gated: bool, decide_at: float | None
    ) -> None:
        """Samples until the median is precise and clear of `decide_at` (bytes per second)."""
        self.gated = gated
        self._warm_up(transfer)
        while self.mismatch is None and not self._enough(decide_at):
            self._sample(transfer, copies)

    def _enough(self, decide_at: float | None) -> bool:
        taken = len(self.samples) + len(self.discarded)
        if taken < FEWEST_SAMPLES:
            return False
        if taken >= MOST_SAMPLES or not self.samples:
            return True
        rates = summarize([sample.rate_bytes_per_s for sample in self.samples])
        clear = decide_at is None or not rates.low < decide_at < rates.high
        return clear and rates.relative_halfwidth <= PRECISION

    def _warm_up(self, transfer: Transfer) -> None:
        source, _ = self._load(transfer)
        for _ in range(_WARM_UPS):
            transfer.enqueue(source)
        self._wait(transfer)
        self.moved_bytes += _WARM_UPS * transfer.size_bytes

    def _sample(self, transfer: Transfer, copies: int) -> None:
        source, pattern = self._load(transfer)
        self._poison(transfer)
        gate = self._arena.gate(transfer.timed_gpu) if self.gated else None
        if gate is not None:
            stream = self._arena.stream(transfer.timed_gpu)
            self._arena.driver.close_gate(gate, stream, _GATE_LIMIT_NS)
        try:
            self._start(transfer)
            for _ in range(copies):
                transfer.enqueue(source)
            self._record_end(transfer)
        finally:
            if gate is not None:
                self._arena.driver.open_gate(gate)
        elapsed_ns = self._elapsed(transfer)
        moved = copies * transfer.size_bytes
        self.moved_bytes += moved
        self._check(transfer, pattern)
        if gate is not None and self._arena.driver.gate_expired(gate):
            self.discarded.append("enqueuing outlasted the gate")
            self.gated = False  # it waits for itself: go on without
        else:
            self.samples.append(Sample(elapsed_ns, moved, copies))

    def _load(self, transfer: Transfer) -> tuple[Memory, Pattern]:
        pattern = integrity.pattern_of(self._cell_id, self._round)
        self._round += 1
        return transfer.load(pattern), pattern

    def _poison(self, transfer: Transfer) -> None:
        integrity.poison(self._arena, transfer.destination, transfer.destination_gpu)

    def _check(self, transfer: Transfer, pattern: Pattern) -> None:
        found = integrity.check(self._arena.driver, transfer.destination, pattern, self._last)
        self._last = pattern
        self.checked_bytes += transfer.size_bytes
        self.mismatch = self.mismatch or found

    def _start(self, transfer: Transfer) -> None:
        gpu = transfer.timed_gpu
        self._arena.driver.record_event(self._arena.event(gpu, "start"), self._arena.stream(gpu))

    def _record_end(self, transfer: Transfer) -> None:
        gpu = transfer.timed_gpu
        self._arena.driver.record_event(self._arena.event(gpu, "end"), self._arena.stream(gpu))

    def _wait(self, transfer: Transfer) -> None:
        wait_idle(self._arena, transfer.timed_gpu)

    def _elapsed(self, transfer: Transfer) -> float:
        self._wait(transfer)
        gpu = transfer.timed_gpu
        start, end = self._arena.event(gpu, "start"), self._arena.event(gpu, "end")
        return self._arena.driver.elapsed_ns(start, end)
