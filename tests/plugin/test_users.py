"""Other people's tests, with no import of ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_gpuxfer import fixtures
from pytest_gpuxfer.instruments import Transfer
from pytest_gpuxfer.model.cell import Cell
from pytest_gpuxfer.model.measurement import Measurement
from pytest_gpuxfer.transfer.bench import Bench

SIMULATED = ("--gpuxfer-sim=dgx-a100",)
JUDGED = (*SIMULATED, "--gpuxfer-hw=a100-nvlink")

PAGE = (Path(__file__).parents[2] / "docs" / "fixtures.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

RING = """
def test_ring(gpu_pair, transfer, thresholds):
    thresholds.require(transfer.peer_copy(gpu_pair, size="512 MiB"))
"""


def test_ring_is_judged_pair_by_pair(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RING)
    result = pytester.runpytest_inprocess(*JUDGED, "-v", "-k", "gpu0-gpu1 or gpu1-gpu0")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*::test_ring[[]gpu0-gpu1] PASSED*", "SIMULATED 2 pass*"])


def test_ring_fails_with_the_words_of_the_suites(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RING)
    fault = "--gpuxfer-fault=staged-despite-access:gpu0-gpu1"
    result = pytester.runpytest_inprocess(*JUDGED, fault, "-k", "gpu0-gpu1")
    assert result.ret == 1
    result.assert_outcomes(failed=1, deselected=55)
    result.stdout.fnmatch_lines(
        ["FAIL peer_copy.write/gpu0-gpu1/512MiB: the bytes took staged*", "*next*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_size_without_a_limit_names_those_that_have_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RING.replace("512 MiB", "32 MiB"))
    result = pytester.runpytest_inprocess(*JUDGED, "-k", "gpu0-gpu1")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["profile a100-nvlink has no limit for peer_copy.write at 32 MiB; it has for: 64 *"]
    )


def test_thresholds_without_a_profile_say_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RING)
    result = pytester.runpytest_inprocess(*SIMULATED, "-k", "gpu0-gpu1")
    assert result.ret == 6
    result.stdout.fnmatch_lines(["thresholds needs a hardware profile: run pytest --gpuxfer-hw=*"])


def test_everything_but_thresholds_works_without_a_profile(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_copies(gpu_pair, transfer, topology):
            assert len(topology.gpus) == 8
            for measure in (transfer.peer_copy, transfer.unified_copy, transfer.host_relay):
                assert measure(gpu_pair, size="64 MiB").rates().median > 10e9
            read = transfer.peer_copy(gpu_pair, size="64 MiB", initiator="read")
            assert read.integrity.mismatch is None

        def test_host(gpu, transfer):
            assert transfer.host_to_device(gpu, size="64 MiB").rates().median > 20e9
            assert transfer.device_to_host(gpu, size="64 MiB").rates().median > 20e9
        """
    )
    result = pytester.runpytest_inprocess(*SIMULATED, "-k", "gpu0-gpu1 or (test_host and gpu3)")
    assert result.ret == 0
    result.assert_outcomes(passed=2, deselected=62)


CALLS = """
def test_pairs(gpu_pair, transfer):
    for measure, more in [
        (transfer.peer_copy, {"initiator": "read"}),
        (transfer.peer_copy, {"size": "128 MiB", "pattern": "round-trip"}),
        (transfer.peer_copy, {"size": "64 MiB", "access": False}),
        (transfer.unified_copy, {"memory": "vmm"}),
        (transfer.unified_copy, {"memory": "pool", "access": False}),
        (transfer.kernel_copy, {"initiator": "read", "pattern": "bidirectional"}),
        (transfer.ipc_copy, {"memory": "vmm", "pattern": "hidden"}),
        (transfer.host_relay, {"memory": "shared"}),
        (transfer.host_relay, {"pattern": "pipelined"}),
        (transfer.zero_copy, {}),
        (transfer.managed, {}),
        (transfer.small_copy_latency, {"access": False}),
        (transfer.load_latency, {}),
    ]:
        print(measure(gpu_pair, **more).cell)

def test_gpus(gpu, transfer):
    for measure, more in [
        (transfer.local_copy, {}),
        (transfer.host_to_device, {"memory": "pageable", "size": "32 MiB"}),
        (transfer.device_to_host, {"memory": "registered", "size": "32 MiB"}),
        (transfer.host_to_device, {"pattern": "far-node", "size": "32 MiB"}),
        (transfer.zero_copy, {"size": "32 MiB"}),
        (transfer.zero_copy, {"initiator": "write", "size": "32 MiB"}),
        (transfer.managed, {"engine": "sm", "size": "32 MiB"}),
        (transfer.load_latency, {}),
    ]:
        print(measure(gpu, **more).cell)

def test_any(transfer):
    measured = transfer.measure("unified_copy.write.disjoint-pairs/round-1/32MiB")
    print(measured.cell, len(measured.flows))
"""


