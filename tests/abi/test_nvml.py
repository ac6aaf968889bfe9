from __future__ import annotations

from pathlib import Path

import pytest

from tests.abi.conftest import Run

ALL = 0xFFFFFFFF
OPEN = """
from pytest_gpuxfer.hardware.nvml import open_telemetry
telemetry = open_telemetry()
"""
# type 1 is a 32-bit number, type 3 one of 64 bits
COUNT = "91:0:0:1:{links} "


def _say(call: str) -> str:
    return f"{OPEN}print(telemetry.{call})"


def test_a_missing_library_is_the_reason_for_every_unknown(without_libraries: Run) -> None:
    output = without_libraries(_say("gpus()") + "\nprint(telemetry.status('GPU-1'))")
    if "GPU-" in output:
        pytest.skip("this machine has a driver")
    assert "NVML does not start: NVML Shared Library Not Found" in output
    assert output.count("Shared Library Not Found") == 8


def test_a_missing_package_is_the_reason_for_every_unknown(without_libraries: Run) -> None:
    output = without_libraries("import sys; sys.modules['pynvml'] = None" + _say("nvlinks('')"))
    assert output == "unknown (nvidia-ml-py is not installed: pip install nvidia-ml-py)"


def test_an_nvml_that_does_not_start(under_nvml: Run) -> None:
    output = under_nvml(_say("driver_version()"), STUB_INIT="9")
    assert output == "unknown (NVML does not start: Driver Not Loaded)"


def test_a_gpu_is_listed_as_cuda_names_it(under_nvml: Run) -> None:
    output = under_nvml(_say("gpus()[0]") + "\nprint(telemetry.driver_version())")
    assert output.splitlines() == [
        "GpuIdentity(uuid='GPU-1', pci_address='0000:1b:00.0', name='Stub')",
        "580.1",
    ]


def test_another_uuid_is_not_found(under_nvml: Run) -> None:
    assert under_nvml(_say("nvlinks('GPU-2')")) == "unknown (NVML: Not Found)"


@pytest.mark.parametrize(
    "call",
    [
        "nvlink_bytes('GPU-1')",
        "pcie_bytes('GPU-1')",
        "common_ancestor('GPU-1', 'GPU-1')",
        "mig_enabled('GPU-1')",
        "ecc_enabled('GPU-1')",
        "numa_node('GPU-1')",
        "pcie_link('GPU-1').generation",
        "pcie_link('GPU-1').width",
        "status('GPU-1').throttle_reasons",
        "status('GPU-1').nvlink_errors",
        "status('GPU-1').pcie_replays",
        "status('GPU-1').remapped_rows",
        "status('GPU-1').confidential",
        "status('GPU-1').xids",
    ],
)
def test_what_is_not_supported_is_unknown(under_nvml: Run, call: str) -> None:
    assert under_nvml(_say(call)) == "unknown (NVML: Not Supported)"


def test_a_call_that_this_nvml_lacks_is_unknown(under_nvml: Run) -> None:
    assert under_nvml(_say("fabric_state('GPU-1')")) == "unknown (NVML: Function Not Found)"


def test_a_gpu_without_nvlink_is_known_to_have_none(under_nvml: Run) -> None:
    assert under_nvml(_say("nvlinks('GPU-1')")) == "()"


def test_a_count_that_is_refused_is_not_no_links(under_nvml: Run) -> None:
    """Where links answer though their count does not, their number is unknown."""
    output = under_nvml(_say("nvlinks('GPU-1')"), STUB_LINKS="11")
    assert output == "unknown (NVML: Not Supported)"
    output = under_nvml(_say("nvlinks('GPU-1')"), STUB_FIELDS="91:0:15:1:0")
    assert output == "unknown (NVML: GPU is lost)"


def test_links_of_a_gpu_behind_switches(under_nvml: Run) -> None:
    """Their number is field 91's, not pynvml.NVML_NVLINK_MAX_LINKS; a link that is down is one."""
    script = OPEN + (
        "for p in telemetry.nvlinks('GPU-1'):\n"
        "    print(p.link, p.active, p.rate_bytes_per_s, p.generation, p.remote, sep='|')"
    )
    fields = COUNT.format(links=3) + " ".join(f"164:{link}:0:1:26562" for link in range(3))
    output = under_nvml(script, STUB_FIELDS=fields, STUB_LINKS="101", STUB_REMOTE="2")
    down = "unknown (the link is down)"
    assert output.splitlines() == [
        "0|True|26562000000.0|4|switch",
        f"1|False|{down}|{down}|{down}",
        "2|True|26562000000.0|4|switch",
    ]


def test_a_link_to_another_gpu_with_an_older_drivers_fields(under_nvml: Run) -> None:
    """The state comes from field 165 where the call does not tell, the rate from field 90."""
    script = OPEN + "p, = telemetry.nvlinks('GPU-1')\nprint(p.active, p.rate_bytes_per_s, p.remote)"
    fields = COUNT.format(links=1) + "165:0:0:1:1 90:0:0:1:25781"
    output = under_nvml(script, STUB_FIELDS=fields, STUB_REMOTE="0")
    assert output == "True 25781000000.0 0000:9c:00.0"


