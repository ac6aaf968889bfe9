"""Calling CUDA: codes to errors, contexts made current, and what is to be undone in them.

Other libraries of the process use the same primary contexts: whatever context was current before
a call of ours is current again after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_gpuxfer.hardware.driver import Context, DriverError, Memory
from pytest_gpuxfer.model.pattern import WORD_BYTES

_PEER_ATTRIBUTE: Final = "CU_DEVICE_P2P_ATTRIBUTE_"
_ATTRIBUTE: Final = "CU_DEVICE_ATTRIBUTE_"


@dataclass(slots=True, eq=False)
class Primary:
    """What is behind a Context: the primary context, our kernels in it, and what we made there."""

    device: Any
    handle: Any
    multiprocessors: int
    kernels: Mapping[str, Any] = field(default_factory=dict)
    stream: Any = None  # for our own small copies and allocations
    result: int = 0  # compare's Result, on the device
    readback: int = 0  # pinned: a Result, and a word
    users: int = 1
    undo: dict[tuple[str, int], Callable[[], object]] = field(default_factory=dict)
    # By address of POOL and VMM memory: gives another device the access that the flags say.
    set_access: dict[int, Callable[[int, Any], object]] = field(default_factory=dict)


class CudaCalls:
    """The ground that the parts of CudaDriver stand on; `bindings` is cuda.bindings.driver."""

    def __init__(self, bindings: Any) -> None:
        self._cuda = bindings
        self._contexts: dict[int, Context] = {}

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The value or values that a call returns beside its code. Raises DriverError."""
        call = function.__name__
        try:
            code, *values = function(*arguments)
        except RuntimeError as error:  # how bindings say that the driver lacks the symbol
            raise DriverError(call, 500, "CUDA_ERROR_NOT_FOUND", str(error)) from None
        except (ValueError, KeyError) as error:  # and that they do not know its code
            raise DriverError(call, 999, "CUDA_ERROR_UNKNOWN", f"new code: {error}") from None
        if code != 0:
            words = self._cuda.cuGetErrorString(code)[1] or b""
            raise DriverError(call, int(code), code.name, words.decode())
        return values[0] if len(values) == 1 else values

    @contextmanager
    def _current(self, primary: Primary) -> Iterator[None]:
        self._call(self._cuda.cuCtxPushCurrent, primary.handle)
        try:
            yield
        finally:
            self._call(self._cuda.cuCtxPopCurrent)

    def _call_in(self, context: Context, function: Callable[..., Any], *arguments: Any) -> Any:
        with self._current(context.handle):
            return self._call(function, *arguments)

    def _undo(self, context: Context, kind: str, address: int) -> None:
        """Free what `undo` has under that key; what was released with its context is gone."""
        undo = context.handle.undo.pop((kind, address), None)
        if undo is not None:
            with self._current(context.handle):
                undo()

    def _owner(self, memory: Memory) -> Primary:
        if memory.ordinal is None or memory.ordinal not in self._contexts:
            raise ValueError(f"no retained context owns {memory}")
        primary: Primary = self._contexts[memory.ordinal].handle
        return primary

    def _device(self, ordinal: int) -> Any:
        return self._call(self._cuda.cuDeviceGet, ordinal)

    def _attribute(self, name: str, ordinal: int) -> int:
        attribute = getattr(self._cuda.CUdevice_attribute, _ATTRIBUTE + name)
        return int(self._call(self._cuda.cuDeviceGetAttribute, attribute, self._device(ordinal)))

    def _peer_attribute(self, name: str, ordinal: int, peer: int) -> int:
        attribute = getattr(self._cuda.CUdevice_P2PAttribute, _PEER_ATTRIBUTE + name)
        devices = self._device(ordinal), self._device(peer)
        return int(self._call(self._cuda.cuDeviceGetP2PAttribute, attribute, *devices))


def whole(memory: Memory, unit_bytes: int = WORD_BYTES) -> int:
    """How many units memory holds. Raises ValueError where a part of one is left over."""
    units, rest = divmod(memory.size_bytes, unit_bytes)
    if rest:
        raise ValueError(f"{memory.size_bytes} bytes are no multiple of {unit_bytes}")
    return units
