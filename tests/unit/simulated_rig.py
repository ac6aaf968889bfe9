"""A simulated machine with streams and events at hand, driven by the seam's own calls."""

from __future__ import annotations

from collections.abc import Callable

from pytest_gpuxfer.hardware.driver import Context, DeviceKind, HostKind, Memory, Stream
from pytest_gpuxfer.hardware.simulated import open_machine

SECOND_NS = 10**9
MIB = 2**20


class Rig:
    def __init__(self, name: str = "hgx-h200", *faults: str) -> None:
        self.hardware = open_machine(name, faults)
        self.driver, self.clock = self.hardware.driver, self.hardware.clock
        self.contexts: dict[int, Context] = {}
        self.streams: dict[int, Stream] = {}

    def context(self, ordinal: int) -> Context:
        if ordinal not in self.contexts:
            self.contexts[ordinal] = self.driver.retain_context(ordinal)
        return self.contexts[ordinal]

    def stream(self, ordinal: int) -> Stream:
        if ordinal not in self.streams:
            self.streams[ordinal] = self.driver.create_stream(self.context(ordinal))
        return self.streams[ordinal]

    def device(self, ordinal: int, size_bytes: int, kind: DeviceKind = DeviceKind.MALLOC) -> Memory:
        return self.driver.allocate_device(self.context(ordinal), size_bytes, kind)

    def host(self, size_bytes: int, kind: HostKind = HostKind.PINNED) -> Memory:
        return self.driver.allocate_host(self.context(0), size_bytes, kind)

    def enable(self, mapper: int, owner: int) -> None:
        assert self.driver.enable_peer_access(self.context(mapper), self.context(owner)).on

    def uuid(self, ordinal: int) -> str:
        return self.driver.devices()[ordinal].uuid

    def wait(self, *streams: Stream) -> None:
        deadline_ns = self.clock.now_ns() + 100 * SECOND_NS
        while not all(self.driver.stream_idle(stream) for stream in streams):
            assert self.clock.now_ns() < deadline_ns, "a stream never ends"
            self.clock.sleep_ns(20_000)

    def elapsed_ns(self, stream: Stream, work: Callable[[], None], *, gated: bool = True) -> float:
        """How long `work` takes on `stream`, by events, behind a gate unless told."""
        driver = self.driver
        start, end = (driver.create_event(stream.context) for _ in range(2))
        gate = driver.create_gate(stream.context)
        if gated:
            driver.close_gate(gate, stream, SECOND_NS)
        driver.record_event(start, stream)
        work()
        driver.record_event(end, stream)
        driver.open_gate(gate)
        self.wait(stream)
        assert not driver.gate_expired(gate)
        return driver.elapsed_ns(start, end)

    def rate(
        self,
        destination: Memory,
        source: Memory,
        issuer: int,
        *,
        count: int = 8,
        gated: bool = True,
    ) -> float:
        """GB/s of `count` copies."""
        stream = self.stream(issuer)

        def work() -> None:
            for _ in range(count):
                self.driver.copy(destination, source, stream)

        return count * source.size_bytes / self.elapsed_ns(stream, work, gated=gated)