def test_every_way_to_move_bytes_has_its_call(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CALLS)
    chosen = "gpu5-gpu2 or (test_gpus and gpu3) or test_any"
    result = pytester.runpytest_inprocess(*SIMULATED, "-q", "-s", "-k", chosen)
    result.assert_outcomes(passed=3, deselected=62)
    cells = [line.lstrip(".") for line in result.outlines if "/" in line and "/gpu" in line]
    assert cells == [
        "peer_copy.read/gpu5-gpu2/512MiB",
        "peer_copy.write.round-trip/gpu5-gpu2/128MiB",
        "peer_copy.write.no-access/gpu5-gpu2/64MiB",
        "unified_copy.write.vmm/gpu5-gpu2/512MiB",
        "unified_copy.write.pool.no-access/gpu5-gpu2/64MiB",
        "kernel_copy.sm.read.bidirectional/gpu2-gpu5/256MiB",
        "ipc_copy.write.vmm.hidden/gpu5-gpu2/256MiB",
        "host_relay.shared/gpu5-gpu2/128MiB",
        "host_relay.pipelined/gpu5-gpu2/128MiB",
        "zero_copy.sm/gpu5-gpu2/256MiB",
        "managed/gpu5-gpu2/128MiB",
        "small_copy_latency.no-access/gpu5-gpu2/16B",
        "load_latency.sm/gpu5-gpu2/2MiB",
        "local_copy/gpu3/512MiB",
        "host_to_device.pageable/gpu3/32MiB",
        "device_to_host.registered/gpu3/32MiB",
        "host_to_device.far-node/gpu3/32MiB",
        "zero_copy.sm.read/gpu3/32MiB",
        "zero_copy.sm.write/gpu3/32MiB",
        "managed.sm.read/gpu3/32MiB",
        "load_latency.sm.mapped/gpu3/2MiB",
    ]
    result.stdout.fnmatch_lines(["*unified_copy.write.disjoint-pairs/round-1/32MiB 4*"])


NO_SUCH_CALLS = {
    "host_to_device(gpu, size='512')": "'512' is no size: the unit is missing*",
    "host_to_device(gpu, size='0 MiB')": "a size of 0 is nothing to measure*",
    "host_to_device(gpu, size='20 B')": "host_to_device moves multiples of 16 B, and this is 20 B",
    "host_to_device(gpu, memory='vmm')": "there is no check host_to_device.vmm; there are *page*",
    "host_to_device(gpu, memory='fast')": "'host_to_device.fast' is no check: 'fast' is no*",
    "peer_copy(gpu)": "peer_copy.write is not measured at gpu0, but at gpu0-gpu1 and*",
    "peer_copy((gpu, gpu))": "peer_copy.write is not measured at gpu0-gpu0, but*",
    "managed(gpu, '300 MiB')": "managed.read/gpu0/300MiB: cannot allocate: 300 MiB of*",
    "measure('fly/gpu0/1MiB')": "'fly' is no way to move bytes; there are local_copy,*",
    "measure('local_copy/gpu0')": "local_copy moves multiples of 16 B, and this is no size",
    "measure('local_copy')": "'local_copy' is no cell id; write check/place or*",
}


def test_what_cannot_be_measured_is_one_line(pytester: pytest.Pytester) -> None:
    tests = [
        f"def test_{n}(gpu, transfer): transfer.{call}" for n, call in enumerate(NO_SUCH_CALLS)
    ]
    pytester.makepyfile("\n\n".join(tests))
    result = pytester.runpytest_inprocess(*SIMULATED, "-k", "gpu0")
    result.assert_outcomes(failed=len(tests), deselected=7 * len(tests))
    result.stdout.fnmatch_lines_random(list(NO_SUCH_CALLS.values()))
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*transfer.*")  # nobody's source is shown


