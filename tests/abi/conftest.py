"""C stand-ins for the driver's libraries, under the real bindings, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
Run = Callable[..., str]


def _build(name: str, folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the stand-ins with")
    library, source = str(folder / f"{name}.so.1"), str(HERE / f"{name}.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return folder


def _runner(folder: Path) -> Run:
    def run(script: str, **environment: str) -> str:
        """What `script` prints; its environment is as bare as can be, with `environment` added."""
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            env={**kept, "LD_LIBRARY_PATH": str(folder), **environment},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture(scope="session")
def under_cuda(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a script with the stand-in for libcuda.so.1."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    return _runner(_build("libcuda", tmp_path_factory.mktemp("cuda")))


@pytest.fixture(scope="session")
def under_nvml(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a script with the stand-in for libnvidia-ml.so.1."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    return _runner(_build("libnvidia-ml", tmp_path_factory.mktemp("nvml")))


@pytest.fixture(scope="session")
def without_libraries(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a script with none of them."""
    return _runner(tmp_path_factory.mktemp("none"))
