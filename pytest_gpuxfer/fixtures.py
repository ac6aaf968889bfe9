"""The fixtures, thin: each a few lines. What they hand out is imported when one is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gpuxfer.audit import Traffic
    from pytest_gpuxfer.instruments import (
        JudgedCell,
        PeerAccessSwitch,
        Thresholds,
        Transfer,
        TriedGate,
    )
    from pytest_gpuxfer.model.machine import Gpu, Machine
    from pytest_gpuxfer.parameters import GpuPair
    from pytest_gpuxfer.session import GpuxferSession
    from pytest_gpuxfer.transfer.buffers import (
        DeviceBuffer,
        HostBuffer,
        ManagedBuffer,
        MappedBuffer,
    )


@pytest.fixture(scope="session")
def gpuxfer_session(pytestconfig: pytest.Config) -> GpuxferSession:
    """What the other fixtures share; tests have no use for it."""
    from pytest_gpuxfer.session import session_of

    return session_of(pytestconfig)


@pytest.fixture(scope="session")
def topology(gpuxfer_session: GpuxferSession) -> Machine:
    """The machine: its GPUs in PCI order, their links, what each pair is wired with."""
    from pytest_gpuxfer.instruments import machine_of

    return machine_of(gpuxfer_session)


# The parametrised name is another one, so that a project's own `gpu` fixture stays its own.
@pytest.fixture(scope="session")
def gpu(gpuxfer_gpu: Any) -> Gpu:
    """Each GPU that this process may see, one test each."""
    from pytest_gpuxfer.parameters import given

    value: Gpu = given(gpuxfer_gpu)
    return value


@pytest.fixture(scope="session")
def gpu_pair(gpuxfer_gpu_pair: Any) -> GpuPair:
    """Each ordered pair of GPUs, one test each; it has a `source` and a `destination`."""
    from pytest_gpuxfer.parameters import given

    value: GpuPair = given(gpuxfer_gpu_pair)
    return value


# Buffers are of 64 MiB; another size by indirect parametrisation, or by the marker gpuxfer_size.
@pytest.fixture
def device_buffer(
    request: pytest.FixtureRequest, gpuxfer_session: GpuxferSession
) -> Iterator[DeviceBuffer]:
    """Memory of the test's `gpu`, or of gpu0; the parameter may name its kind too: "1 GiB vmm"."""
    from pytest_gpuxfer.instruments import lend, wanted_gpu, wanted_kind
    from pytest_gpuxfer.transfer.buffers import DeviceBuffer

    gpu, (kind, size_bytes) = wanted_gpu(request), wanted_kind(request)
    with lend(gpuxfer_session, lambda arena: DeviceBuffer(arena, gpu, size_bytes, kind)) as buffer:
        yield buffer


@pytest.fixture
def pinned_buffer(
    request: pytest.FixtureRequest, gpuxfer_session: GpuxferSession
) -> Iterator[HostBuffer]:
    """Page-locked host memory."""
    with _host_buffer(request, gpuxfer_session, "pinned") as buffer:
        yield buffer


@pytest.fixture
def pageable_buffer(
    request: pytest.FixtureRequest, gpuxfer_session: GpuxferSession
) -> Iterator[HostBuffer]:
    """Ordinary host memory, every page touched."""
    with _host_buffer(request, gpuxfer_session, "pageable") as buffer:
        yield buffer


@pytest.fixture
def registered_buffer(
    request: pytest.FixtureRequest, gpuxfer_session: GpuxferSession
) -> Iterator[HostBuffer]:
    """Host memory that was page-locked afterwards (cuMemHostRegister)."""
    with _host_buffer(request, gpuxfer_session, "registered") as buffer:
        yield buffer


@pytest.fixture
def shared_buffer(
    request: pytest.FixtureRequest, gpuxfer_session: GpuxferSession
) -> Iterator[HostBuffer]:
    """A memory file, page-locked afterwards."""
    with _host_buffer(request, gpuxfer_session, "shared") as buffer:
        yield buffer


