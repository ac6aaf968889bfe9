"""Virtual time: a clock, and streams whose work starts and ends by it.

Nothing runs by itself: `settle` brings everything up to now. Operations of one stream follow each
other; operations of several that need the same lane (one direction of one link) take turns, which
shares a link between flows as hardware does, seen over a whole transfer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

Lane = tuple[str, int]  # a link's direction and its GPU

_READ_NS: Final = 25.0


class VirtualClock:
    """Time that passes only when someone spends it."""

    def __init__(self) -> None:
        self.time_ns = 1e9

    def now_ns(self) -> int:
        # Reading a clock takes time, so a loop that watches nothing else comes to its end.
        self.time_ns += _READ_NS
        return int(self.time_ns)

    def sleep_ns(self, duration_ns: float) -> None:
        self.time_ns += max(0.0, duration_ns)


@dataclass(slots=True, eq=False)
class Hold:
    """One closing of a gate: ends when it is opened, or `limit_ns` after it began."""

    limit_ns: float
    opened_ns: float = math.inf
    expired: bool = False

    def end_ns(self, started_ns: float) -> float:
        return min(max(started_ns, self.opened_ns), started_ns + self.limit_ns)

    def finish(self, end_ns: float) -> None:
        self.expired = end_ns < self.opened_ns


@dataclass(slots=True, eq=False)
class Mark:
    """One recording of an event; it has not happened while its time is infinite."""

    time_ns: float = math.inf

    def happen(self, end_ns: float) -> None:
        self.time_ns = end_ns


@dataclass(slots=True, eq=False)
class Operation:
    """Work of a stream, which starts no sooner than `after`; keeps `gpus` awake while it runs."""

    gpus: tuple[int, ...]
    effect: Callable[[float], None]  # told when it ended
    duration_ns: float = 0.0
    lanes: tuple[Lane, ...] = ()
    hold: Hold | None = None
    after: Mark | None = None
    enqueued_ns: float = 0.0
    started_ns: float | None = None

    def end_ns(self, started_ns: float) -> float:
        return self.hold.end_ns(started_ns) if self.hold else started_ns + self.duration_ns


@dataclass(slots=True, eq=False)
class Queue:
    """A stream's work that has not ended; `ready_ns` is when the last that did ended."""

    ordinal: int
    operations: deque[Operation] = field(default_factory=deque)
    ready_ns: float = 0.0


class Timeline:
    """All queues of a machine, brought forward together in the order of time."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._busy: list[Queue] = []
        self._lane_free_ns: dict[Lane, float] = {}

    def enqueue(self, queue: Queue, operation: Operation) -> None:
        operation.enqueued_ns = self._clock.time_ns
        if not queue.operations:
            self._busy.append(queue)
        queue.operations.append(operation)

    def settle(self) -> None:
        """Start and end whatever does so up to now."""
        while self._busy:
            moment_ns, queue = self._next()
            if moment_ns > self._clock.time_ns:
                return
            self._step(queue, moment_ns)

    def run_until_idle(self, queue: Queue) -> None:
        """Let time pass until nothing of `queue` is left, or nothing of it will ever end."""
        while queue.operations:
            moment_ns, _ = self._next()
            if math.isinf(moment_ns):
                return
            self._clock.time_ns = max(self._clock.time_ns, moment_ns)
            self.settle()

    def drop(self, ordinal: int) -> None:
        """Forget all work of a device, as a fault of its context does."""
        for queue in [queue for queue in self._busy if queue.ordinal == ordinal]:
            queue.operations.clear()
            self._busy.remove(queue)

    def awake(self, ordinal: int) -> bool:
        """Whether something runs on the GPU or over its link right now."""
        heads = (queue.operations[0] for queue in self._busy)
        return any(head.started_ns is not None and ordinal in head.gpus for head in heads)

    def _next(self) -> tuple[float, Queue]:
        """What starts or ends next, and when; at one moment ends go first, then who waited most."""
        best = (math.inf, True, math.inf)
        chosen = self._busy[0]
        for queue in self._busy:
            head = queue.operations[0]
            if head.started_ns is None:
                key = (self._start_ns(queue, head), True, queue.ready_ns)
            else:
                key = (head.end_ns(head.started_ns), False, queue.ready_ns)
            if key < best:
                best, chosen = key, queue
        return best[0], chosen

    def _start_ns(self, queue: Queue, head: Operation) -> float:
        start_ns = max(queue.ready_ns, head.enqueued_ns)
        if head.after is not None:
            start_ns = max(start_ns, head.after.time_ns)
        for lane in head.lanes:
            start_ns = max(start_ns, self._lane_free_ns.get(lane, 0.0))
        return start_ns

    def _step(self, queue: Queue, moment_ns: float) -> None:
        head = queue.operations[0]
        if head.started_ns is None:
            head.started_ns = moment_ns
            for lane in head.lanes:
                self._lane_free_ns[lane] = head.end_ns(moment_ns)
            return
        queue.operations.popleft()
        queue.ready_ns = moment_ns
        if not queue.operations:
            self._busy.remove(queue)
        head.effect(moment_ns)
