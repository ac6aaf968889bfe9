"""A machine as it was found, for `gpuxfer topo`."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuxfer.model.machine import Gpu, Machine
from pytest_gpuxfer.model.unknown import Unknown


def topology_lines(machine: Machine) -> Iterator[str]:
    """The host, a line a GPU, the class of each pair, and what is not known."""
    if machine.simulated is not None:
        faults = f", faults: {', '.join(machine.faults)}" if machine.faults else ""
        yield f"SIMULATED machine {machine.simulated}{faults}"
    versions = f"driver {machine.driver_version}, CUDA {machine.cuda_version}"
    yield f"host {machine.host.hostname}: {versions}, NUMA nodes {_nodes(machine)}"
    for gpu in machine.gpus:
        yield _describe(gpu)
    if len(machine.gpus) < 2:
        return
    yield ""
    yield f"{'':<6}" + "".join(f"{gpu.label:>8}" for gpu in machine.gpus)
    unread: dict[str, None] = {}
    for gpu in machine.gpus:
        row = ""
        for peer in machine.gpus:
            kind = "" if gpu is peer else machine.link_class(gpu.index, peer.index)
            if isinstance(kind, Unknown):
                unread[kind.reason] = None
                kind = "?"
            row += f"{kind:>8}"
        yield f"{gpu.label:<6}{row}".rstrip()
    for reason in unread:
        yield f"? unknown: {reason}"


def _nodes(machine: Machine) -> str:
    nodes = machine.numa_nodes
    return str(nodes) if isinstance(nodes, Unknown) else ", ".join(map(str, nodes)) or "none"


def _describe(gpu: Gpu) -> str:
    links = gpu.active_nvlinks()
    count = "?" if isinstance(gpu.nvlinks, Unknown) else str(len(gpu.nvlinks))
    nvlinks = f"NVLinks {links}" if isinstance(links, Unknown) else f"{links} of {count} NVLinks up"
    pcie = f"PCIe Gen{_best(gpu.pcie.max_generation, gpu.pcie.generation)}"
    pcie += f" x{_best(gpu.pcie.max_width, gpu.pcie.width)}"
    return (
        f"{gpu.label}  {gpu.pci_address}  {gpu.name}, {nvlinks}, {pcie}, NUMA node {gpu.numa_node},"
        f" {gpu.uuid}"
    )


def _best(most: int | Unknown, now: int | Unknown) -> str:
    known = next((value for value in (most, now) if not isinstance(value, Unknown)), "?")
    return str(known)
