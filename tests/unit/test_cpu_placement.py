from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuxfer.hardware.cpu_placement import SystemPlacement
from pytest_gpuxfer.model.unknown import Unknown


@pytest.fixture(autouse=True)
def affinity() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def _tree(root: Path, **lists: str) -> Path:
    nodes = root / "sys/devices/system/node"
    for node, cpus in lists.items():
        (nodes / node).mkdir(parents=True)
        (nodes / node / "cpulist").write_text(f"{cpus}\n")
    (nodes / "has_cpu").write_text("0-1\n")  # what else lies there
    return root


def _mine() -> int:
    return min(os.sched_getaffinity(0))


def test_nodes_are_those_with_cpus_of_ours(tmp_path: Path) -> None:
    mine = _mine()
    tree = _tree(
        tmp_path, node0="9998-9999", node2=f"5000,{mine}-{mine}", node10=f"{mine}", node3=""
    )
    assert SystemPlacement(tree).nodes() == (2, 10)


def test_without_numa_in_sysfs_the_nodes_are_unknown(tmp_path: Path) -> None:
    nodes = SystemPlacement(tmp_path).nodes()
    assert isinstance(nodes, Unknown)
    assert "No such file" in nodes.reason


def test_a_thread_runs_on_the_node_and_comes_back(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("this process has one CPU")
    first, second, *_ = sorted(before)
    placement = SystemPlacement(_tree(tmp_path, node0=f"{first}", node1=f"{second},9999"))
    with placement.on(0):
        assert os.sched_getaffinity(0) == {first}
        with placement.on(1):
            assert os.sched_getaffinity(0) == {second}
        assert os.sched_getaffinity(0) == {first}
    with pytest.raises(KeyError), placement.on(1):
        raise KeyError
    assert os.sched_getaffinity(0) == before


def test_a_node_without_cpus_of_ours_is_refused(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    placement = SystemPlacement(_tree(tmp_path, node0="9999"))
    for node in (0, 7):
        with pytest.raises(ValueError, match=f"no CPU of NUMA node {node}"), placement.on(node):
            pytest.fail("it ran there")
    assert os.sched_getaffinity(0) == before
