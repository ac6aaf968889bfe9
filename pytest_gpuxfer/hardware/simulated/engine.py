"""Virtual time: a clock, and streams whose work starts and ends by it.

Nothing runs by itself: `settle` brings everything up to now. Operations of one stream follow each
other; operations of several that cross the same lane (one direction of one link) go on side by
side, each at its share of it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

Lane = tuple[str, int, int]  # a link's direction, its GPU, and who is at its end, or SHARED
SHARED: Final = -1  # by all that the GPU sends or receives that way

_READ_NS: Final = 25.0
_COLLAPSED: Final = 0.07  # of one flow's rate, as behind a PCIe switch with posted writes


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
    """One recording of an event by a GPU; it has not happened while its time is infinite."""

    gpu: int
    time_ns: float = math.inf

    def happen(self, end_ns: float) -> None:
        self.time_ns = end_ns


@dataclass(slots=True, eq=False)
class Meeting:
    """One side of two kernels that wait for each other: ends when both are done, or by its limit.

    `duration_ns` counts from when both run. A side that ended before its partner began met no one.
    """

    limit_ns: float
    duration_ns: float
    partner: Meeting | None = None
    started_ns: float = math.inf

    @property
    def met_ns(self) -> float:
        """When both ran; infinite if they have not, or never did."""
        if self.partner is None:
            return math.inf
        began_ns = max(self.started_ns, self.partner.started_ns)
        return began_ns if began_ns < self._parted_ns else math.inf

    @property
    def part_done(self) -> float:
        """How much of what they have to do together they did, once this side has ended."""
        if math.isinf(self.met_ns):
            return 0.0
        return min(1.0, (self._parted_ns - self.met_ns) / self.duration_ns)

    @property
    def _parted_ns(self) -> float:
        """When the less patient of the two would go."""
        ours_ns = self.started_ns + self.limit_ns
        other = self.partner
        return ours_ns if other is None else min(ours_ns, other.started_ns + other.limit_ns)

    def end_ns(self, started_ns: float) -> float:
        self.started_ns = started_ns
        done_ns = self.met_ns + self.duration_ns
        return done_ns if done_ns <= self._parted_ns else started_ns + self.limit_ns


@dataclass(frozen=True, slots=True)
class Traffic:
    """What an operation is to the lanes: `demand` is how much of each it would fill alone.

    Its speed falls to `opposed_speed` while anything runs on a lane in `opposite`, to
    `crowded_speed` while such a lane of another GPU is busy as well. Without lanes of its own it
    fills none.
    """

    lanes: tuple[Lane, ...] = ()
    demand: float = 1.0
    opposite: tuple[Lane, ...] = ()
    opposed_speed: float = 1.0
    crowded_speed: float = 1.0
    collapses: bool = False  # while another one that does so runs between two other GPUs

    @property
    def shares(self) -> bool:
        """Whether others' traffic can change its speed, or it theirs."""
        return bool(self.lanes or self.opposite)


@dataclass(slots=True, eq=False)
class Operation:
    """Work of a stream, which starts `handover_ns` after `after`; keeps `gpus` awake meanwhile."""

    gpus: tuple[int, ...]
    effect: Callable[[float], None]  # told when it ended
    duration_ns: float = 0.0  # alone
    traffic: Traffic = Traffic()
    hold: Hold | Meeting | None = None
    after: Mark | None = None
    handover_ns: float = 0.0
    enqueued_ns: float = 0.0
    started_ns: float | None = None
    # What was left of `duration_ns` at `since_ns`, and how fast it has gone on from there.
    left_ns: float = 0.0
    since_ns: float = 0.0
    speed: float = 1.0

    def end_ns(self, started_ns: float) -> float:
        if self.hold is not None:
            return self.hold.end_ns(started_ns)
        return self.since_ns + self.left_ns / self.speed


