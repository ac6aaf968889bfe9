"""What the fixture `path_audit` hands to a test: the audit of this machine, real or simulated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from pytest_gpuxfer.audit import Counters, Traffic, path_audit
from pytest_gpuxfer.audit.recorder import Recorder
from pytest_gpuxfer.audit.sampler import Sampler, SamplerError
from pytest_gpuxfer.instruments import bench_of, machine_of
from pytest_gpuxfer.model.unknown import known
from pytest_gpuxfer.session import GpuxferSession, Red


def auditor_of(session: GpuxferSession) -> Callable[[], AbstractContextManager[Traffic]]:
    """What `path_audit()` calls, with this machine's GPU numbers.

    Raises Red without a GPU, and under pytest-xdist, where other tests move bytes meanwhile.
    """
    bench_of(session)
    uuids = [gpu.uuid for gpu in machine_of(session).gpus]
    return partial(path_audit, partial(_open_counters, session), uuids)


def _open_counters(session: GpuxferSession) -> Counters:
    hardware = session.open().hardware
    assert hardware is not None
    if hardware.simulated:  # its time is this process's: another one would see none of it
        telemetry = hardware.telemetry
        return Recorder(telemetry, hardware.clock, known(telemetry.gpus()) or ())
    try:
        return Sampler()
    except SamplerError as error:
        raise Red(str(error)) from None
