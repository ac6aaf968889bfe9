"""DLPack: memory handed to other libraries of this process, which say when they are done with it.

The capsule owns a C struct with a `deleter`. Whoever takes the tensor calls that; a capsule that
nobody took calls it as it goes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

_UINT: Final = 1  # DLDataTypeCode
_OLD_NAME: Final = b"dltensor"  # a capsule points at its name: these live as long as we do
_NAME: Final = b"dltensor_versioned"
_VERSION: Final = (1, 0)


class DeviceType(IntEnum):
    """DLDeviceType, as far as we have such memory."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3  # page-locked
    CUDA_MANAGED = 13


Device = tuple[DeviceType, int]


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _OldManaged(ctypes.Structure):
    """DLManagedTensor: without a version, so that NumPy takes it for read-only."""

    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


# By the address of its struct: what a lent tensor needs alive, and whom to tell of its end.
_lent: dict[int, tuple[ctypes.Structure, Callable[[], None]]] = {}


# Prototypes of our own: those of `ctypes.pythonapi` itself are shared with other libraries.
def _python(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new_capsule: Final = _python(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)
_is_valid: Final = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer_of: Final = _python(
    "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p
)


def _delete(pointer: int) -> None:
    """The `deleter`, from any thread."""
    _, give_back = _lent.pop(pointer)
    give_back()


def _drop(capsule: int) -> None:
    """The capsule's destructor: taken capsules have another name."""
    for name in (_OLD_NAME, _NAME):
        if _is_valid(capsule, name):
            _delete(_pointer_of(capsule, name))


def _callable_from_c(function: Callable[[int], None]) -> ctypes.c_void_p:
    thunk = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
    # A tensor may outlive this module as the interpreter ends: what it calls must not go before.
    _python("Py_IncRef", None, ctypes.py_object)(thunk)
    return ctypes.cast(thunk, ctypes.c_void_p)


_DELETE: Final = _callable_from_c(_delete)
_DROP: Final = _callable_from_c(_drop)


def capsule(
    address: int,
    size_bytes: int,
    device: Device,
    give_back: Callable[[], None],
    max_version: tuple[int, int] | None,
) -> object:
    """Memory as a one-dimensional tensor of bytes; `give_back` is called once nobody uses it.

    `max_version` is the newest DLPack that the taker knows, None for those before 1.0.
    """
    extent = (ctypes.c_int64 * 2)(size_bytes, 1)
    shape = ctypes.cast(extent, ctypes.POINTER(ctypes.c_int64))
    strides = ctypes.cast(ctypes.byref(extent, 8), ctypes.POINTER(ctypes.c_int64))
    tensor = _Tensor(address, device[0], device[1], 1, _UINT, 8, 1, shape, strides, 0)
    managed: ctypes.Structure
    if max_version is None or max_version < _VERSION:
        name, managed = _OLD_NAME, _OldManaged(tensor, None, _DELETE)
    else:
        name, managed = _NAME, _Managed(_VERSION, None, _DELETE, 0, tensor)
    pointer = ctypes.addressof(managed)
    _lent[pointer] = (managed, give_back)
    return _new_capsule(pointer, name, _DROP)
