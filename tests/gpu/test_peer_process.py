from __future__ import annotations

import pytest

from pytest_gpuxfer.hardware.driver import (
    Comparison,
    Context,
    DeviceKind,
    Driver,
    Feature,
    Fill,
    Stream,
)
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, Pattern
from tests.gpu.conftest import Wait

SIZE_BYTES = 3 * PERIOD_WORDS * 8 // 16 * 16 + 4096


@pytest.mark.parametrize("hide_others", [False, True], ids=["same view", "other view"])
@pytest.mark.parametrize("kind", [DeviceKind.MALLOC, DeviceKind.VMM])
@pytest.mark.parametrize("ordinal", [0, 1])
def test_memory_of_another_process_is_read_and_written(
    driver: Driver, context: Context, stream: Stream, wait: Wait,
    ordinal: int, kind: DeviceKind, hide_others: bool,
) -> None:  # fmt: skip
    if ordinal >= len(driver.devices()):
        pytest.skip("there is one GPU")
    if kind is DeviceKind.VMM and not driver.supports(ordinal, Feature.FILE_DESCRIPTORS):
        pytest.skip(f"device {ordinal} has no {Feature.FILE_DESCRIPTORS}")
    local = driver.allocate_device(context, SIZE_BYTES)
    peer = driver.start_peer(ordinal, hide_others=hide_others)
    shared = peer.share(SIZE_BYTES, kind)
    remote = driver.import_memory(context, shared)
    assert (remote.size_bytes, remote.ordinal) == (SIZE_BYTES, ordinal)

    peer.fill(Pattern(1), SIZE_BYTES)
    driver.copy(local, remote, stream)
    wait()
    assert driver.compare(local, Pattern(1)) == Comparison(0)

    driver.launch(Fill(local, Pattern(2)), stream)
    driver.copy(remote, local, stream)
    wait()
    assert peer.compare(Pattern(2), SIZE_BYTES) == Comparison(0)
    assert peer.compare(Pattern(1), SIZE_BYTES).wrong_words == SIZE_BYTES // 8

    driver.release_import(context, remote)
    peer.close()
    driver.free_device(context, local)
