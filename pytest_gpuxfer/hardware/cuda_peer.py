"""Another process that owns GPU memory, seen from this one; `cuda_peer_process` is its program.

Request and answer are one pickle each, a packet of a Unix socket: only we and a child of ours hold
its two ends. The child ends when ours is closed, so no way of ending this process leaves it behind.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import weakref
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from pytest_gpuxfer.hardware.child import start_child
from pytest_gpuxfer.hardware.driver import (
    Comparison,
    DeviceInfo,
    DeviceKind,
    DriverError,
    PeerProcessError,
    SharedHandle,
)
from pytest_gpuxfer.model.pattern import Pattern

PROGRAM: Final = "pytest_gpuxfer.hardware.cuda_peer_process"
_DEADLINE_S: Final = 30.0  # starting CUDA on a node with many GPUs takes ten
_END_S: Final = 5.0
_PACKET_BYTES: Final = 65536


def send(connection: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """Send one message, with file descriptors of ours for the other side to have as well."""
    socket.send_fds(connection, [pickle.dumps(message)], descriptors)


def receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """The next message and its file descriptors. Raises EOFError where the other side is gone."""
    packet, descriptors, _, _ = socket.recv_fds(connection, _PACKET_BYTES, 1)
    if not packet:
        raise EOFError
    return pickle.loads(packet), descriptors


class CudaPeer:
    """The PeerProcess on one GPU; ready, or an error, once it is made."""

    def __init__(self, device: DeviceInfo, *, hide_others: bool) -> None:
        self._device = device
        self._descriptors: list[int] = []
        environment = {"CUDA_VISIBLE_DEVICES": device.uuid} if hide_others else None
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(_DEADLINE_S)
        with theirs:
            self._process = start_child(
                PROGRAM, theirs.fileno(), device.uuid, environment=environment
            )
        # Also at exit, and when nobody has this object any more.
        self._end = weakref.finalize(self, _end, self._process, self._connection, self._descriptors)
        self._answer("start")

    def share(self, size_bytes: int, kind: DeviceKind) -> SharedHandle:
        _close(self._descriptors)  # one left open would keep what it was of from being freed
        handle = self._ask("share", size_bytes, kind)
        return SharedHandle(kind, size_bytes, self._device.ordinal, handle)

    def fill(self, content: Pattern | int, size_bytes: int) -> None:
        self._ask("fill", content, size_bytes)

    def compare(self, content: Pattern, size_bytes: int) -> Comparison:
        comparison: Comparison = self._ask("compare", content, size_bytes)
        return comparison

    def close(self) -> None:
        self._end()

    def _ask(self, request: str, *arguments: Any) -> Any:
        if not self._end.alive:
            raise PeerProcessError(f"{self._name} was ended, and is asked to {request}")
        try:
            send(self._connection, (request, arguments))
        except OSError:
            self._lose(request)
        return self._answer(request)

    def _answer(self, request: str) -> Any:
        """The value that came, or the file descriptor that came with it."""
        try:
            (failed, value), descriptors = receive(self._connection)
        except TimeoutError:
            self._process.kill()
            self.close()
            words = f"did not answer within {_DEADLINE_S:.0f} s, and was killed"
            raise PeerProcessError(f"{self._name} {words}: {request}") from None
        except (OSError, EOFError):
            self._lose(request)
        self._descriptors += descriptors
        if isinstance(failed, tuple):
            call, code, name = failed
            raise DriverError(call, code, name, f"in {self._name}")
        if failed:
            self.close()
            raise PeerProcessError(f"{self._name} failed: {value}")
        return descriptors[0] if descriptors else value

    def _lose(self, request: str) -> NoReturn:
        self.close()
        status = self._process.returncode
        raise PeerProcessError(f"{self._name} ended with status {status}: {request}") from None

    @property
    def _name(self) -> str:
        return f"the peer process of device {self._device.ordinal} ({self._process.pid})"


def _end(
    process: subprocess.Popen[bytes], connection: socket.socket, descriptors: list[int]
) -> None:
    connection.close()
    _close(descriptors)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
