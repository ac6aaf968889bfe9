from __future__ import annotations

import importlib.util
import re
from math import gcd
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuxfer.hardware import cuda_kernels
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, mix

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "pytest_gpuxfer" / "hardware" / "kernels.cu"
PTX = KERNELS.with_suffix(".ptx").read_text()


def test_the_ptx_is_what_the_source_compiles_to() -> None:
    pytest.importorskip("nvidia.cuda_nvrtc", reason="NVRTC is not installed: pip install .[test]")
    spec = importlib.util.spec_from_file_location("build_ptx", ROOT / "tools" / "build_ptx.py")
    assert spec is not None
    assert spec.loader is not None
    build_ptx = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build_ptx)
    assert build_ptx.compile_ptx(KERNELS.read_text()) == PTX, "run python tools/build_ptx.py"


def test_the_oldest_drivers_and_gpus_can_load_it() -> None:
    assert re.findall(r"^\.(version|target) (\S+)$", PTX, re.MULTILINE) == [
        ("version", "8.0"),  # driver 525
        ("target", "sm_70"),  # Volta
    ]


def test_it_has_every_kernel_that_is_launched() -> None:
    assert set(re.findall(r"^\.visible \.entry (\w+)\(", PTX, re.MULTILINE)) == set(
        cuda_kernels.KERNELS
    )


def test_the_source_computes_the_models_pattern() -> None:
    """`mix` of kernels.cu, read as Python: its steps are the same in both languages."""
    source = KERNELS.read_text()
    assert int(re.findall(r"#define PERIOD_WORDS (\d+)ull", source)[0]) == PERIOD_WORDS
    body = source.split("u64 mix(u64 index) {")[1].split("}")[0]
    steps = (
        re.sub(r"\b(0x[0-9A-F]+)ull", r"\1", body).replace("u64 ", "").replace("return", "word =")
    )
    for index in (0, 1, 77_777, PERIOD_WORDS - 1):
        names = {"index": index}
        for step in steps.split(";")[:-1]:
            name, expression = step.strip().split(" = ")
            names[name] = eval(expression, {}, names) & (2**64 - 1)
        assert names["word"] == mix(index)


@pytest.mark.parametrize("lines", [1, 2, 3, 4, 6, 30, 1024, 8191, 2**21, 2**21 - 5])
def test_a_chain_of_any_length_meets_every_line_once(lines: int) -> None:
    assert gcd(cuda_kernels.chain_step(lines), lines) == 1


def test_lines_that_follow_each_other_lie_far_apart() -> None:
    lines = 2**20
    step = cuda_kernels.chain_step(lines)
    for hops in range(1, 100):  # the distance round the ring, either way
        assert min(hops * step % lines, -hops * step % lines) > lines // 400


def test_a_threads_turn_is_as_long_in_both_languages() -> None:
    unroll = int(re.findall(r"#define UNROLL (\d+)", KERNELS.read_text())[0])
    assert unroll == cuda_kernels._COPY_LOADS


@given(loads=st.integers(0, 2**32), sharers=st.integers(1, 64), processors=st.integers(1, 256))
def test_the_shape_of_a_kernel_copy(loads: int, sharers: int, processors: int) -> None:
    blocks, threads = cuda_kernels.copy_shape(loads, sharers, processors)
    assert blocks >= 1
    assert threads in range(32, 1025, 32)
    if sharers > 1:
        assert blocks == 1 or sharers * blocks * threads <= processors * 1024
    else:
        assert blocks * threads * cuda_kernels._COPY_LOADS >= loads, "one turn each is all"
        wide = loads >= processors * cuda_kernels._COPY_LOADS * 1024
        assert threads == 1024 if wide else blocks <= processors


def test_a_small_kernel_copy_is_spread_over_the_gpu() -> None:
    assert cuda_kernels.copy_shape(2**18 // 16, 1, 132) == (64, 32)
