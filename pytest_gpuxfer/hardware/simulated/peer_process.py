"""Another process on a simulated machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_gpuxfer.hardware.driver import (
    Comparison,
    Context,
    DeviceKind,
    Feature,
    Fill,
    Memory,
    PeerProcessError,
    SharedHandle,
)
from pytest_gpuxfer.hardware.simulated.errors import fail
from pytest_gpuxfer.model.pattern import Pattern

if TYPE_CHECKING:
    from pytest_gpuxfer.hardware.simulated.driver import SimulatedDriver

_ANSWER_NS: Final = 100_000.0


class SimulatedPeer:
    """Implements PeerProcess by a driver of its own on the same node."""

    def __init__(self, driver: SimulatedDriver, ordinal: int, *, hide_others: bool) -> None:
        self.hide_others = hide_others
        self._driver = driver
        self._context: Context | None = driver.retain_context(ordinal)
        self._last: Memory | None = None

    def share(self, size_bytes: int, kind: DeviceKind) -> SharedHandle:
        context = self._alive()
        if kind is DeviceKind.POOL:
            fail("cuMemPoolExportPointer", 801, "only MALLOC and VMM memory is shared")
        by_descriptor = self._driver.supports(context.ordinal, Feature.FILE_DESCRIPTORS)
        if kind is DeviceKind.VMM and not by_descriptor:
            fail("cuMemExportToShareableHandle", 801)
        if self._last is not None:
            self._driver.free_device(context, self._last)
        memory = self._last = self._driver.allocate_device(context, size_bytes, kind)
        held = self._driver.allocation_of(memory)
        return SharedHandle(kind, size_bytes, context.ordinal, held)

    def fill(self, content: int | Pattern, size_bytes: int) -> None:
        context, memory = self._alive(), self._shared().window(0, size_bytes)
        stream = self._driver.create_stream(context)
        self._driver.launch(Fill(memory, content), stream)
        self._driver.finish(stream)
        self._driver.destroy_stream(stream)

    def compare(self, content: Pattern, size_bytes: int) -> Comparison:
        self._alive()
        return self._driver.compare(self._shared().window(0, size_bytes), content)

    def close(self) -> None:
        if self._context is not None:
            self._driver.release_context(self._context)
            self._context = self._last = None

    def _alive(self) -> Context:
        if self._context is None:
            raise PeerProcessError("the peer process has ended")
        self._driver.pass_time(_ANSWER_NS)
        return self._context

    def _shared(self) -> Memory:
        if self._last is None:
            fail("cuLaunchKernel", 1, "nothing is shared")
        return self._last
