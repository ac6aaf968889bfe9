from __future__ import annotations

import ctypes

import pytest

from tests.abi.conftest import Run

OPEN = """
from pytest_gpuxfer.hardware import HardwareError
from pytest_gpuxfer.hardware.cuda import open_driver
from pytest_gpuxfer.hardware.driver import DriverError
try:
    driver = open_driver()
except HardwareError as error:
    print(error.message, error.remedy, error.not_ready, sep="|")
    raise SystemExit
"""
RETAIN = OPEN + "a, b = driver.retain_context(0), driver.retain_context(1)\n"


def _open_fails(output: str) -> tuple[str, str, bool]:
    assert "\n" not in output, "a person gets one line"
    message, remedy, not_ready = output.split("|")
    return message, remedy, not_ready == "True"


def test_no_driver_library(without_libraries: Run) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has a driver")
    message, remedy, not_ready = _open_fails(without_libraries(OPEN))
    assert message.startswith("no NVIDIA driver here: libcuda.so.1")
    assert "install the driver" in remedy
    assert not not_ready


def test_no_bindings(without_libraries: Run) -> None:
    hidden = "import sys; sys.modules['cuda'] = None\n"
    message, remedy, _ = _open_fails(without_libraries(hidden + OPEN))
    assert message == "cuda-bindings is not installed"
    assert "pip install 'pytest-gpuxfer[cu13]'" in remedy
    assert "[cu12]" in remedy


@pytest.mark.parametrize(
    ("code", "words", "advice", "is_not_ready"),
    [
        (34, "stub", "lib64/stubs", False),
        (802, "CUDA_ERROR_SYSTEM_NOT_READY (802)", "nvidia-fabricmanager", True),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "reboot", False),
        (999, "CUDA_ERROR_UNKNOWN (999)", "dmesg", False),
        (9999, "9999", "newer cuda-bindings", False),
    ],
)
def test_what_cuinit_refuses(
    under_cuda: Run, code: int, words: str, advice: str, is_not_ready: bool
) -> None:
    message, remedy, not_ready = _open_fails(under_cuda(OPEN, cuInit=str(code)))
    assert words in message
    assert advice in remedy
    assert not_ready is is_not_ready


def test_a_driver_older_than_the_bindings(under_cuda: Run) -> None:
    message, remedy, _ = _open_fails(under_cuda(OPEN, STUB_VERSION="11080"))
    assert message.startswith("the driver is of CUDA 11.8, cuda-bindings ")
    assert "update the driver to 5" in remedy


def test_bindings_13_on_a_driver_of_cuda_12(under_cuda: Run) -> None:
    from cuda.bindings import __version__  # type: ignore[import-untyped]

    if int(__version__.split(".")[0]) < 13:
        pytest.skip(f"cuda-bindings {__version__} takes drivers of CUDA 12")
    message, remedy, _ = _open_fails(under_cuda(OPEN, STUB_VERSION="12020"))
    assert "CUDA 12.2" in message
    assert "CUDA 13.0 or later" in message
    assert "pytest-gpuxfer[cu12]" in remedy


def test_a_driver_that_lacks_what_the_bindings_call(under_cuda: Run) -> None:
    message, remedy, _ = _open_fails(under_cuda(OPEN, STUB_LACKS="cuDriverGetVersion"))
    assert "cuDriverGetVersion" in message
    assert "update the driver" in remedy


def test_no_device_is_an_empty_list(under_cuda: Run) -> None:
    script = OPEN + "print(driver.version().cuda, list(driver.devices()))"
    assert under_cuda(script, cuInit="100") == "(13, 0) []"


def test_devices_are_named_as_nvml_names_them(under_cuda: Run) -> None:
    script = OPEN + (
        "for d in driver.devices(): print(d.ordinal, d.uuid, d.pci_address, d.name, d.memory_bytes)"
    )
    assert under_cuda(script).splitlines() == [
        f"0 GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff 0000:1b:00.0 NVIDIA Stub {2**34}",
        f"1 GPU-eff0f1f2-f3f4-f5f6-f7f8-f9fafbfcfdfe 0000:1c:00.0 NVIDIA Stub {2**34}",
    ]


def test_peer_access_is_asked_in_the_order_given(under_cuda: Run) -> None:
    script = OPEN + "print(driver.can_access_peer(0, 1), driver.can_access_peer(1, 0))"
    assert under_cuda(script) == "True False"


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (0, "ENABLED"),
        (704, "ALREADY_ENABLED"),
        (217, "UNSUPPORTED"),
        (711, "TOO_MANY_PEERS"),
        (201, "WRONG_CONTEXT"),
        (709, "WRONG_CONTEXT"),
    ],
)
def test_answers_to_enabling_peer_access(under_cuda: Run, code: int, answer: str) -> None:
    """And whatever it answers, no context of ours stays current."""
    script = RETAIN + (
        "from cuda.bindings import driver as cuda\n"
        "print(driver.enable_peer_access(a, b).name, int(cuda.cuCtxGetCurrent()[1]))"
    )
    assert under_cuda(script, cuCtxEnablePeerAccess=str(code)) == f"{answer} 0"


FAILING = """
try:
    {call}
except DriverError as error:
    print(error.call, error.code, error.name, error, sep="|")
"""


def test_any_other_answer_is_an_error_in_the_drivers_words(under_cuda: Run) -> None:
    script = RETAIN + FAILING.format(call="driver.enable_peer_access(a, b)")
    call, code, name, words = under_cuda(script, cuCtxEnablePeerAccess="205").split("|")
    assert (call, code, name) == ("cuCtxEnablePeerAccess", "205", "CUDA_ERROR_MAP_FAILED")
    assert words == (
        "cuCtxEnablePeerAccess failed: CUDA_ERROR_MAP_FAILED (205) (words of the driver)"
    )


def test_a_call_that_the_driver_lacks_is_an_error_of_that_call(under_cuda: Run) -> None:
    script = RETAIN + FAILING.format(call="driver.free_memory_bytes(a)")
    output = under_cuda(script, STUB_LACKS="cuMemGetInfo")
    assert output.startswith("cuMemGetInfo|500|CUDA_ERROR_NOT_FOUND|")


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("0", "True"),
        ("600", "False"),
        ("700", "cuStreamQuery|700|CUDA_ERROR_ILLEGAL_ADDRESS|"),
        ("9999", "cuStreamQuery|999|CUDA_ERROR_UNKNOWN|"),
    ],
)
def test_whether_a_stream_is_idle(under_cuda: Run, code: str, output: str) -> None:
    call = "print(driver.stream_idle(driver.create_stream(a)))"
    assert under_cuda(RETAIN + FAILING.format(call=call), cuStreamQuery=code).startswith(output)


def test_a_context_is_released_by_its_last_user(under_cuda: Run) -> None:
    script = RETAIN + (
        "again = driver.retain_context(0)\n"
        "print(again is a)\n"
        "driver.release_context(a)\n"
        "print(driver.retain_context(0) is a)\n"
        "driver.release_context(a); driver.release_context(a)\n"
        "print(driver.retain_context(0) is a)\n"
    )
    assert under_cuda(script).split() == ["True", "True", "False"]
