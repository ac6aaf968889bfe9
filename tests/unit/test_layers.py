"""The arrows between the layers run one way; heavy and private imports stay in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pytest_gpuxfer"

# What each part may import of ours, beside itself; a file in the package's top level is a part.
ALLOWED = {
    "__init__": set(),
    "model": set(),
    "profiles": {"model"},
    "hardware": {"model"},
    "transfer": {"model", "hardware"},
    "audit": {"model", "hardware"},
    "report": {"model", "__init__"},
    "plan": {"model", "profiles", "transfer"},
    "predict": {"model", "report"},
    "settings": {"model"},
    "lock": set(),
    "run": {
        "__init__", "model", "profiles", "hardware", "transfer", "plan", "report", "settings",
    },
    "selftest": {"model", "hardware", "transfer", "plan", "report", "run"},
    "session": {"model", "report", "run", "settings", "lock"},
    "parameters": {"model", "profiles", "plan", "run", "session", "selftest"},
    "instruments": {
        "model", "hardware", "transfer", "plan", "report", "session", "parameters", "selftest",
    },
    "path_audit": {"model", "audit", "session", "instruments"},
    "cli": {"__init__", "model", "profiles", "hardware", "audit", "plan", "report", "predict"},
}  # fmt: skip
# Modules of others that only these files may import.
ONLY = {
    "cuda": {"hardware/cuda.py", "hardware/cuda_start.py"},
    "pynvml": {"hardware/nvml.py"},
    "yaml": {"profiles", "hardware/simulated"},
    "_pytest": {"plugin.py", "session.py"},
}
OF_PYTEST = {"settings", "session", "parameters", "instruments", "path_audit"}
WITHOUT_PYTEST = {*ALLOWED} - OF_PYTEST


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names)


def ours(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "pytest_gpuxfer":
        return None
    known = {path.stem for path in PACKAGE.glob("*.py")} | {d.name for d in PACKAGE.iterdir()}
    return parts[1] if len(parts) > 1 and parts[1] in known else "__init__"


FILES = sorted(PACKAGE.rglob("*.py"))


def test_there_is_something_to_hold() -> None:
    assert len(FILES) > 30
    assert {part_of(path) for path in FILES} >= set(ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_keep_to_the_layers(path: Path) -> None:
    part, relative = part_of(path), path.relative_to(PACKAGE).as_posix()
    for name in imports(path):
        imported = ours(name)
        if imported is not None and part in ALLOWED:
            assert imported in ALLOWED[part] | {part}, f"{relative} imports {name}"
        top = name.split(".")[0]
        if top in ONLY:
            allowed = ONLY[top]
            assert any(relative == a or relative.startswith(f"{a}/") for a in allowed), (
                f"{relative} imports {name}"
            )
        if part in WITHOUT_PYTEST:
            assert top != "pytest", f"{relative} imports pytest"