def test_a_state_that_cannot_be_read_is_neither_up_nor_down(under_nvml: Run) -> None:
    script = OPEN + "for p in telemetry.nvlinks('GPU-1'): print(p.active)"
    output = under_nvml(script, STUB_FIELDS=COUNT.format(links=2) + "165:0:0:1:1 165:1:999:1:0")
    assert output.splitlines() == ["True", "unknown (NVML: Unknown Error)"]


@pytest.mark.parametrize(
    ("fields", "sent", "received"),
    [
        # KiB over all links; more than 32 bits
        (f"138:{ALL}:0:3:{2**33} 139:{ALL}:0:3:7", 2**43, 7 * 1024),
        # KiB link by link
        (COUNT.format(links=2) + "138:0:0:3:1 138:1:0:3:2 139:0:0:3:4 139:1:0:3:8", 3072, 12288),
        # Blackwell: bytes
        (f"202:{ALL}:0:3:5 204:{ALL}:0:3:6", 5, 6),
    ],
)
def test_bytes_over_all_links(under_nvml: Run, fields: str, sent: int, received: int) -> None:
    output = under_nvml(_say("nvlink_bytes('GPU-1')"), STUB_FIELDS=fields)
    assert output == f"NvlinkBytes(sent_bytes={sent}, received_bytes={received})"


@pytest.mark.parametrize(
    "fields",
    [
        f"138:{ALL}:0:3:5",  # received is not supported
        COUNT.format(links=2) + "138:0:0:3:1 138:1:999:3:0 139:0:0:3:4 139:1:0:3:8",
    ],
)
def test_one_counter_that_fails_makes_no_sum(under_nvml: Run, fields: str) -> None:
    output = under_nvml(_say("nvlink_bytes('GPU-1')"), STUB_FIELDS=fields)
    assert output.startswith("unknown (")


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        ("0x1", "()"),  # idle spoils nothing
        ("0x49", "('hardware slowdown', 'hardware thermal slowdown')"),
        ("0xa0", "('software thermal slowdown', 'power brake slowdown')"),
    ],
)
def test_reasons_that_spoil_a_measurement(under_nvml: Run, bits: str, words: str) -> None:
    assert under_nvml(_say("status('GPU-1').throttle_reasons"), STUB_REASONS=bits) == words


@pytest.mark.parametrize(
    ("pids", "answer"),
    [
        ("", "unknown (NVML does not list this process, so it may not list others)"),
        ("0", "0"),
        ("0 4000001 4000002", "2"),
        ("4000001", "unknown (NVML does not list this process, so it may not list others)"),
    ],
)
def test_processes_of_others(under_nvml: Run, pids: str, answer: str) -> None:
    assert under_nvml(_say("status('GPU-1').other_processes"), STUB_PIDS=pids) == answer


def test_pcie_bytes_are_both_counters_or_unknown(under_nvml: Run) -> None:
    fields = "197:0:0:1:4294967295 198:0:0:1:7"
    output = under_nvml(_say("pcie_bytes('GPU-1')"), STUB_FIELDS=fields)
    assert output == "PcieBytes(sent_bytes=4294967295, received_bytes=7)"
    one = under_nvml(_say("pcie_bytes('GPU-1')"), STUB_FIELDS="197:0:0:1:5")
    assert one == "unknown (NVML: Not Supported)"


@pytest.mark.parametrize(
    "fields",
    [
        f"161:{ALL}:0:3:4 162:{ALL}:0:3:1 163:{ALL}:0:3:2",
        COUNT.format(links=2) + "161:0:0:1:3 161:1:0:1:1 162:0:0:1:1 162:1:0:1:0 163:0:0:1:1 "
        "163:1:0:1:1",
        f"208:{ALL}:0:3:5 215:{ALL}:0:3:2",  # Blackwell; it lacks some of its family's
        f"38:{ALL}:0:3:4 52:{ALL}:0:3:1 59:{ALL}:0:3:2",  # before Hopper
    ],
)
def test_errors_of_all_links_are_added_up(under_nvml: Run, fields: str) -> None:
    assert under_nvml(_say("status('GPU-1').nvlink_errors"), STUB_FIELDS=fields) == "7"


def test_replays_remapped_rows_and_confidential_computing(under_nvml: Run) -> None:
    script = (
        OPEN
        + "s = telemetry.status('GPU-1')\n"
        + ("print(s.pcie_replays, s.remapped_rows, s.confidential)")
    )
    environment = {"STUB_FIELDS": "94:0:0:1:12", "STUB_ROWS": "1 2"}
    assert under_nvml(script, **environment, STUB_CC="1") == "12 3 True"
    assert under_nvml(script, **environment, STUB_CC="0") == "12 3 False"


def test_xids_are_those_since_the_start_each_once(under_nvml: Run, tmp_path: Path) -> None:
    happened = tmp_path / "xids"
    happened.touch()
    script = (
        "from pathlib import Path\n"
        f"happened = Path({str(happened)!r})\n"
        f"{OPEN}"
        "for codes in ('', '31 79 ', '31 79 74 '):\n"
        "    happened.write_text(codes)\n"
        "    print(telemetry.status('GPU-1').xids)\n"
        "print(telemetry.status('GPU-2').xids)"
    )
    output = under_nvml(script, STUB_XIDS=str(happened))
    assert output.splitlines() == [
        "()",
        "(31, 79)",
        "(31, 79, 74)",
        "unknown (NVML lists no such GPU)",
    ]
