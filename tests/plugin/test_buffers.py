"""The fixtures' buffers, and what is left of a test that took them: nothing, whatever happened."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuxfer.hardware import Hardware
from pytest_gpuxfer.hardware.driver import Context
from pytest_gpuxfer.model.measurement import Access
from pytest_gpuxfer.session import session_of

SIMULATED = ("--gpuxfer-sim=dgx-a100",)


def test_every_kind_has_its_size_and_gpu(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        BUFFERS = [
            "device_buffer", "pinned_buffer", "pageable_buffer", "registered_buffer",
            "shared_buffer", "mapped_buffer", "managed_buffer",
        ]

        @pytest.mark.parametrize("name", BUFFERS)
        def test_default(gpu, name, request):
            buffer = request.getfixturevalue(name)
            assert buffer.size_bytes == 64 * 2**20
            if name in ("device_buffer", "mapped_buffer", "managed_buffer"):
                assert buffer.gpu == gpu.index
            with pytest.raises(TypeError, match="simulated"):
                buffer.address
            with pytest.raises(TypeError, match="simulated"):
                buffer.__dlpack__()

        @pytest.mark.gpuxfer_size("2 MiB")
        @pytest.mark.parametrize("name", BUFFERS)
        def test_marked(name, request):
            assert request.getfixturevalue(name).size_bytes == 2**21

        @pytest.mark.parametrize("device_buffer", ["malloc", "1 GiB pool", "vmm"], indirect=True)
        @pytest.mark.parametrize("shared_buffer", ["1 MiB"], indirect=True)
        @pytest.mark.gpuxfer_size("3 MiB")
        def test_given(device_buffer, shared_buffer, pageable_buffer):
            wanted = {"malloc": 3 * 2**20, "pool": 2**30, "vmm": 3 * 2**20}
            assert device_buffer.size_bytes == wanted[device_buffer.kind]
            assert (shared_buffer.size_bytes, shared_buffer.kind) == (2**20, "shared")
            assert (pageable_buffer.size_bytes, pageable_buffer.kind) == (3 * 2**20, "pageable")

        def test_gpu_of_the_projects_own(device_buffer, own):
            assert device_buffer.gpu == 0

        @pytest.fixture
        def own(): ...
        """
    )
    result = pytester.runpytest_inprocess(*SIMULATED, "-k", "gpu2 or not default")
    result.assert_outcomes(passed=18, deselected=49)


NO_SUCH_BUFFERS = """
import pytest

@pytest.mark.gpuxfer_size("900 GiB")
def test_device(device_buffer): ...

@pytest.mark.gpuxfer_size("257 MiB")
def test_managed(managed_buffer): ...

@pytest.mark.gpuxfer_size("lots")
def test_size(pinned_buffer): ...

@pytest.mark.gpuxfer_size
def test_marker(pinned_buffer): ...

@pytest.mark.parametrize("device_buffer", ["64 MiB tape"], indirect=True)
def test_kind(device_buffer): ...
"""


