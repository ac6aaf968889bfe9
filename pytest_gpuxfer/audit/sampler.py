"""The process that reads the counters before they wrap, seen from this one.

It is a process of its own since a busy Python program would keep a thread from reading in time.
`sampler_process` is its program.
"""

from __future__ import annotations

import socket
import subprocess
import weakref
from contextlib import suppress
from typing import Any, Final

from pytest_gpuxfer.audit.traffic import GpuTraffic
from pytest_gpuxfer.hardware.child import start_child
from pytest_gpuxfer.hardware.cuda_peer import receive, send
from pytest_gpuxfer.hardware.telemetry import GpuIdentity
from pytest_gpuxfer.model.unknown import Unknown

PROGRAM: Final = "pytest_gpuxfer.audit.sampler_process"
INTERVAL_NS: Final = 10_000_000
_START_S: Final = 30.0  # starting NVML on a node with many GPUs takes seconds
_ANSWER_S: Final = 5.0
_END_S: Final = 2.0


class SamplerError(Exception):
    """Nothing can be counted here: one line, why."""


class Sampler:
    """Counts from its making on. Raises SamplerError where NVML or the process does not start."""

    def __init__(self, interval_ns: int = INTERVAL_NS) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = start_child(PROGRAM, theirs.fileno(), str(interval_ns))
        # Also at exit, and when nobody has this object any more.
        self._end = weakref.finalize(self, _end, self._process, self._connection)
        self._lost: Unknown | None = None
        answer = self._answer(_START_S)
        if isinstance(answer, Unknown):
            self.close()
            raise SamplerError(f"no traffic can be counted: {answer.reason}")
        self.gpus: tuple[GpuIdentity, ...] = answer

    @property
    def pid(self) -> int:
        return self._process.pid

    def report(self) -> tuple[GpuTraffic, ...]:
        """What each GPU moved so far, in PCI order; unknown once the process is lost."""
        if self._lost is None:
            moved = self._ask()
            if not isinstance(moved, Unknown):
                answer: tuple[GpuTraffic, ...] = moved
                return answer
            self._lost = moved
            self.close()
        lost = self._lost
        return tuple(GpuTraffic.unknown(g.uuid, g.pci_address, g.name, lost) for g in self.gpus)

    def close(self) -> None:
        """End the process; again is harmless."""
        self._end()

    def _ask(self) -> Any:
        try:
            send(self._connection, "report")
        except OSError:
            return self._gone()
        return self._answer(_ANSWER_S)

    def _answer(self, deadline_s: float) -> Any:
        self._connection.settimeout(deadline_s)
        try:
            return receive(self._connection)[0]
        except TimeoutError:
            self._process.kill()
            return Unknown(f"the sampler did not answer within {deadline_s:.0f} s, and was killed")
        except (OSError, EOFError):
            return self._gone()

    def _gone(self) -> Unknown:
        self.close()
        return Unknown(f"the sampler ended with status {self._process.returncode}")


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # the kernel may hold it in a call of the driver
            process.wait(_END_S)
