"""What a person may have written wrong about a simulated machine, and what CUDA answers on it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final, NoReturn

from pytest_gpuxfer.hardware.driver import DriverError

_CODES: Final = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    201: "CUDA_ERROR_INVALID_CONTEXT",
    217: "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
    400: "CUDA_ERROR_INVALID_HANDLE",
    600: "CUDA_ERROR_NOT_READY",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    705: "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
}


class SimulationError(Exception):
    """An unknown machine or fault, or a bad machine file; the message is one line."""


def unknown_name(what: str, name: str, valid: Sequence[str]) -> SimulationError:
    """The error for a name that is none of `valid`, with the nearest ones."""
    near = difflib.get_close_matches(name, valid)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return SimulationError(f"no {what} {name!r}: {hint}there are {', '.join(valid)}")


def fail(call: str, code: int, explanation: str = "") -> NoReturn:
    """Raise what CUDA answers: DriverError."""
    raise DriverError(call, code, _CODES[code], explanation)
