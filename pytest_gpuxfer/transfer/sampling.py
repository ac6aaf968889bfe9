"""How transfers are timed so that they can be trusted: probe, warm-up, poison, gate, samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_gpuxfer.hardware.driver import Event, Memory
from pytest_gpuxfer.model.measurement import Mismatch, Sample
from pytest_gpuxfer.model.pattern import Pattern
from pytest_gpuxfer.model.statistics import summarize
from pytest_gpuxfer.model.units import MIB, NS_PER_MS, NS_PER_S
from pytest_gpuxfer.transfer import integrity
from pytest_gpuxfer.transfer.arena import Arena
from pytest_gpuxfer.transfer.methods.base import Flow
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
    any size (7 to 14 us on H200, 1 MiB and 64 MiB alike); one that the driver stages is enqueued in
    pieces, and takes the longer the more there is to move (14 us, and 210 to 260 us).
    """

    short_enqueue_ns: float
    enqueue_ns: float
    elapsed_ns: float
    moved_bytes: int

    @property
    def in_pieces(self) -> bool:
        """Whether the driver enqueued the long copy piece by piece."""
        return self.enqueue_ns > _GROWTH * self.short_enqueue_ns

    def copies_for(self, flows: Sequence[Flow]) -> int:
        """How many operations of each flow make an interval long enough."""
        expected_ns = self.elapsed_ns * flows[0].moved_bytes / self.moved_bytes
        return max(1, min(_MOST_COPIES // len(flows), round(_SAMPLE_NS / expected_ns)))


class Sampler:
    """Takes the samples of one cell; counts every byte that each flow moves."""

    def __init__(self, arena: Arena, cell_id: str) -> None:
        self._arena = arena
        self._cell_id = cell_id
        self._round = 0
        self._last: list[Pattern | None] = []
        self.gated = False
        self._moved_bytes = 0
        self.checked_bytes = 0
        self.mismatch: Mismatch | None = None
        self.samples: list[Sample] = []
        self.discarded: list[str] = []
        self.doubt: str | None = None

    def take_moved_bytes(self) -> int:
        """How much each flow has moved since this was last asked."""
        moved, self._moved_bytes = self._moved_bytes, 0
        return moved

    def probe(self, short: Flow, long: Flow) -> Probe:
        """Copies of one flow with no gate, each checked. Raises HangError, DriverError."""
        short_enqueue_ns, _ = self._probe_size(short)
        enqueue_ns, elapsed_ns = self._probe_size(long)
        return Probe(short_enqueue_ns, enqueue_ns, elapsed_ns, long.moved_bytes)

    def _probe_size(self, flow: Flow) -> tuple[float, float]:
        took = [self._probe_once(flow) for _ in range(_PROBES)]
        return min(enqueue for enqueue, _ in took), min(elapsed for _, elapsed in took)

    def _probe_once(self, flow: Flow) -> tuple[float, float]:
        clock = self._arena.clock
        (source,), (pattern,) = self._load((flow,))
        flow.poison()
        self._record(flow, "start")
        before = clock.now_ns()
        flow.enqueue(source)
        enqueue_ns = float(clock.now_ns() - before)
        self._record(flow, "end")
        wait_idle(self._arena, flow.timed_gpu, flow.stream)
        self._check((flow,), (pattern,))
        return enqueue_ns, self._elapsed(flow, "start", "end")

    def time_back_to_back(self, flow: Flow, copies: int, times: int) -> float:
        """The least time of `copies` without a gate, in nanoseconds. Raises HangError, DriverError.

        The data of the last one is not checked: it is the path that is asked for.
        """
        (source,), _ = self._load((flow,))
        took: list[float] = []
        for _ in range(times + 1):  # the first one warms up
            self._record(flow, "start")
            for _ in range(copies):
                flow.enqueue(source)
            self._record(flow, "end")
            wait_idle(self._arena, flow.timed_gpu, flow.stream)
            took.append(self._elapsed(flow, "start", "end"))
        return min(took[1:])

    def sample_until_sure(
        self, flows: Sequence[Flow], copies: int, *, gated: bool, decide_at: float | None
    ) -> None:
        """Samples until the median is precise and clear of `decide_at` (bytes per second)."""
        self.gated = gated and all(flow.gate for flow in flows)
        if any(flow.once for flow in flows):
            copies = 1
        self._warm_up(flows)
        while self.mismatch is None and not self._enough(decide_at):
            self._sample(flows, copies)

    def _enough(self, decide_at: float | None) -> bool:
        taken = len(self.samples) + len(self.discarded)
        if taken < FEWEST_SAMPLES:
            return False
        if taken >= MOST_SAMPLES or not self.samples:
            return True
        rates = summarize([sample.rate_bytes_per_s for sample in self.samples])
        clear = decide_at is None or not rates.low < decide_at < rates.high
        return clear and rates.relative_halfwidth <= PRECISION

    def _warm_up(self, flows: Sequence[Flow]) -> None:
        for _ in range(_WARM_UPS):
            sources, _ = self._load(flows)
            for flow, source in zip(flows, sources, strict=True):
                flow.enqueue(source)
            for flow in flows:
                wait_idle(self._arena, flow.timed_gpu, flow.stream)
            self._moved_bytes += flows[0].moved_bytes

    def _sample(self, flows: Sequence[Flow], copies: int) -> None:
        driver, first = self._arena.driver, flows[0]
        sources, patterns = self._load(flows)
        for flow in flows:
            flow.poison()
        gate = self._arena.gate(first.timed_gpu) if self.gated else None
        if gate is not None:
            driver.close_gate(gate, first.stream, _GATE_LIMIT_NS)
        try:
            self._enqueue_together(flows, sources, copies)
        finally:
            if gate is not None:
                driver.open_gate(gate)
        for flow in flows:
            wait_idle(self._arena, flow.timed_gpu, flow.stream)
        self.doubt = next(filter(None, (flow.doubt() for flow in flows)), self.doubt)
        sample = self._timed(flows, copies)
        self._check(flows, patterns, copies)
        if gate is not None and driver.gate_expired(gate):
            self.discarded.append("enqueuing outlasted the gate")
            self.gated = False  # it waits for itself: go on without
        else:
            self.samples.append(sample)

    def _enqueue_together(
        self, flows: Sequence[Flow], sources: Sequence[Memory], copies: int
    ) -> None:
        """All flows begin at the first one's start event, and its stream waits for all to end."""
        driver, first = self._arena.driver, flows[0]
        self._record(first, "start")
        for flow in flows[1:]:
            driver.wait_event(self._event(first, "start"), flow.stream)
            self._record(flow, "start")
        for _ in range(copies):
            for flow, source in zip(flows, sources, strict=True):
                flow.enqueue(source)
        for flow in flows:
            self._record(flow, "end")
        for flow in flows[1:]:
            driver.wait_event(self._event(flow, "end"), first.stream)
        self._record(first, "all ended")

    def _timed(self, flows: Sequence[Flow], copies: int) -> Sample:
        each = tuple(self._elapsed(flow, "start", "end") for flow in flows)
        if len(flows) == 1:
            (flow,) = flows
            return Sample(each[0], copies * flow.moved_bytes, copies * flow.steps)
        whole = self._elapsed(flows[0], "start", "all ended")
        return Sample(whole, copies * sum(flow.moved_bytes for flow in flows), copies, each)

    def _load(self, flows: Sequence[Flow]) -> tuple[list[Memory], list[Pattern]]:
        patterns = []
        for _ in flows:
            patterns.append(integrity.pattern_of(self._cell_id, self._round))
            self._round += 1
        return [flow.load(p) for flow, p in zip(flows, patterns, strict=True)], patterns

    def _check(self, flows: Sequence[Flow], patterns: Sequence[Pattern], copies: int = 1) -> None:
        last = self._last or [None] * len(flows)
        for flow, pattern, before in zip(flows, patterns, last, strict=False):
            found = integrity.check(flow, pattern, before)
            self.mismatch = self.mismatch or found
            self.checked_bytes += flow.checked_bytes
        self._last = list(patterns)
        self._moved_bytes += copies * flows[0].moved_bytes

    def _event(self, flow: Flow, role: str) -> Event:
        return self._arena.event(flow.timed_gpu, f"{role} {flow.route}")

    def _record(self, flow: Flow, role: str) -> None:
        self._arena.driver.record_event(self._event(flow, role), flow.stream)

    def _elapsed(self, flow: Flow, start: str, end: str) -> float:
        driver = self._arena.driver
        return driver.elapsed_ns(self._event(flow, start), self._event(flow, end))
