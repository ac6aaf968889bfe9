"""The fixtures, thin: each a few lines. What they hand out is imported when one is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gpuxfer.instruments import JudgedCell, PeerAccessSwitch, Thresholds, Transfer
    from pytest_gpuxfer.model.machine import Gpu, Machine
    from pytest_gpuxfer.parameters import GpuPair
    from pytest_gpuxfer.session import GpuxferSession
    from pytest_gpuxfer.transfer.buffers import DeviceBuffer, PinnedBuffer

_DEFAULT_BUFFER = "64 MiB"


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


@pytest.fixture
def device_buffer(
    request: pytest.FixtureRequest, gpuxfer_session: GpuxferSession
) -> Iterator[DeviceBuffer]:
    """64 MiB on the test's `gpu`, or on gpu0; another size by indirect parametrisation."""
    from pytest_gpuxfer.instruments import bench_of, index_of, machine_faults, read_size
    from pytest_gpuxfer.transfer.buffers import DeviceBuffer

    index = index_of(request.getfixturevalue("gpu")) if "gpu" in request.fixturenames else 0
    with machine_faults():
        arena = bench_of(gpuxfer_session).arena
        buffer = DeviceBuffer(arena, index, read_size(getattr(request, "param", _DEFAULT_BUFFER)))
    yield buffer
    buffer.close()


@pytest.fixture
def pinned_buffer(
    request: pytest.FixtureRequest, gpuxfer_session: GpuxferSession
) -> Iterator[PinnedBuffer]:
    """64 MiB of page-locked host memory; another size by indirect parametrisation."""
    from pytest_gpuxfer.instruments import bench_of, machine_faults, read_size
    from pytest_gpuxfer.transfer.buffers import PinnedBuffer

    with machine_faults():
        arena = bench_of(gpuxfer_session).arena
        buffer = PinnedBuffer(arena, read_size(getattr(request, "param", _DEFAULT_BUFFER)))
    yield buffer
    buffer.close()


@pytest.fixture
def peer_access(gpuxfer_session: GpuxferSession) -> Iterator[PeerAccessSwitch]:
    """Peer access to `enable(*gpu_pair)` and `disable(*gpu_pair)`; put back after the test."""
    from pytest_gpuxfer.instruments import PeerAccessSwitch, bench_of

    bench = bench_of(gpuxfer_session)
    yield PeerAccessSwitch(bench)
    bench.peer_access.restore()


@pytest.fixture
def transfer(gpuxfer_session: GpuxferSession) -> Transfer:
    """Copies to measure, e.g. `transfer.peer_copy(gpu_pair, size="512 MiB")`."""
    from pytest_gpuxfer.instruments import Transfer

    return Transfer(gpuxfer_session)


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
