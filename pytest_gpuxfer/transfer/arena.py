"""The one owner of contexts, streams, events, gates and buffers: allocated once, reused, freed.

Memory is what costs time (0.6 ms a MiB of pinned memory), so buffers only ever grow.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from pytest_gpuxfer.hardware import Hardware
from pytest_gpuxfer.hardware.driver import (
    Context,
    DriverError,
    Event,
    Gate,
    Memory,
    Stream,
)
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, WORD_BYTES, Pattern
from pytest_gpuxfer.model.units import GIB

_PERIOD_BYTES: Final = PERIOD_WORDS * WORD_BYTES
_LEFT_FREE_BYTES: Final = GIB  # on each GPU, for the driver and for others


class CannotAllocateError(Exception):
    """There is not enough free memory on a GPU; the message says where and how much."""


class Arena:
    """Everything that measuring holds on the GPUs of a machine, by GPU index (N of gpuN)."""

    def __init__(self, hardware: Hardware, machine: Machine) -> None:
        self.driver = hardware.driver
        self.clock = hardware.clock
        self._machine = machine
        self._contexts: dict[int, Context] = {}
        self._streams: dict[int, Stream] = {}
        self._gates: dict[int, Gate] = {}
        self._events: dict[tuple[int, str], Event] = {}
        self._device: dict[tuple[int, str], Memory] = {}
        self._host: dict[str, Memory] = {}
        self._host_owner: Context | None = None

    def context(self, gpu: int) -> Context:
        if gpu not in self._contexts:
            ordinal = self._machine.gpus[gpu].ordinal
            self._contexts[gpu] = self.driver.retain_context(ordinal)
        return self._contexts[gpu]

    def stream(self, gpu: int) -> Stream:
        if gpu not in self._streams:
            self._streams[gpu] = self.driver.create_stream(self.context(gpu))
        return self._streams[gpu]

    def gate(self, gpu: int) -> Gate:
        if gpu not in self._gates:
            self._gates[gpu] = self.driver.create_gate(self.context(gpu))
        return self._gates[gpu]

    def event(self, gpu: int, role: str) -> Event:
        """The event of that GPU for a role: "start", "end", ..."""
        if (gpu, role) not in self._events:
            self._events[gpu, role] = self.driver.create_event(self.context(gpu))
        return self._events[gpu, role]

    def device(self, gpu: int, role: str, size_bytes: int) -> Memory:
        """`size_bytes` of a GPU's buffer for a role: "source" or "destination"."""
        held = self._device.get((gpu, role))
        if held is None or held.size_bytes < size_bytes:
            if held is not None:
                self.driver.free_device(self.context(gpu), self._device.pop((gpu, role)))
            self._device[gpu, role] = held = self.allocate_device(gpu, size_bytes)
        return held.window(0, size_bytes)

    def host(self, role: str, size_bytes: int) -> Memory:
        """`size_bytes` of the pinned host buffer for a role: "destination" or "relay"."""
        held = self._host.get(role)
        if held is None or held.size_bytes < size_bytes:
            held = self._grow_host(role, size_bytes)
        return held.window(0, size_bytes)

    def host_window(self, pattern: Pattern, size_bytes: int) -> Memory:
        """Pinned host memory that holds `pattern`: a window on one reference buffer."""
        needed = size_bytes + _PERIOD_BYTES
        held = self._host.get("reference")
        if held is None or held.size_bytes < needed:
            held = self._grow_host("reference", needed)
            self.driver.fill_host(held, Pattern(0))
        return held.window(pattern.offset_words * WORD_BYTES, size_bytes)

    def allocate_device(self, gpu: int, size_bytes: int) -> Memory:
        """Device memory that the caller frees. Raises CannotAllocateError, DriverError."""
        context = self.context(gpu)
        free = self.driver.free_memory_bytes(context)
        if size_bytes > free - _LEFT_FREE_BYTES:
            raise CannotAllocateError(
                f"gpu{gpu} has {free / GIB:.1f} GiB free, {size_bytes / GIB:.2f} GiB are needed"
                f" beside {_LEFT_FREE_BYTES / GIB:.0f} GiB left to others"
            )
        return self.driver.allocate_device(context, size_bytes)

    def host_context(self) -> Context:
        """The context in which pinned memory is allocated; it is portable to all."""
        if self._host_owner is None:
            self._host_owner = self.context(0)
        return self._host_owner

    def _grow_host(self, role: str, size_bytes: int) -> Memory:
        if role in self._host:
            self.driver.free_host(self.host_context(), self._host.pop(role))
        self._host[role] = self.driver.allocate_host(self.host_context(), size_bytes)
        return self._host[role]

    def close(self) -> None:
        """Give everything back; a GPU that answers no more keeps what it holds till process end."""
        driver = self.driver
        releases: list[Callable[[], None]] = [
            *(
                partial(driver.free_device, self._contexts[gpu], memory)
                for (gpu, _), memory in self._device.items()
            ),
            *(partial(driver.free_host, self.host_context(), m) for m in self._host.values()),
            *(partial(driver.destroy_event, event) for event in self._events.values()),
            *(partial(driver.destroy_gate, gate) for gate in self._gates.values()),
            *(partial(driver.destroy_stream, stream) for stream in self._streams.values()),
            *(partial(driver.release_context, context) for context in self._contexts.values()),
        ]
        for release in releases:
            # One thing that cannot be freed must not keep the others.
            with suppress(DriverError):
                release()
        for held in (self._device, self._host, self._events, self._gates, self._streams):
            held.clear()
        self._contexts.clear()
        self._host_owner = None
