"""The block whose traffic is told, over whatever reads the counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from pytest_gpuxfer.audit.sampler import Sampler
from pytest_gpuxfer.audit.traffic import GpuTraffic, Traffic
from pytest_gpuxfer.model.unknown import Unknown


class Counters(Protocol):
    """Counts what every GPU of the machine moves, from its making on."""

    def report(self) -> tuple[GpuTraffic, ...]:
        """What each moved so far; what is not known is UncertainBytes with the reason."""
        ...

    def close(self) -> None: ...


@contextmanager
def path_audit(
    open_counters: Callable[[], Counters] = Sampler, uuids: Sequence[str] | None = None
) -> Iterator[Traffic]:
    """Tell how many bytes each GPU moved while the block ran, over NVLink and over PCIe.

    Counted is what ends before the block does: synchronise inside it. `uuids` numbers the GPUs,
    gpu0 first; unless given they are all that NVML lists, in PCI order. Raises SamplerError where
    there is nothing to read.
    """
    counters = open_counters()
    traffic = Traffic()
    try:
        yield traffic
    finally:
        try:
            _complete(traffic, counters.report(), uuids)
        finally:
            counters.close()


def _complete(traffic: Traffic, moved: tuple[GpuTraffic, ...], uuids: Sequence[str] | None) -> None:
    if uuids is None:
        traffic.complete(moved)
        return
    by_uuid = {gpu.uuid: gpu for gpu in moved}
    unlisted = Unknown("NVML does not list this GPU")
    numbered = [by_uuid.get(uuid) or GpuTraffic.unknown(uuid, "", "", unlisted) for uuid in uuids]
    traffic.complete(numbered, [gpu for gpu in moved if gpu.uuid not in uuids])
