"""Makes kernels.ptx from kernels.cu: `python tools/build_ptx.py`.

NVRTC 12.0 writes PTX ISA 8.0, which every driver from 525 on takes; compute_70 covers Volta and
whatever came after it. The driver compiles it for the GPU at hand, so users need no compiler.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import Final

KERNELS: Final = Path(__file__).parents[1] / "pytest_gpuxfer" / "hardware" / "kernels.cu"
OPTIONS: Final = (b"--gpu-architecture=compute_70",)


def load_nvrtc() -> ctypes.CDLL:
    """NVRTC of the wheel nvidia-cuda-nvrtc-cu12. Raises ModuleNotFoundError without it."""
    spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("pip install nvidia-cuda-nvrtc-cu12==12.0.140")
    folder = Path(next(iter(spec.submodule_search_locations))) / "lib"
    return ctypes.CDLL(str(folder / "libnvrtc.so.12"))


def compile_ptx(source: str) -> str:
    """The PTX of `source`. Raises RuntimeError with the compiler's words."""
    nvrtc = load_nvrtc()
    program = ctypes.c_void_p()
    # The name goes nowhere but into messages; a path would make builds differ.
    created = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None
    )
    if created != 0:
        raise RuntimeError(f"nvrtcCreateProgram failed with {created}")
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    status = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    if status != 0:
        raise RuntimeError(_text(nvrtc, "ProgramLog", program))
    ptx = _text(nvrtc, "PTX", program)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx


def _text(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    nvrtc[f"nvrtcGet{what}Size"](program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    nvrtc[f"nvrtcGet{what}"](program, buffer)
    return buffer.value.decode()


if __name__ == "__main__":
    KERNELS.with_suffix(".ptx").write_text(compile_ptx(KERNELS.read_text()))
