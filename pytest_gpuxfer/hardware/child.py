"""Programs of ours that run beside us: they import what we imported, and none outlives us."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def start_child(
    module: str, descriptor: int, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Run a module as a program that inherits `descriptor` and has its number as first argument."""
    # The child imports what we imported, however our path came about.
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-P", "-X", "faulthandler", "-m", module, str(descriptor), *arguments],
        pass_fds=[descriptor], env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        stdin=subprocess.DEVNULL,
        process_group=0,  # a Ctrl-C is ours to act on
    )  # fmt: skip


def die_with_parent() -> None:
    """For the child: to be killed when its parent ends, though it hang in the driver meanwhile."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