@pytest.fixture
def mapped_buffer(
    request: pytest.FixtureRequest, gpuxfer_session: GpuxferSession
) -> Iterator[MappedBuffer]:
    """Page-locked host memory that GPU libraries take for a GPU's, and use where it is."""
    from pytest_gpuxfer.instruments import lend, wanted_gpu, wanted_size
    from pytest_gpuxfer.transfer.buffers import MappedBuffer

    gpu, size_bytes = wanted_gpu(request), wanted_size(request)
    with lend(gpuxfer_session, lambda arena: MappedBuffer(arena, gpu, size_bytes)) as buffer:
        yield buffer


@pytest.fixture
def managed_buffer(
    request: pytest.FixtureRequest, gpuxfer_session: GpuxferSession
) -> Iterator[ManagedBuffer]:
    """Managed memory, which moves to who touches it; at most 256 MiB in all."""
    from pytest_gpuxfer.instruments import lend, wanted_gpu, wanted_size
    from pytest_gpuxfer.transfer.buffers import ManagedBuffer

    gpu, size_bytes = wanted_gpu(request), wanted_size(request)
    with lend(gpuxfer_session, lambda arena: ManagedBuffer(arena, gpu, size_bytes)) as buffer:
        yield buffer


def _host_buffer(
    request: pytest.FixtureRequest, session: GpuxferSession, kind: str
) -> AbstractContextManager[HostBuffer]:
    from pytest_gpuxfer.hardware.driver import HostKind
    from pytest_gpuxfer.instruments import lend, wanted_size
    from pytest_gpuxfer.transfer.buffers import HostBuffer

    size_bytes = wanted_size(request)
    return lend(session, lambda arena: HostBuffer(arena, size_bytes, HostKind(kind)))


@pytest.fixture
def peer_access(gpuxfer_session: GpuxferSession) -> Iterator[PeerAccessSwitch]:
    """Peer access to `enable(*gpu_pair)` and `disable(*gpu_pair)`; put back after the test."""
    from pytest_gpuxfer.instruments import PeerAccessSwitch, bench_of

    bench = bench_of(gpuxfer_session)
    yield PeerAccessSwitch(bench)
    bench.peer_access.restore()


@pytest.fixture
def transfer(gpuxfer_session: GpuxferSession) -> Iterator[Transfer]:
    """Copies to measure, e.g. `transfer.peer_copy(gpu_pair, size="512 MiB")`."""
    from pytest_gpuxfer.instruments import Transfer

    transfer = Transfer(gpuxfer_session)
    yield transfer
    transfer.close()


@pytest.fixture
def path_audit(gpuxfer_session: GpuxferSession) -> Callable[[], AbstractContextManager[Traffic]]:
    """Tells what each GPU moves over NVLink and PCIe, `with` it around any code."""
    from pytest_gpuxfer.path_audit import auditor_of

    return auditor_of(gpuxfer_session)


@pytest.fixture
def thresholds(gpuxfer_session: GpuxferSession) -> Thresholds:
    """The profile's limits: `thresholds.require(measurement)`; needs --gpuxfer-hw."""
    from pytest_gpuxfer.instruments import Thresholds, machine_of
    from pytest_gpuxfer.session import Red

    if gpuxfer_session.settings.hardware is None:
        raise Red("thresholds needs a hardware profile: run pytest --gpuxfer-hw=NAME, or auto")
    machine_of(gpuxfer_session)
    return Thresholds(gpuxfer_session)


@pytest.fixture
def verdict(
    cell: Any, request: pytest.FixtureRequest, gpuxfer_session: GpuxferSession
) -> JudgedCell:
    """A cell of the plan, measured; for tests marked `gpuxfer(*methods)`."""
    from pytest_gpuxfer.instruments import judge_in_setup
    from pytest_gpuxfer.parameters import given

    return judge_in_setup(gpuxfer_session, given(cell), request.node)


@pytest.fixture
def tried_gate(
    gpuxfer_gate: Any, request: pytest.FixtureRequest, gpuxfer_session: GpuxferSession
) -> TriedGate:
    """Each gate of the self-test, tried; of --gpuxfer-selftest alone."""
    from pytest_gpuxfer.instruments import try_in_setup
    from pytest_gpuxfer.parameters import given

    return try_in_setup(gpuxfer_session, given(gpuxfer_gate), request.node)
