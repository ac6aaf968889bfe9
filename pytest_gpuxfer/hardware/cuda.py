"""The real CUDA driver over cuda.bindings, 12.9 or 13: devices, contexts, streams, copies.

It stands on `cuda_kernels`, that on `cuda_memory`, and that on `cuda_calls`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from pytest_gpuxfer.hardware import cuda_start
from pytest_gpuxfer.hardware.cuda_calls import Primary
from pytest_gpuxfer.hardware.cuda_kernels import CudaKernels
from pytest_gpuxfer.hardware.cuda_peer import CudaPeer
from pytest_gpuxfer.hardware.driver import (
    Context,
    DeviceInfo,
    DriverError,
    DriverVersion,
    Event,
    Memory,
    PeerProcess,
    Stream,
)
from pytest_gpuxfer.model.measurement import Access
from pytest_gpuxfer.model.units import NS_PER_MS

_NOT_READY: Final = 600
_NAME_BYTES: Final = 128
_ACCESS_ANSWERS: Final[Mapping[int, Access]] = {
    201: Access.WRONG_CONTEXT,  # INVALID_CONTEXT
    217: Access.UNSUPPORTED,  # PEER_ACCESS_UNSUPPORTED
    704: Access.ALREADY_ENABLED,  # PEER_ACCESS_ALREADY_ENABLED
    709: Access.WRONG_CONTEXT,  # CONTEXT_IS_DESTROYED
    711: Access.TOO_MANY_PEERS,  # TOO_MANY_PEERS
}


def open_driver() -> CudaDriver:
    """CUDA, started. Raises HardwareError where there is no driver that these bindings can use."""
    try:
        from cuda.bindings import __version__, driver  # type: ignore[import-untyped]
    except ImportError:
        raise cuda_start.not_installed() from None
    has_devices = cuda_start.start(driver, __version__)
    return CudaDriver(driver, __version__, has_devices=has_devices)


class CudaDriver(CudaKernels):
    """The Driver over cuda.bindings.driver, given as `bindings`."""

    def __init__(self, bindings: Any, bindings_version: str, *, has_devices: bool) -> None:
        super().__init__(bindings)
        self._bindings_version = bindings_version
        self._has_devices = has_devices

    # -- devices and contexts --------------------------------------------------------------------

    def version(self) -> DriverVersion:
        number = self._call(self._cuda.cuDriverGetVersion)
        return DriverVersion((number // 1000, number % 1000 // 10), self._bindings_version)

    def devices(self) -> Sequence[DeviceInfo]:
        if not self._has_devices:
            return ()
        return [self._describe(n) for n in range(self._call(self._cuda.cuDeviceGetCount))]

    def _describe(self, ordinal: int) -> DeviceInfo:
        cuda, call = self._cuda, self._call
        device = self._device(ordinal)
        uuid = UUID(bytes=bytes(call(cuda.cuDeviceGetUuid, device).bytes))
        return DeviceInfo(
            ordinal=ordinal,
            uuid=f"GPU-{uuid}",
            pci_address=_text(call(cuda.cuDeviceGetPCIBusId, _NAME_BYTES, device)).lower(),
            name=_text(call(cuda.cuDeviceGetName, _NAME_BYTES, device)),
            memory_bytes=call(cuda.cuDeviceTotalMem, device),
        )

    def retain_context(self, ordinal: int) -> Context:
        if (context := self._contexts.get(ordinal)) is not None:
            context.handle.users += 1
            return context
        multiprocessors = self._attribute("MULTIPROCESSOR_COUNT", ordinal)
        device = self._device(ordinal)
        handle = self._call(self._cuda.cuDevicePrimaryCtxRetain, device)
        context = self._contexts[ordinal] = Context(
            ordinal, Primary(device, handle, multiprocessors)
        )
        try:
            self._load(context)
        except DriverError:
            self.release_context(context)
            raise
        return context

    def release_context(self, context: Context) -> None:
        primary = context.handle
        primary.users -= 1
        if primary.users > 0:
            return
        del self._contexts[context.ordinal]
        # A context that met an error frees nothing any more; it is given back all the same.
        with suppress(DriverError), self._current(primary):
            for undo in reversed(primary.undo.values()):
                with suppress(DriverError):
                    undo()
        primary.undo.clear()
        self._call(self._cuda.cuDevicePrimaryCtxRelease, primary.device)

    # -- streams and events ---------------------------------------------------------------------

    def create_stream(self, context: Context) -> Stream:
        return Stream(context, self._new_stream(context))

    def destroy_stream(self, stream: Stream) -> None:
        self._undo(stream.context, "stream", int(stream.handle))

    def stream_idle(self, stream: Stream) -> bool:
        try:
            self._call_in(stream.context, self._cuda.cuStreamQuery, stream.handle)
        except DriverError as error:
            if error.code == _NOT_READY:
                return False
            raise
        return True

    def create_event(self, context: Context) -> Event:
        handle = self._call_in(context, self._cuda.cuEventCreate, 0)
        destroy = self._cuda.cuEventDestroy
        context.handle.undo["event", int(handle)] = lambda: self._call(destroy, handle)
        return Event(context, handle)

    def destroy_event(self, event: Event) -> None:
        self._undo(event.context, "event", int(event.handle))

    def record_event(self, event: Event, stream: Stream) -> None:
        self._call_in(stream.context, self._cuda.cuEventRecord, event.handle, stream.handle)

    def wait_event(self, event: Event, stream: Stream) -> None:
        self._call_in(stream.context, self._cuda.cuStreamWaitEvent, stream.handle, event.handle, 0)

    def elapsed_ns(self, start: Event, end: Event) -> float:
        elapsed = self._cuda.cuEventElapsedTime
        return float(self._call_in(end.context, elapsed, start.handle, end.handle)) * NS_PER_MS

    # -- copies ----------------------------------------------------------------------------------

    def copy(self, destination: Memory, source: Memory, stream: Stream) -> None:
        self._call_in(
            stream.context, self._cuda.cuMemcpyAsync,
            destination.address, source.address, source.size_bytes, stream.handle,
        )  # fmt: skip

    def copy_peer(self, destination: Memory, source: Memory, stream: Stream) -> None:
        self._call_in(
            stream.context, self._cuda.cuMemcpyPeerAsync,
            destination.address, self._owner(destination).handle,
            source.address, self._owner(source).handle, source.size_bytes, stream.handle,
        )  # fmt: skip

    # -- peer access -----------------------------------------------------------------------------

    def can_access_peer(self, ordinal: int, peer: int) -> bool:
        devices = self._device(ordinal), self._device(peer)
        return bool(self._call(self._cuda.cuDeviceCanAccessPeer, *devices))

    def native_atomics(self, ordinal: int, peer: int) -> bool:
        return bool(self._peer_attribute("NATIVE_ATOMIC_SUPPORTED", ordinal, peer))

    def enable_peer_access(self, context: Context, peer: Context) -> Access:
        try:
            self._call_in(context, self._cuda.cuCtxEnablePeerAccess, peer.handle.handle, 0)
        except DriverError as error:
            if error.code not in _ACCESS_ANSWERS:
                raise
            return _ACCESS_ANSWERS[error.code]
        return Access.ENABLED

    def disable_peer_access(self, context: Context, peer: Context) -> None:
        self._call_in(context, self._cuda.cuCtxDisablePeerAccess, peer.handle.handle)

    # -- another process -------------------------------------------------------------------------

    def start_peer(self, ordinal: int, *, hide_others: bool) -> PeerProcess:
        return CudaPeer(self._describe(ordinal), hide_others=hide_others)


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode()