def test_simulated_is_said_where_there_is_no_profile(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test(topology): ...")
    result = pytester.runpytest_inprocess(*SIMULATED, "--junitxml=j.xml")
    result.stdout.fnmatch_lines(["gpuxfer: SIMULATED machine dgx-a100", "=* gpuxfer SIMULATED =*"])
    suite = '<property name="SIMULATED" value="dgx-a100"'
    assert suite in pytester.path.joinpath("j.xml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (
            "def test(gpu, transfer): transfer.host_to_device(gpu, size='512')",
            "'512' is no size: the unit is missing*",
        ),
        (
            "def test(gpu, transfer): transfer.host_to_device(gpu, size=512)",
            "'512' is no size: the unit is missing*",
        ),
        (
            "def test(gpu_pair, transfer): transfer.peer_copy(gpu_pair, initiator='push')",
            "'peer_copy.push' is no check: 'push' is no engine, initiator, memory or pattern",
        ),
        (
            "import pytest\ngpu = pytest.fixture(lambda: 0)\ndef test(gpu, device_buffer): ...",
            "this test's own gpu fixture gives 0: *; return one of topology.gpus",
        ),
    ],
    ids=["no-unit", "number", "initiator", "own-gpu"],
)
def test_mistake_in_a_test_is_one_line(pytester: pytest.Pytester, test: str, words: str) -> None:
    pytester.makepyfile(test)
    result = pytester.runpytest_inprocess(*SIMULATED, "-x")
    assert result.ret == 1
    result.stdout.fnmatch_lines([words])


def test_marker_that_names_no_method_is_not_skipped(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpuxfer("machine.gpus")
        def test_judged(verdict): verdict.require()

        @pytest.mark.gpuxfer("peer_cpy")
        def test_misspelt(verdict): verdict.require()
        """
    )
    result = pytester.runpytest_inprocess(*JUDGED)
    assert result.ret == 6
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["gpuxfer marks methods, 'peer_cpy' is none; known: *peer_copy*"])


def test_buffers_have_their_size_and_gpu_and_are_freed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_default(gpu, device_buffer, pinned_buffer):
            assert device_buffer.size_bytes == pinned_buffer.size_bytes == 64 * 2**20
            assert device_buffer.gpu == gpu.index

        @pytest.mark.parametrize(
            ("device_buffer", "pinned_buffer"), [("2 MiB", "1 MiB")], indirect=True
        )
        def test_sized(device_buffer, pinned_buffer):
            assert (device_buffer.size_bytes, pinned_buffer.size_bytes) == (2**21, 2**20)
            with pytest.raises(TypeError, match="simulated"):
                device_buffer.__cuda_array_interface__
            global kept
            kept = device_buffer

        def test_freed():
            with pytest.raises(ValueError, match="closed"):
                kept.size_bytes

        @pytest.mark.parametrize("device_buffer", ["900 GiB"], indirect=True)
        def test_too_large(device_buffer): ...
        """
    )
    result = pytester.runpytest_inprocess(*SIMULATED, "-k", "gpu2 or not default")
    result.assert_outcomes(passed=3, errors=1, deselected=7)
    result.stdout.fnmatch_lines(["gpu0 has * GiB free, 900.00 GiB are needed*"])


def test_peer_access_is_put_back(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_on(gpu_pair, peer_access):
            assert not any(side.answer.on for side in peer_access.state(*gpu_pair))
            assert all(side.answer.on for side in peer_access.enable(*gpu_pair))

        def test_off_again(gpu_pair, peer_access):
            assert not any(side.answer.on for side in peer_access.state(*gpu_pair))
        """
    )
    result = pytester.runpytest_inprocess(*SIMULATED, "-k", "gpu0-gpu1")
    result.assert_outcomes(passed=2, deselected=110)


def test_measuring_leaves_peer_access_as_it_was(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def still_off(gpu_pair, peer_access):
            yield  # `transfer` is torn down first
            assert not any(side.answer.on for side in peer_access.state(*gpu_pair))

        def test(still_off, gpu_pair, transfer, peer_access):
            transfer.peer_copy(gpu_pair, size="1 MiB")
            assert all(side.answer.on for side in peer_access.state(*gpu_pair))
        """
    )
    result = pytester.runpytest_inprocess(*SIMULATED, "-k", "gpu0-gpu1")
    result.assert_outcomes(passed=1, deselected=55)


