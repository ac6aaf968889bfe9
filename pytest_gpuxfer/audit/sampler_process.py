"""The program that reads the counters: python -m ...sampler_process SOCKET_DESCRIPTOR INTERVAL_NS.

It says which GPUs there are once it counts, then answers each request with what they moved.
"""

from __future__ import annotations

import select
import socket
import sys
from contextlib import suppress

from pytest_gpuxfer.audit.recorder import Recorder
from pytest_gpuxfer.hardware.child import die_with_parent
from pytest_gpuxfer.hardware.clock import SystemClock
from pytest_gpuxfer.hardware.cuda_peer import receive, send
from pytest_gpuxfer.hardware.nvml import open_telemetry
from pytest_gpuxfer.model.units import NS_PER_MS
from pytest_gpuxfer.model.unknown import Unknown


def _serve(connection: socket.socket, interval_ns: int) -> None:
    telemetry, clock = open_telemetry(), SystemClock()
    listed = telemetry.gpus()
    if isinstance(listed, Unknown) or not listed:
        reason = listed.reason if isinstance(listed, Unknown) else "NVML lists no GPU"
        send(connection, Unknown(reason))
        return
    recorder = Recorder(telemetry, clock, sorted(listed, key=lambda gpu: gpu.pci_address))
    send(connection, recorder.gpus)
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    due_ns = clock.now_ns() + interval_ns
    while True:
        left_ns = max(0, due_ns - clock.now_ns())
        if waiting.poll(left_ns / NS_PER_MS):
            receive(connection)
            send(connection, recorder.report())
        else:
            recorder.sample()
        due_ns = clock.now_ns() + interval_ns


def main() -> None:
    """Count until the other side closes its end of the socket."""
    die_with_parent()
    descriptor, interval = sys.argv[1:]
    connection = socket.socket(fileno=int(descriptor))
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(connection, int(interval))


if __name__ == "__main__":
    main()
