"""Which measuring processes there are."""

from __future__ import annotations

import time
from pathlib import Path

from pytest_gpuxfer.transfer.isolation import PROGRAM


def measuring_children(parent: int) -> list[int]:
    """The processes that measure for `parent`."""
    return [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and _is_child(folder, parent)
    ]


def _is_child(folder: Path, parent: int) -> bool:
    try:
        after_name = (folder / "stat").read_text().rpartition(")")[2].split()
        return int(after_name[1]) == parent and PROGRAM in (folder / "cmdline").read_text()
    except OSError:
        return False  # it has ended meanwhile


def gone(pid: int) -> bool:
    """Whether a process ends soon; one that nobody waited for has ended as well."""
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False