def test_a_project_keeps_its_own_fixtures_and_parameters(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def gpu():
            return "mine"

        @pytest.fixture
        def cell():
            return "mine too"

        def test_own_fixture(gpu, cell):
            assert (gpu, cell) == ("mine", "mine too")

        @pytest.mark.parametrize("gpu_pair", ["my pair"])
        def test_own_parameter(gpu_pair):
            assert gpu_pair == "my pair"
        """
    )
    result = pytester.runpytest_inprocess()
    assert result.ret == 0
    result.assert_outcomes(passed=2)


def test_ordinary_failures_keep_status_1(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RING + "\ndef test_other(): assert 1 + 1 == 3")
    result = pytester.runpytest_inprocess(*JUDGED, "-k", "gpu0-gpu1 or other")
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=1, deselected=55)


def test_profile_named_and_nothing_judged_is_not_green(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_other(): ...")
    result = pytester.runpytest_inprocess(*JUDGED)
    assert result.ret == 6
    result.stdout.fnmatch_lines(["SIMULATED nothing was judged; exit status 6"])


@pytest.mark.parametrize("options", [(), ("-n1",)], ids=["plain", "xdist"])
def test_a_run_that_uses_none_of_ours_pays_nothing(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_heavy():
            heavy = {"cuda", "pynvml", "yaml", "numpy", "msgspec"}
            assert not heavy & {name.split(".")[0] for name in sys.modules}
            ours = {name for name in sys.modules if name.startswith("pytest_gpuxfer.")}
            assert ours == {
                "pytest_gpuxfer.plugin", "pytest_gpuxfer.settings", "pytest_gpuxfer.fixtures"
            }
        """
    )
    result = pytester.runpytest_subprocess(*options)
    assert result.ret == 0
    result.assert_outcomes(passed=1)


def test_measuring_under_xdist_is_refused_by_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test(gpu, transfer): transfer.host_to_device(gpu, size='1 MiB')")
    result = pytester.runpytest_subprocess("-n1", *SIMULATED)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pytest-xdist's -n would measure several*"])


def test_cells_of_ones_own_do_not_make_a_partial_run_whole(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_unplanned_size(gpu_pair, transfer, thresholds):
            thresholds.require(transfer.peer_copy(gpu_pair, size="96 MiB"))
        """
    )
    result = pytester.runpytest_inprocess(*JUDGED, "-k", "gpu0")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["PARTIAL 0 of * cells were selected*"])


def test_a_test_of_ones_own_samples_until_clear_of_the_floor(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []
    measure = Bench.measure

    def spy(bench: Bench, cell: Cell, decide_at_bytes_per_s: float | None = None) -> Measurement:
        asked.append(decide_at_bytes_per_s)
        return measure(bench, cell, decide_at_bytes_per_s)

    monkeypatch.setattr(Bench, "measure", spy)
    pytester.makepyfile("def test(gpu_pair, transfer): transfer.peer_copy(gpu_pair)")
    pytester.runpytest_inprocess(*JUDGED, "-k", "gpu0-gpu1")
    assert asked
    assert None not in asked


@pytest.mark.parametrize("example", [text for text in EXAMPLES if "importorskip" not in text])
def test_the_examples_of_the_page_are_true(pytester: pytest.Pytester, example: str) -> None:
    pytester.makepyfile(example)
    of_two_gpus = "gpu0-gpu1 or not gpu or (gpu1 and not gpu1-) or all_at_once or marked or sizes"
    result = pytester.runpytest_inprocess(*JUDGED, "-k", of_two_gpus)
    outcomes = result.parseoutcomes()
    assert outcomes.pop("passed") >= example.count("def test_")
    assert set(outcomes) <= {"deselected"}


def test_the_page_has_every_fixture_and_every_call() -> None:
    calls = [name for name in vars(Transfer) if not name.startswith("_") and name != "close"]
    for name in ("topology", "gpu", "peer_access", "transfer", "thresholds", "path_audit", *calls):
        assert re.search(rf"^\| .*`{name}[`(]", PAGE, re.MULTILINE), name
    for name in vars(fixtures):
        assert not name.endswith("_buffer") or name.startswith("_") or f"| `{name}` |" in PAGE
