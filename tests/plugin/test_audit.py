"""`path_audit` in other people's tests, on a simulated machine."""

from __future__ import annotations

import pytest

SIMULATED = "--gpuxfer-sim=dgx-a100"


def test_a_test_may_assert_which_way_its_bytes_went(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_nvlink(path_audit, transfer, topology):
            pair = topology.gpus[0], topology.gpus[1]
            with path_audit() as traffic:
                with pytest.raises(Exception, match="the audit still runs"):
                    traffic.gpu(0)
                transfer.peer_copy(pair, size="64 MiB")
            moved = traffic.between(0, 1).nvlink_bytes
            assert moved >= 64 * 2**20
            assert moved == traffic.gpu(0).nvlink_sent_bytes
            assert traffic.gpu(1).nvlink_sent_bytes == 0

        def test_staged(path_audit, transfer, topology):
            with path_audit() as traffic:
                transfer.host_to_device(topology.gpus[2], size="64 MiB")
            assert traffic.gpu(2).nvlink_received_bytes == 0

        def test_unknown(path_audit, transfer, topology):
            with path_audit() as traffic:
                transfer.host_to_device(topology.gpus[2], size="512 MiB")
            assert traffic.gpu(2).pcie_received_bytes == pytest.approx(2**29, rel=0.2)
        """
    )
    result = pytester.runpytest_inprocess(SIMULATED)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*UnknownTrafficError: sampling gap of * ms, *: between *"])


def test_gpus_have_the_numbers_of_the_other_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_numbers(path_audit, topology):
            with path_audit() as traffic:
                pass
            assert [gpu.uuid for gpu in traffic.gpus] == [gpu.uuid for gpu in topology.gpus]
        """
    )
    result = pytester.runpytest_inprocess(SIMULATED)
    assert result.ret == 0
    result.assert_outcomes(passed=1)


def test_what_others_move_meanwhile_is_refused_by_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test(path_audit): ...")
    result = pytester.runpytest_subprocess("-n1", SIMULATED)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pytest-xdist's -n would measure several*"])
