"""What goes wrong in the field, as simulated machines can show it, and the verdict that it gets."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import pytest

from pytest_gpuxfer.model.cell import parse_cell
from pytest_gpuxfer.model.expectation import Expectation
from pytest_gpuxfer.model.measurement import Health, Measurement, Reading
from pytest_gpuxfer.model.verdict import Outcome, Reason, judge
from pytest_gpuxfer.run import Run, open_run
from tests.fault_table import settings


@dataclass(frozen=True)
class Case:
    """A machine, what is wrong with it, and the outcome (with reason) wanted of each cell."""

    name: str
    machine: str
    faults: tuple[str, ...]
    wanted: dict[str, str]  # by cell id: "fail wrong-data", "pass", ...


_COPY, _KERNEL = "peer_copy.write/gpu0-gpu1/512MiB", "kernel_copy.sm.write/gpu0-gpu1/512MiB"
_STAGED = "peer_copy.write.no-access/gpu0-gpu1/64MiB"
_RELAY = "host_relay/gpu0-gpu1/128MiB"
_H2D = "host_to_device/gpu0/256MiB"
_NO_PEERS = {_COPY: "not_expected", _STAGED: "pass"}

CASES = (
    Case("peer copies that arrive as NaN", "pcie-dual-socket", ("nan:gpu0-gpu1",),
         {_COPY: "fail wrong-data", _STAGED: "pass"}),
    Case("peer copies with a wrong bit, exact when relayed", "mixed-a6000-ada",
         ("flipped-bit:gpu0-gpu1",), {_COPY: "fail wrong-data", _RELAY: "pass"}),
    Case("peer copies that arrive as zeros", "pcie-dual-socket", ("zeros:gpu0-gpu1",),
         {_COPY: "fail wrong-data", _STAGED: "pass", _RELAY: "pass"}),
    Case("staged copies that bring what came before", "rtx4090", ("stale:gpu0-gpu1",),
         {_STAGED: "fail wrong-data"}),
    Case("a pair that hangs beside one that does not", "pcie-dual-socket",
         ("copy-hangs:gpu0-gpu1",),
         {_COPY: "error not-measured", "peer_copy.write/gpu2-gpu3/512MiB": "pass"}),
    Case("kernels that hang where copies pass", "h100-nvl", ("kernel-hangs:gpu0-gpu1",),
         {_COPY: "pass", _KERNEL: "error not-measured"}),
    Case("right data on the wrong path", "hgx-h200", ("staged-despite-access:gpu0-gpu1",),
         {"machine.nvlink/gpu0": "pass", _COPY: "fail other-path"}),
    Case("peer copies slower than the relay", "pcie-dual-socket", ("pcie-generation:gpu1",),
         {"machine.pcie/gpu1": "fail pcie-short", _COPY: "fail below-floor"}),
    Case("two flows that collapse, each fine alone", "pcie-dual-socket", ("switch-collapse",),
         {_COPY: "pass", "unified_copy.write.ring/ring-2/128MiB": "fail below-floor"}),
    Case("one pair of equals at 82%", "dgx-a100", ("pair-slow:gpu0-gpu1",),
         {"uniformity.peer_copy.write/NV12": "degraded outlier"}),
    Case("peer copies over PCIe, healthy and slower than staging", "pcie-dual-socket", (),
         {_COPY: "pass", _STAGED: "pass"}),
    Case("a virtual machine that hides PCIe", "vm-h100-phb", (),
         {"machine.pcie/gpu0": "not_expected not-readable", _H2D: "pass", _COPY: "pass"}),
    Case("all pairs alike at 82%", "h100-nvl",
         tuple(f"pair-slow:gpu{a}-gpu{b}" for a, b in combinations(range(2), 2)),
         {_COPY: "fail below-floor"}),
    Case("GPUs of two models", "mixed-a6000-ada", (),
         {_COPY: "pass", "peer_copy.write/gpu0-gpu2/512MiB": "not_expected"}),
    Case("GeForce boards without peer access", "rtx4090", (), _NO_PEERS),
    Case("links all up, and nothing crosses them", "hgx-h200", ("confidential-computing",),
         {"machine.nvlink/gpu0": "pass", _COPY: "fail other-path"}),
    Case("links of a mesh inactive, a GPU missing", "dgx1-v100",
         ("gpu-missing:gpu7", "link-down:gpu3/link3"),
         {"machine.gpus/all": "absent gpu-missing", "machine.nvlink/gpu3": "fail links-short"}),
    Case("a GPU that lost the fabric", "hgx-h200", ("link-down:gpu2",),
         {"machine.nvlink/gpu2": "fail links-short",
          "peer_copy.write/gpu2-gpu3/512MiB": "absent no-peer-access", _COPY: "pass"}),
    Case("a bridge not fully seated", "h100-nvl", ("link-down:gpu0/link2",),
         {"machine.nvlink/gpu0": "fail links-short"}),
    Case("12 of 18 links by design", "h100-nvl", (),
         {"machine.nvlink/gpu0": "pass", _COPY: "pass"}),
    Case("all links of a GPU inactive, and an Xid", "hgx-h200",
         ("fabric-dropout:gpu3", "xid:gpu3"), {"machine.nvlink/gpu3": "fail out-of-fabric"}),
    Case("a link that flaps", "hgx-h200", ("flapping-link:gpu0/link7",),
         {"peer_copy.write/gpu0-gpu1/512MiB": "degraded errors-rose"}),
    Case("a fabric in progress", "hgx-h200", ("fabric-in-progress",),
         {"machine.gpus/all": "error not-measured"}),
    Case("one GPU visible", "h200-alone", (), {"machine.gpus/all": "pass", _H2D: "pass"}),
    Case("peer access refused in a virtual machine", "vm-h100-phb",
         ("peer-access-refused:gpu0-gpu1",), {_COPY: "absent no-peer-access", _H2D: "pass"}),
    Case("one GPU's host link at a quarter", "hgx-h200",
         ("pcie-width:gpu0", "pcie-generation:gpu0"),
         {_H2D: "fail below-floor", "host_to_device/gpu1/256MiB": "pass",
          "machine.pcie/gpu0": "fail pcie-short"}),
    Case("C2C that is slower both ways at once", "gb200-tray", (),
         {"host_to_device.bidirectional/gpu0/256MiB": "pass"}),
    Case("half the lanes", "rtx4090", ("pcie-width:gpu0",),
         {"machine.pcie/gpu0": "fail pcie-short", "machine.pcie/gpu1": "pass"}),
    Case("fewer links by design between some pairs", "dgx1-v100", (),
         {_COPY: "pass", "peer_copy.write/gpu0-gpu3/512MiB": "pass"}),
    Case("samples that vary by 8%", "h100-nvl", ("noise",), {_COPY: "pass", _H2D: "pass"}),
)  # fmt: skip


def verdicts(case: Case) -> dict[str, str]:
    """What each cell of the case gets."""
    run = open_run(settings(case.machine, *case.faults))
    try:
        return {cell: _verdict(run, cell, len(case.wanted[cell].split())) for cell in case.wanted}
    finally:
        run.finish(0)


def _verdict(run: Run, cell: str, words: int) -> str:
    planned = {wanted.cell.id: wanted for wanted in run.plan}
    verdict = run.judge(planned.get(cell) or run.expect(parse_cell(cell))).verdict
    return " ".join((str(verdict.outcome), str(verdict.reason))[:words])


@pytest.mark.parametrize("case", CASES, ids=[case.name.replace(" ", "-") for case in CASES])
def test_what_goes_wrong_in_the_field_gets_its_verdict(case: Case) -> None:
    assert verdicts(case) == case.wanted


def test_one_gpu_is_asked_for_nothing_of_pairs() -> None:
    run = open_run(settings("h200-alone"))
    asked = [wanted.cell for wanted in run.plan if wanted.not_expected is None]
    assert not any(cell.place.is_pair for cell in asked)
    run.finish(0)


def test_a_fabric_that_completed_with_an_error_is_a_fault() -> None:
    cell = parse_cell("machine.nvlink/gpu0")
    reading = Reading(nvlinks=(), fabric="completed, but its probe ended with Unknown Error")
    verdict = judge(Measurement(cell, reading=reading), Expectation(cell), Health())
    assert (verdict.outcome, verdict.reason) == (Outcome.FAIL, Reason.OUT_OF_FABRIC)
