"""Starting CUDA, and what to tell a person where it does not start."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from pytest_gpuxfer.hardware import HardwareError

_STUB_LIBRARY: Final = 34
_NO_DEVICE: Final = 100
_SYSTEM_NOT_READY: Final = 802
_SYSTEM_DRIVER_MISMATCH: Final = 803


def not_installed() -> HardwareError:
    """The error for a Python without cuda-bindings."""
    return HardwareError(
        "cuda-bindings is not installed",
        "pip install 'pytest-gpuxfer[cu13]', or 'pytest-gpuxfer[cu12]' for drivers below 580",
    )


def start(bindings: Any, bindings_version: str) -> bool:
    """Call cuInit; the answer is whether the driver has any device. Raises HardwareError."""
    try:
        code = bindings.cuInit(0)[0]
        if code in (0, _NO_DEVICE):
            _check_version(bindings.cuDriverGetVersion()[1], bindings_version)
            return bool(code == 0)
    except RuntimeError as error:  # how bindings say that a library or a symbol is missing
        raise _missing(bindings_version, str(error)) from None
    except (ValueError, KeyError) as error:  # and that they do not know its code
        raise HardwareError(
            f"cuInit failed with a code that cuda-bindings {bindings_version} does not know:"
            f" {error}",
            "install newer cuda-bindings, or see what nvidia-smi and dmesg say",
        ) from None
    raise _refused(code)


def _missing(bindings_version: str, words: str) -> HardwareError:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return HardwareError(
            f"no NVIDIA driver here: {error}",
            "install the driver, or give the container access to it (--gpus all)",
        )
    return HardwareError(
        f"the driver lacks what cuda-bindings {bindings_version} calls: {words}",
        _update(_major(bindings_version)),
    )


def _check_version(driver_version: int, bindings_version: str) -> None:
    wanted = _major(bindings_version)
    if driver_version < wanted * 1000:
        cuda = f"{driver_version // 1000}.{driver_version % 1000 // 10}"
        raise HardwareError(
            f"the driver is of CUDA {cuda}, cuda-bindings {bindings_version} needs one of CUDA"
            f" {wanted}.0 or later",
            _update(wanted),
        )


def _update(wanted: int) -> str:
    if wanted >= 13:
        return "update the driver to 580 or later, or pip install 'pytest-gpuxfer[cu12]'"
    return "update the driver to 525 or later"


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _refused(code: Any) -> HardwareError:
    number = int(code)
    if number == _STUB_LIBRARY:
        return HardwareError(
            "libcuda.so.1 is the CUDA toolkit's stub, no driver",
            "take the toolkit's lib64/stubs folder out of LD_LIBRARY_PATH",
        )
    if number == _SYSTEM_NOT_READY:
        return HardwareError(
            "the GPUs' NVLink fabric is not ready: cuInit says CUDA_ERROR_SYSTEM_NOT_READY (802)",
            "systemctl start nvidia-fabricmanager, of the driver's own version, and try again",
            not_ready=True,
        )
    remedy = "see what nvidia-smi and dmesg say"
    if number == _SYSTEM_DRIVER_MISMATCH:
        remedy = "the kernel module and libcuda are of different versions: reboot, or reload it"
    return HardwareError(f"cuInit failed: {getattr(code, 'name', 'unknown')} ({number})", remedy)
