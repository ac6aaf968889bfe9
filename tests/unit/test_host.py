from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_gpuxfer.hardware.host import read_host
from pytest_gpuxfer.model.unknown import Unknown

METAL = {
    "proc/sys/kernel/hostname": "node17\n",
    "proc/sys/kernel/osrelease": "6.8.0-60-generic\n",
    "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 intel_iommu=on iommu=pt quiet\n",
    "proc/cpuinfo": "processor : 0\nflags\t\t: fpu sse avx2\n\nprocessor : 1\n",
    "proc/self/status": "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-55\n",
    "proc/1/cgroup": "0::/init.scope\n",
    "sys/kernel/iommu_groups/0/type": "DMA\n",
}
VIRTUAL = {"proc/cpuinfo": "flags : fpu hypervisor\n"}


def write_tree(root: Path, *trees: dict[str, str]) -> Path:
    for tree in trees:
        for name, text in tree.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return root


def test_a_machine_without_hypervisor_or_container(tmp_path: Path) -> None:
    host = read_host(write_tree(tmp_path, METAL))
    assert host.hostname == "node17"
    assert host.kernel == "6.8.0-60-generic"
    assert host.iommu == "on (intel_iommu=on iommu=pt)"
    assert host.virtualisation == "none"
    assert host.container == "none"
    assert host.cpus_allowed == "0-55"


def test_no_iommu_group_means_that_it_is_off(tmp_path: Path) -> None:
    write_tree(tmp_path, {"proc/cmdline": "quiet\n"})
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    assert read_host(tmp_path).iommu == "off"


@pytest.mark.parametrize(
    ("vendor", "product", "name"),
    [
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "kvm"),
        ("Amazon EC2", "p5.48xlarge", "nitro"),
        ("Microsoft Corporation", "Virtual Machine", "hyper-v"),
        ("Acme", "Box", "a hypervisor that does not name itself"),
    ],
)
def test_a_hypervisor_by_the_boards_name(
    tmp_path: Path, vendor: str, product: str, name: str
) -> None:
    board = {"sys/class/dmi/id/sys_vendor": vendor, "sys/class/dmi/id/product_name": product}
    assert read_host(write_tree(tmp_path, METAL, VIRTUAL, board)).virtualisation == name


@pytest.mark.parametrize(
    ("tree", "name"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"proc/1/cgroup": "12:memory:/kubepods/burstable/pod1\n"}, "kubepods"),
    ],
)
def test_a_container_by_its_traces(tmp_path: Path, tree: dict[str, str], name: str) -> None:
    assert read_host(write_tree(tmp_path, METAL, tree)).container == name


def test_a_cgroup_namespace_does_not_tell(tmp_path: Path) -> None:
    host = read_host(write_tree(tmp_path, METAL, {"proc/1/cgroup": "0::/\n"}))
    assert isinstance(host.container, Unknown)


def test_what_cannot_be_read_is_unknown_with_its_path(tmp_path: Path) -> None:
    host = read_host(tmp_path)
    assert host.hostname == os.uname().nodename
    facts = {
        "osrelease": host.kernel,
        "iommu_groups": host.iommu,
        "cpuinfo": host.virtualisation,
        "cgroup": host.container,
        "status": host.cpus_allowed,
    }
    for path, fact in facts.items():
        assert isinstance(fact, Unknown)
        assert path in fact.reason
        assert "No such file" in fact.reason
