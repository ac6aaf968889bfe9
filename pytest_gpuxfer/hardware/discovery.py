"""Joins what CUDA, NVML and the kernel say of one machine into one value; makes no context."""

from __future__ import annotations

from itertools import combinations, permutations

from pytest_gpuxfer.hardware import Hardware
from pytest_gpuxfer.hardware.driver import DeviceInfo, DriverError
from pytest_gpuxfer.hardware.telemetry import GpuIdentity, Telemetry
from pytest_gpuxfer.model.machine import Gpu, Machine, PcieLink
from pytest_gpuxfer.model.unknown import Unknown


def discover(hardware: Hardware) -> Machine:
    """The machine as it shows itself now. Raises DriverError where CUDA lists no devices."""
    driver, telemetry = hardware.driver, hardware.telemetry
    devices = sorted(driver.devices(), key=lambda device: device.pci_address)
    listed = telemetry.gpus()
    gpus = tuple(
        _describe(telemetry, index, device, _nvml_uuid(device, listed))
        for index, device in enumerate(devices)
    )
    cuda = driver.version().cuda
    return Machine(
        host=hardware.host,
        gpus=gpus,
        driver_version=telemetry.driver_version(),
        cuda_version=f"{cuda[0]}.{cuda[1]}",
        numa_nodes=hardware.placement.nodes(),
        simulated=hardware.simulated,
        faults=hardware.faults,
        ancestors={
            f"{a.label}-{b.label}": telemetry.common_ancestor(a.uuid, b.uuid)
            for a, b in combinations(gpus, 2)
        },
        peer_access_offered={
            f"{a.label}-{b.label}": _offered(hardware, a, b) for a, b in permutations(gpus, 2)
        },
    )


def _nvml_uuid(device: DeviceInfo, listed: object) -> str | None:
    """The UUID under which NVML knows the device: the same, or that of the same PCI address."""
    if not isinstance(listed, (list, tuple)):
        return None
    identities = [found for found in listed if isinstance(found, GpuIdentity)]
    for found in identities:
        if found.uuid == device.uuid:
            return found.uuid
    for found in identities:
        if found.pci_address == device.pci_address:
            return found.uuid
    return None


def _describe(telemetry: Telemetry, index: int, device: DeviceInfo, uuid: str | None) -> Gpu:
    if uuid is None:
        unseen = Unknown("NVML does not list this GPU")
        return Gpu(
            index, device.ordinal, device.uuid, device.pci_address, device.name,
            device.memory_bytes, unseen, PcieLink(unseen, unseen, unseen, unseen),
            unseen, unseen, unseen, unseen,
        )  # fmt: skip
    return Gpu(
        index=index,
        ordinal=device.ordinal,
        uuid=uuid,
        pci_address=device.pci_address,
        name=device.name,
        memory_bytes=device.memory_bytes,
        nvlinks=telemetry.nvlinks(uuid),
        pcie=telemetry.pcie_link(uuid),
        mig_enabled=telemetry.mig_enabled(uuid),
        ecc_enabled=telemetry.ecc_enabled(uuid),
        fabric=telemetry.fabric_state(uuid),
        numa_node=telemetry.numa_node(uuid),
    )


def _offered(hardware: Hardware, gpu: Gpu, peer: Gpu) -> bool | Unknown:
    try:
        return hardware.driver.can_access_peer(gpu.ordinal, peer.ordinal)
    except DriverError as error:
        return Unknown(str(error))
