"""From what a red cell shows to its likely causes, most likely first, each with the next step.

The table below is the whole of it: a cause, when it fits, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pytest_gpuxfer.model.cell import Engine
from pytest_gpuxfer.model.evidence import conclude
from pytest_gpuxfer.model.expectation import Expectation
from pytest_gpuxfer.model.machine import NvlinkPort
from pytest_gpuxfer.model.measurement import (
    Access,
    Corruption,
    FailureKind,
    Measurement,
    PathKind,
)
from pytest_gpuxfer.model.units import KIB
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.model.verdict import Outcome, Reason, Verdict

_PAGE_BYTES: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class Cause:
    """A likely cause, and what to do next."""

    name: str
    next_step: str


@dataclass(frozen=True, slots=True)
class _Finding:
    measurement: Measurement
    expectation: Expectation
    verdict: Verdict

    def why(self, *reasons: Reason) -> bool:
        return self.verdict.reason in reasons

    def answered(self, *answers: Access) -> bool:
        return any(side.answer in answers for side in self.measurement.access)

    def failed_by(self, kind: FailureKind) -> bool:
        failure = self.measurement.failure
        return failure is not None and failure.kind is kind

    def corrupted_as(self, *kinds: Corruption) -> bool:
        integrity = self.measurement.integrity
        mismatch = integrity.mismatch if integrity else None
        return mismatch is not None and mismatch.corruption in kinds

    @property
    def access_on(self) -> bool:
        sides = self.measurement.access
        return bool(sides) and all(side.answer.on for side in sides)

    @property
    def off_nvlink(self) -> bool:
        return conclude(self.measurement.signals).excludes(PathKind.NVLINK)

    @property
    def access_one_way(self) -> bool:
        return len({side.answer.on for side in self.measurement.access}) == 2

    @property
    def off_a_page(self) -> bool:
        """Whether the wrong words, several of them, lie within one page."""
        integrity = self.measurement.integrity
        mismatch = integrity.mismatch if integrity else None
        if mismatch is None or mismatch.wrong_words < 2:
            return False
        pages = (mismatch.first_offset_bytes, mismatch.last_offset_bytes)
        return len({offset // _PAGE_BYTES for offset in pages}) == 1

    @property
    def ports(self) -> tuple[NvlinkPort, ...]:
        """The GPU's NVLinks, as far as they were read."""
        ports = self.measurement.reading.nvlinks if self.measurement.reading else None
        return () if ports is None or isinstance(ports, Unknown) else ports

    @property
    def links_all_down(self) -> bool:
        return bool(self.ports) and all(port.active is False for port in self.ports)

    @property
    def links_lacking(self) -> bool:
        wanted = self.expectation.nvlink
        up = sum(1 for port in self.ports if port.active is True)
        return (
            wanted is not None
            and up < wanted.links
            and any(port.active is False for port in self.ports)
        )

    @property
    def links_slow(self) -> bool:
        wanted = self.expectation.nvlink
        rates = [port.rate_bytes_per_s for port in self.ports if port.active is True]
        return wanted is not None and any(
            not isinstance(rate, Unknown) and rate < wanted.per_link_bytes_per_s for rate in rates
        )

    @property
    def by_kernel_of_pair(self) -> bool:
        cell = self.expectation.cell
        return cell.check.engine is Engine.SM and cell.place.is_pair

    @property
    def of_many_flows(self) -> bool:
        return len(self.measurement.flows) > 1

    def meanwhile(self, words: str) -> bool:
        health = self.measurement.health
        return any(words in told for told in (*health.concerns, *health.risen, *health.modes))

    @property
    def of_small_copy(self) -> bool:
        return self.expectation.cell.check.method == "small_copy_latency"

    @property
    def of_host_link(self) -> bool:
        return self.expectation.path is PathKind.HOST_LINK


