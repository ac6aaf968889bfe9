"""What the host's kernel tells by /proc and /sys: facts for the record, none of them gates."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from pytest_gpuxfer.model.machine import HostFacts
from pytest_gpuxfer.model.unknown import Unknown

_IOMMU_OPTIONS: Final = re.compile(r"(?:\w+_)?iommu(?:\.\w+)?=\S+")
# Words of the board's vendor and product by which hypervisors give themselves away.
_HYPERVISORS: Final = {
    "qemu": "kvm", "kvm": "kvm", "amazon ec2": "nitro", "google": "gce", "vmware": "vmware",
    "virtual machine": "hyper-v", "xen": "xen", "virtualbox": "virtualbox",
}  # fmt: skip
_CONTAINER_FILES: Final = {".dockerenv": "docker", "run/.containerenv": "podman"}
_CONTAINER_GROUPS: Final = re.compile(r"kubepods|docker|libpod|lxc|containerd", re.IGNORECASE)


def read_host(root: Path = Path("/")) -> HostFacts:
    """The facts under `root`, the root of the file system."""
    hostname = _read(root / "proc/sys/kernel/hostname")
    return HostFacts(
        hostname=os.uname().nodename if isinstance(hostname, Unknown) else hostname,
        kernel=_read(root / "proc/sys/kernel/osrelease"),
        iommu=_iommu(root),
        virtualisation=_virtualisation(root),
        container=_container(root),
        cpus_allowed=_field(root / "proc/self/status", "Cpus_allowed_list"),
    )


def _read(path: Path) -> str | Unknown:
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        return Unknown(f"{path}: {error.strerror}")


def _field(path: Path, name: str) -> str | Unknown:
    """The value of the first "name: value" line."""
    text = _read(path)
    if isinstance(text, Unknown):
        return text
    match = re.search(rf"^{name}\s*:[ \t]*(.*)$", text, re.MULTILINE)
    return match[1] if match else Unknown(f"{path} has no {name}")


def _iommu(root: Path) -> str | Unknown:
    """On or off, with what the kernel was started with: an IOMMU makes P2P slow, or wrong."""
    try:
        state = "on" if any((root / "sys/kernel/iommu_groups").iterdir()) else "off"
    except OSError as error:
        return Unknown(f"{error.filename}: {error.strerror}")
    line = _read(root / "proc/cmdline")
    options = [] if isinstance(line, Unknown) else _IOMMU_OPTIONS.findall(line)
    return f"{state} ({' '.join(options)})" if options else state


def _virtualisation(root: Path) -> str | Unknown:
    flags = _field(root / "proc/cpuinfo", "flags")
    if not isinstance(flags, Unknown) and "hypervisor" not in flags.split():
        return "none"
    texts = [_read(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    words = " ".join(text for text in texts if not isinstance(text, Unknown)).lower()
    found = next((name for word, name in _HYPERVISORS.items() if word in words), None)
    if found is None and isinstance(flags, Unknown):
        return flags  # not x86: the processor has no such flag, and the board names none
    return found or "a hypervisor that does not name itself"


def _container(root: Path) -> str | Unknown:
    for name, kind in _CONTAINER_FILES.items():
        if (root / name).exists():
            return kind
    groups = _read(root / "proc/1/cgroup")
    if isinstance(groups, Unknown):
        return groups
    if groups == "0::/":  # the root of a cgroup namespace, or of a host without systemd
        return Unknown("the cgroup of process 1 does not tell")
    match = _CONTAINER_GROUPS.search(groups)
    return match[0].lower() if match else "none"
