"""Calls that never return, processes that end, and work that never does."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Container

from pytest_gpuxfer.hardware.simulated.defects import Trouble
from pytest_gpuxfer.hardware.simulated.engine import Hold, Operation


def befall_call(troubles: Container[Trouble]) -> None:
    """What the call itself meets: real trouble, for this thread or this process."""
    if Trouble.CRASH in troubles:
        os.abort()
    while Trouble.CALL_HANGS in troubles:
        time.sleep(1)


def endless(gpus: tuple[int, ...]) -> Operation:
    """Work that never ends."""
    return Operation(gpus, lambda _: None, hold=Hold(math.inf))