_TABLE: Final[tuple[tuple[Callable[[_Finding], bool], Cause], ...]] = (
    (
        lambda it: it.failed_by(FailureKind.NOT_READY),
        Cause(
            "the NVSwitch fabric is not ready",
            "start nvidia-fabricmanager, wait for `nvidia-smi -q -i 0` to say Fabric State"
            " Completed, run again",
        ),
    ),
    (
        lambda it: it.failed_by(FailureKind.NO_DRIVER),
        Cause(
            "no usable NVIDIA driver", "see the line above; `nvidia-smi` must list the GPUs first"
        ),
    ),
    (
        lambda it: it.failed_by(FailureKind.HANG) and it.by_kernel_of_pair,
        Cause(
            "kernels cannot reach the peer's memory, though copies may pass",
            "look for Xid in `dmesg -T`; check IOMMU and ACS, and in a virtual machine how the GPUs"
            " are handed through; until then run without peer access (NCCL_P2P_DISABLE=1)",
        ),
    ),
    (
        lambda it: it.failed_by(FailureKind.HANG),
        Cause(
            "the transfer never ended",
            "look for Xid in `dmesg -T`; with IOMMU on, check ACS redirect on the PCIe switches",
        ),
    ),
    (
        lambda it: it.failed_by(FailureKind.CRASH),
        Cause(
            "the driver, or a library beneath it, brought the measuring process down",
            "look for Xid and segfault lines in `dmesg -T`, compare the versions of libcuda and of"
            " the kernel module (/proc/driver/nvidia/version)",
        ),
    ),
    (
        lambda it: it.failed_by(FailureKind.STICKY_ERROR),
        Cause(
            "a GPU met an error that ended all work of its process",
            "look for Xid in `dmesg -T`: 31 is a bad access, 48, 63, 64, 94, 95 are memory, 74 is"
            " NVLink, 79 a GPU off the bus",
        ),
    ),
    (
        lambda it: it.failed_by(FailureKind.DEADLINE),
        Cause("the run's time was up", "allow more by --gpuxfer-deadline, or select fewer cells"),
    ),
    (
        lambda it: it.failed_by(FailureKind.CANNOT_ALLOCATE),
        Cause("memory is taken", "see `nvidia-smi` and `free -g` for who holds it, run again"),
    ),
    (
        lambda it: it.why(Reason.GPU_MISSING),
        Cause(
            "a GPU has left the bus, or is hidden from this process",
            "compare `nvidia-smi -L`, `lspci -d 10de:` and CUDA_VISIBLE_DEVICES; look for Xid 79"
            " in `dmesg -T`; if only part of the machine is yours, say --gpuxfer-gpus=visible",
        ),
    ),
    (
        lambda it: it.why(Reason.MIG),
        Cause("MIG mode is on", "`nvidia-smi -mig 0` and reset, or use a profile made for MIG"),
    ),
    (
        lambda it: it.why(Reason.XID),
        Cause(
            "the driver reported an Xid, a fault of the GPU or its links",
            "look it up in `dmesg -T`: 31 is a bad access, 48, 63, 64, 94, 95 are memory, 74 and"
            " 149 NVLink, 79 a GPU off the bus; drain the node, reset the GPU, run again",
        ),
    ),
    (
        lambda it: it.access_one_way and it.expectation.peer_access_required,
        Cause(
            "the driver gives peer access one way only",
            "`nvidia-smi topo -p2p r` and `-p2p w` tell which; check IOMMU and ACS on both GPUs'"
            " PCIe switches, then reset both GPUs",
        ),
    ),
    (
        lambda it: it.answered(Access.REFUSED) and it.expectation.peer_access_required,
        Cause(
            "the driver offers no peer access between these GPUs",
            "`nvidia-smi topo -p2p r` tells why (CNS, GNS, TNS); behind NVSwitch check"
            " nvidia-fabricmanager; in a virtual machine or a container check how the GPUs are"
            " handed through",
        ),
    ),
    (
        lambda it: it.answered(Access.UNSUPPORTED),
        Cause(
            "the driver offers peer access and then denies it",
            "check IOMMU and ACS, the driver's version, and driver policy on GeForce boards",
        ),
    ),
    (
        lambda it: it.answered(Access.TOO_MANY_PEERS),
        Cause("more peers are mapped than the GPU allows", "map fewer GPUs in one process"),
    ),
    (
        lambda it: it.answered(Access.ALREADY_ENABLED) and not it.expectation.cell.check.access,
        Cause(
            "something else in this process had enabled peer access",
            "run the suites in a process of their own",
        ),
    ),
    (
        lambda it: it.answered(Access.OFF) and it.expectation.peer_access_required,
        Cause(
            "peer access was never enabled",
            "enable it in the contexts of both GPUs, in both directions",
        ),
    ),
    (
        lambda it: it.why(Reason.ACCESS_NOT_PROVEN),
        Cause(
            "copies may pass while stores from kernels are lost",
            "check IOMMU (`iommu=pt` or off) and ACS on the PCIe switches; trust no peer kernel",
        ),
    ),
    (
        lambda it: (
            it.why(Reason.OUT_OF_FABRIC) or (it.why(Reason.LINKS_SHORT) and it.links_all_down)
        ),
        Cause(
            "the GPU is out of the NVSwitch fabric, or its bridge is off",
            "`nvidia-smi -q` (Fabric State and Status), nvidia-fabricmanager's log and partitions;"
            " look for Xid 45, 145 and 149 in `dmesg -T`; reset the GPU or restart the node",
        ),
    ),
    (
        lambda it: it.why(Reason.LINKS_SHORT) and it.links_lacking,
        Cause(
            "NVLinks are down",
            "`nvidia-smi nvlink -s` and `-e`; look for Xid 74 and 149 in `dmesg -T`; reseat the"
            " bridge or the board, then reset the GPU",
        ),
    ),
    (
        lambda it: it.why(Reason.LINKS_SHORT) and it.links_slow,
        Cause(
            "NVLinks run below their rate",
            "`nvidia-smi nvlink -s` and `-e`: compare with the other links and GPUs; reseat the"
            " bridge or the board, then reset the GPU",
        ),
    ),
    (
        lambda it: it.why(Reason.LINKS_SHORT) and not it.links_lacking,
        Cause("NVLink is not what the profile declares", "check the profile against the product"),
    ),
    (
        lambda it: it.why(Reason.PCIE_SHORT),
        Cause(
            "the PCIe link trained below what the slot and the card can do",
            "`lspci -vv` (LnkSta against LnkCap) from the GPU up to the root port; reseat the card"
            " or riser; check the BIOS's slot settings",
        ),
    ),
    (
        lambda it: (
            it.corrupted_as(Corruption.ZEROS, Corruption.NEVER_WRITTEN, Corruption.STALE)
            or (it.corrupted_as(Corruption.SHIFTED) and not it.off_a_page)
        ),
        Cause(
            "writes are lost or go astray on the way",
            "check IOMMU (try `iommu=pt` or off) and ACS; look for IO_PAGE_FAULT in `dmesg -T`;"
            " do not run jobs on this pair",
        ),
    ),
    (
        lambda it: it.corrupted_as(Corruption.FLIPPED_BIT),
        Cause(
            "a bit was flipped by memory or a link",
            "`nvidia-smi -q -d ECC,ROW_REMAPPER` and `nvidia-smi nvlink -e`; drain the node",
        ),
    ),
    (
        lambda it: it.off_a_page,
        Cause(
            "a page of memory is translated or mapped wrongly",
            "check IOMMU (try `iommu=pt` or off) and the driver's known issues; `nvidia-smi -q -d"
            " PAGE_RETIREMENT,ROW_REMAPPER`; drain the node",
        ),
    ),
    (
        lambda it: it.why(Reason.WRONG_DATA),
        Cause(
            "data is corrupted on the way",
            "drain the node; check IOMMU and ACS, then the driver's known issues",
        ),
    ),
    (
        lambda it: (
            it.meanwhile("confidential computing")
            and it.why(
                Reason.OTHER_PATH, Reason.PATH_NOT_PROVEN, Reason.BELOW_FLOOR, Reason.BELOW_EXPECTED
            )
        ),
        Cause(
            "confidential computing is on, and its traffic is encrypted and staged",
            "`nvidia-smi conf-compute -f` tells; turn it off, or use a profile made for it",
        ),
    ),
    (
        lambda it: it.why(Reason.OTHER_PATH) and it.off_nvlink and it.access_on,
        Cause(
            "the driver does not use NVLink although peer access is enabled",
            "check the fabric state in `nvidia-smi -q`, nvidia-fabricmanager's log, and"
            " confidential computing",
        ),
    ),
    (
        lambda it: it.why(Reason.PATH_NOT_PROVEN),
        Cause(
            "a witness of the path could not be read or contradicts another, or others moved bytes"
            " meanwhile",
            "stop other GPU jobs; NVML must read the NVLink counters (`nvidia-smi nvlink -gt d`)",
        ),
    ),
    (
        lambda it: it.why(Reason.BELOW_FLOOR, Reason.BELOW_EXPECTED) and it.of_many_flows,
        Cause(
            "flows at once share a switch, an uplink or a host bridge that does not carry them",
            "compare with each pair alone; `nvidia-smi topo -m` and `lspci -tv` show what they"
            " share; check ACS and the uplinks' LnkSta",
        ),
    ),
    (
        lambda it: it.why(Reason.BELOW_FLOOR) and it.of_small_copy,
        Cause(
            "copies start as late as staged ones",
            "compare with small_copy_latency.no-access of the pair: if they are alike, the driver"
            " stages; check IOMMU, ACS, and the CPU's clock and power state",
        ),
    ),
    (
        lambda it: it.why(Reason.BELOW_EXPECTED) and it.of_host_link,
        Cause(
            "host memory is on another NUMA node than the GPU, or is busy",
            "`nvidia-smi topo -m` and `numactl -H`; compare with the far-node cell and with the"
            " other GPUs",
        ),
    ),
    (
        lambda it: it.why(Reason.BELOW_FLOOR) and it.of_host_link,
        Cause(
            "the path to host memory is slow",
            "check `machine.pcie` of this GPU, which NUMA node it hangs on, and the memory's load",
        ),
    ),
    (
        lambda it: it.why(Reason.OUTLIER),
        Cause(
            "a pair or a GPU is slower than its sisters, that should be equal",
            "one row or column of the matrix points at a GPU, one cell at links between two;"
            " `nvidia-smi nvlink -s` and `-e`, `lspci -vv` (LnkSta) of that GPU and above it",
        ),
    ),
    (
        lambda it: it.why(Reason.BELOW_FLOOR, Reason.BELOW_EXPECTED),
        Cause(
            "the path is right but slow",
            "compare with its sisters in the matrix: one row or column points at a GPU, one cell at"
            " links; `nvidia-smi nvlink -e`",
        ),
    ),
    (
        lambda it: it.why(Reason.UNHEALTHY) and it.meanwhile("throttled"),
        Cause(
            "the GPU throttles: it is hot, or short of power",
            "`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`; check fans, airflow, power caps",
        ),
    ),
    (
        lambda it: it.why(Reason.UNHEALTHY) and it.meanwhile("other processes"),
        Cause("other processes use the GPU", "`nvidia-smi` lists them; stop them, and run again"),
    ),
    (
        lambda it: it.why(Reason.UNHEALTHY, Reason.STRADDLES_FLOOR),
        Cause("the machine was not quiet", "let it cool, stop other jobs, and run again"),
    ),
    (
        lambda it: it.why(Reason.ERRORS_ROSE) and it.meanwhile("remapped rows"),
        Cause(
            "the GPU's memory is failing",
            "`nvidia-smi -q -d ECC,ROW_REMAPPER`; drain the node, reset the GPU, run again",
        ),
    ),
    (
        lambda it: it.why(Reason.ERRORS_ROSE),
        Cause(
            "a link is failing: it counts errors and starts again",
            "`nvidia-smi nvlink -e`, and `lspci -vv` (AER) of the GPU; reseat the board, bridge or"
            " riser before the link goes down",
        ),
    ),
    (
        lambda it: it.why(Reason.NO_BASE),
        Cause(
            "what its limit rests on could not be measured, or brought wrong data",
            "see the cells of that check in this record: their cause comes first",
        ),
    ),
    (
        lambda it: it.why(Reason.DOUBTFUL),
        Cause(
            "loads from this memory are far slower than usual, or the copies beside them staged",
            "see the cells of the same pair that copy, and that load with nothing beside",
        ),
    ),
    (
        lambda it: it.why(Reason.CRASHED_ONCE),
        Cause(
            "the measuring process crashed once, and not again",
            "look for segfault lines in `dmesg -T`; if it comes again, compare the versions of"
            " libcuda and of the kernel module (/proc/driver/nvidia/version)",
        ),
    ),
    (
        lambda it: it.why(Reason.NO_LIMIT),
        Cause("the profile does not speak of this", "add a limit for this check and size"),
    ),
    (
        lambda it: it.failed_by(FailureKind.DRIVER_ERROR),
        Cause("the driver failed", "look for Xid in `dmesg -T`; reset the GPU, run again"),
    ),
)


def known_causes() -> tuple[Cause, ...]:
    """Every cause of the table, in its order."""
    return tuple(cause for _, cause in _TABLE)


def diagnose(
    measurement: Measurement, expectation: Expectation, verdict: Verdict
) -> tuple[Cause, ...]:
    """The likely causes of a red or degraded verdict, most likely first; () where none is known."""
    if not verdict.outcome.red and verdict.outcome is not Outcome.DEGRADED:
        return ()
    finding = _Finding(measurement, expectation, verdict)
    return tuple(cause for fits, cause in _TABLE if fits(finding))
