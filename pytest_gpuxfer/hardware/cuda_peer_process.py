"""The program of a peer process: owns memory on one GPU, shares it, fills it and checks it.

python -m pytest_gpuxfer.hardware.cuda_peer_process SOCKET_DESCRIPTOR GPU_UUID
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from typing import Any, Final

from pytest_gpuxfer.hardware import HardwareError
from pytest_gpuxfer.hardware.child import die_with_parent
from pytest_gpuxfer.hardware.cuda import CudaDriver, open_driver
from pytest_gpuxfer.hardware.cuda_peer import receive, send
from pytest_gpuxfer.hardware.driver import Comparison, DeviceKind, DriverError, Fill, Memory
from pytest_gpuxfer.model.pattern import Pattern

_POLL_S: Final = 0.0002


class _Owner:
    """What the other side asks for: one method a request."""

    def __init__(self, driver: CudaDriver, uuid: str) -> None:
        seen = {device.uuid: device.ordinal for device in driver.devices()}
        if uuid not in seen:
            raise HardwareError(f"it does not see {uuid}", "look at CUDA_VISIBLE_DEVICES")
        self._driver = driver
        self._context = driver.retain_context(seen[uuid])
        self._stream = driver.create_stream(self._context)
        self._memory: Memory | None = None

    def share(self, size_bytes: int, kind: DeviceKind) -> bytes | int:
        if self._memory is not None:
            self._driver.free_device(self._context, self._memory)
            self._memory = None
        self._memory = self._driver.allocate_device(self._context, size_bytes, kind)
        return self._driver.export_memory(self._context, self._memory, kind)

    def fill(self, content: Pattern | int, size_bytes: int) -> None:
        self._driver.launch(Fill(self._shared(size_bytes), content), self._stream)
        while not self._driver.stream_idle(self._stream):
            time.sleep(_POLL_S)

    def compare(self, content: Pattern, size_bytes: int) -> Comparison:
        return self._driver.compare(self._shared(size_bytes), content)

    def _shared(self, size_bytes: int) -> Memory:
        if self._memory is None:
            raise ValueError("nothing is shared yet")
        return self._memory.window(0, size_bytes)


def _serve(connection: socket.socket, uuid: str) -> None:
    owner = _Owner(open_driver(), uuid)
    send(connection, (None, None))
    while True:
        (request, arguments), _ = receive(connection)
        try:
            value: Any = getattr(owner, request)(*arguments)
        except DriverError as error:
            send(connection, ((error.call, error.code, error.name), None))
            continue
        if isinstance(value, int):  # a file descriptor: theirs from now on
            send(connection, (None, None), [value])
            os.close(value)
        else:
            send(connection, (None, value))


def main() -> None:
    """Serve until the other side closes its end of the socket."""
    die_with_parent()
    descriptor, uuid = sys.argv[1:]
    connection = socket.socket(fileno=int(descriptor))
    with suppress(EOFError, BrokenPipeError):
        try:
            _serve(connection, uuid)
        except DriverError as error:
            send(connection, ((error.call, error.code, error.name), None))
        except (HardwareError, ValueError) as error:
            send(connection, (True, str(error)))


if __name__ == "__main__":
    main()