def test_no_such_buffer_is_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NO_SUCH_BUFFERS)
    result = pytester.runpytest_inprocess(*SIMULATED)
    result.assert_outcomes(errors=5)
    result.stdout.fnmatch_lines(
        [
            "gpu0 has * GiB free, 900.00 GiB are needed beside 1 GiB left to others",
            "257 MiB of managed memory are more than the 256 MiB that a run takes",
            "'lots' is no size; write it like '512 MiB'",
            'write a size in the marker: gpuxfer_size("256 MiB")',
            "'64 MiB tape' is no size*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


class Watcher:
    """A plugin that keeps the machine of the run in sight, with contexts of its own."""

    def __init__(self) -> None:
        self.hardware: Hardware | None = None
        self.contexts: list[Context] = []
        self.before: dict[str, Any] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.hardware = session_of(session.config).open().hardware
        assert self.hardware is not None
        self.contexts = [self.hardware.driver.retain_context(gpu) for gpu in (0, 1)]
        self.before = self.look()

    def look(self) -> dict[str, Any]:
        """Free memory of two GPUs, all allocations, access between the two, and the CPU's node."""
        assert self.hardware is not None
        driver: Any = self.hardware.driver
        answer = driver.enable_peer_access(*self.contexts)
        if answer is Access.ENABLED:
            driver.disable_peer_access(*self.contexts)
        here = driver.allocate_host(self.contexts[0], 8)
        node = driver.allocation_of(here).numa_node
        driver.free_host(self.contexts[0], here)
        return {
            "free": [driver.free_memory_bytes(context) for context in self.contexts],
            "allocations": sum(held is not None for held in driver._space._allocations),
            "access was": answer,
            "node": node,
        }


USES = """
import pytest

@pytest.fixture
def user(device_buffer, mapped_buffer, managed_buffer, shared_buffer, pageable_buffer):
    yield
    {in_fixture}

@pytest.mark.parametrize("device_buffer", ["malloc", "pool", "vmm"], indirect=True)
def test(gpu_pair, user, pinned_buffer, registered_buffer, device_buffer, peer_access, transfer):
    assert all(side.answer.on for side in peer_access.enable(*gpu_pair))
    transfer.peer_copy(gpu_pair, size="1 MiB")
    transfer.managed(gpu_pair, size="1 MiB")
    transfer.host_to_device(gpu_pair.destination, size="1 MiB", pattern="far-node")
    print("measured")
    {in_test}
"""
INTERRUPTED = """
import pytest

@pytest.fixture
def interrupted(gpuxfer_session, monkeypatch):
    # While it allocates on another NUMA node, with other memory in hand.
    driver = gpuxfer_session.open().hardware.driver

    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "allocate_host", stop)

def test(gpu_pair, device_buffer, managed_buffer, interrupted, transfer):
    transfer.peer_copy(gpu_pair, size="1 MiB")
    print("measured")
    transfer.host_to_device(gpu_pair.source, size="1 MiB", pattern="far-node")
"""
ENDS = {
    "passes": (USES.format(in_test="", in_fixture=""), pytest.ExitCode.OK),
    "fails": (
        USES.format(in_test="assert device_buffer is None", in_fixture=""),
        pytest.ExitCode.TESTS_FAILED,
    ),
    "Ctrl-C in the test": (
        USES.format(in_test="raise KeyboardInterrupt", in_fixture=""),
        pytest.ExitCode.INTERRUPTED,
    ),
    "an exception in a fixture on top": (
        USES.format(in_test="", in_fixture="raise OSError"),
        pytest.ExitCode.TESTS_FAILED,
    ),
    "Ctrl-C in a fixture on top": (
        USES.format(in_test="", in_fixture="raise KeyboardInterrupt"),
        pytest.ExitCode.INTERRUPTED,
    ),
    "Ctrl-C in the middle of measuring": (INTERRUPTED, pytest.ExitCode.INTERRUPTED),
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left_behind(pytester: pytest.Pytester, end: str) -> None:
    source, status = ENDS[end]
    pytester.makepyfile(source)
    watcher = Watcher()
    result = pytester.runpytest_inprocess(
        *SIMULATED, "-s", "-k", "gpu0-gpu1", plugins=[watcher], no_reraise_ctrlc=True
    )
    assert result.ret == status
    assert "measured" in result.stdout.str()
    assert watcher.before["access was"] is Access.ENABLED  # by us, just to see: it was off
    assert watcher.look() == watcher.before


def test_what_a_failing_test_held_is_free_for_the_next(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpuxfer_size("200 MiB")
        @pytest.mark.parametrize("device_buffer", ["60 GiB"], indirect=True)
        @pytest.mark.parametrize("number", range(3))
        def test_takes_most_of_the_gpu(number, device_buffer, managed_buffer):
            global kept
            kept = device_buffer
            assert number == 1

        def test_last():
            with pytest.raises(ValueError, match="closed"):
                kept.size_bytes
        """
    )
    result = pytester.runpytest_inprocess("--gpuxfer-sim=dgx-a100")
    result.assert_outcomes(failed=2, passed=2)