@dataclass(slots=True, eq=False)
class Queue:
    """A stream's work that has not ended; `ready_ns` is when the last that did ended."""

    owner: object  # the context
    operations: deque[Operation] = field(default_factory=deque)
    ready_ns: float = 0.0
    staged_bytes: int = 0  # of what the driver staged, and has not ended


class Timeline:
    """All queues of a machine, brought forward together in the order of time."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._busy: list[Queue] = []
        self._moving: list[Operation] = []

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

    def run_until(self, queue: Queue, ahead_bytes: int | None = None) -> None:
        """Let time pass until nothing of `queue` is left, or nothing of it will ever end.

        With `ahead_bytes`: until no more than that is left to stage.
        """
        while queue.operations and (ahead_bytes is None or queue.staged_bytes > ahead_bytes):
            moment_ns, _ = self._next()
            if math.isinf(moment_ns):
                return
            self._clock.time_ns = max(self._clock.time_ns, moment_ns)
            self.settle()

    def drop(self, owner: object) -> None:
        """Forget all work of a context, as its fault does."""
        for queue in [queue for queue in self._busy if queue.owner is owner]:
            if queue.operations[0] in self._moving:
                self._moving.remove(queue.operations[0])
            queue.operations.clear()
            queue.staged_bytes = 0
            self._busy.remove(queue)
        self._share(self._clock.time_ns)

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
            start_ns = max(start_ns, head.after.time_ns + head.handover_ns)
        return start_ns

    def _step(self, queue: Queue, moment_ns: float) -> None:
        head = queue.operations[0]
        if head.started_ns is None:
            self._begin(head, moment_ns)
            if head.traffic.shares:
                self._moving.append(head)
                self._share(moment_ns)
            return
        queue.operations.popleft()
        queue.ready_ns = moment_ns
        if not queue.operations:
            self._busy.remove(queue)
        if head.traffic.shares:
            self._leave(head, queue, moment_ns)
        head.effect(moment_ns)

    def _begin(self, operation: Operation, moment_ns: float) -> None:
        operation.started_ns = operation.since_ns = moment_ns
        operation.left_ns = operation.duration_ns

    def _leave(self, ended: Operation, queue: Queue, moment_ns: float) -> None:
        following = queue.operations[0] if queue.operations else None
        if (
            following is not None
            and following.traffic == ended.traffic
            and self._start_ns(queue, following) <= moment_ns
        ):
            # One copy behind the other changes no share: most of all there is to do.
            self._begin(following, moment_ns)
            following.speed = ended.speed
            self._moving[self._moving.index(ended)] = following
            return
        self._moving.remove(ended)
        self._share(moment_ns)

    def _share(self, moment_ns: float) -> None:
        """Bring what moves up to now, and give each its share of the lanes from now on."""
        demands: dict[Lane, float] = {}
        for operation in self._moving:
            for lane in operation.traffic.lanes:
                demands[lane] = demands.get(lane, 0.0) + operation.traffic.demand
        writers = [moving for moving in self._moving if moving.traffic.collapses]
        for operation in self._moving:
            operation.left_ns -= (moment_ns - operation.since_ns) * operation.speed
            operation.since_ns = moment_ns
            traffic = operation.traffic
            crowd = max((demands[lane] for lane in traffic.lanes), default=0.0)
            operation.speed = _speed_against(traffic, demands) / max(1.0, crowd)
            if any(_apart(operation, writer) for writer in writers):
                operation.speed *= _COLLAPSED


def _speed_against(traffic: Traffic, busy: Collection[Lane]) -> float:
    """The part of an operation's speed that traffic the other way leaves it."""
    if not any(lane in busy for lane in traffic.opposite):
        return 1.0
    kinds = {kind for kind, *_ in traffic.opposite}
    crowded = any(lane[0] in kinds and lane not in traffic.opposite for lane in busy)
    return traffic.crowded_speed if crowded else traffic.opposed_speed


def _apart(operation: Operation, other: Operation) -> bool:
    """Whether both collapse beside each other: they have no GPU in common."""
    return operation.traffic.collapses and not set(operation.gpus) & set(other.gpus)
