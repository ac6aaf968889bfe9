"""What a limit may speak of: the methods by name, and what each allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pytest_gpuxfer.model.cell import Check


class Where(Enum):
    """The places at which a method is measured."""

    PAIR = "pair"
    GPU = "GPU"
    EITHER = "pair or GPU"


class Over(Enum):
    """The declared link that bounds a method's rate."""

    PAIR_LINK = "the pair's own"
    HOST_LINK = "each GPU's PCIe"
    NOTHING = "none"


@dataclass(frozen=True, slots=True)
class Method:
    """One method: where it runs, over which link, and which parts its checks may have."""

    where: Where
    over: Over
    initiators: bool = False  # its checks say write or read
    controlled: bool = False  # measured without peer access too

    @property
    def between_gpus(self) -> bool:
        """Whether it needs a second GPU at every place."""
        return self.where is Where.PAIR or self.over is Over.PAIR_LINK


METHODS: Final[Mapping[str, Method]] = {
    "peer_copy": Method(Where.PAIR, Over.PAIR_LINK, initiators=True, controlled=True),
    "unified_copy": Method(Where.EITHER, Over.PAIR_LINK, initiators=True, controlled=True),
    "kernel_copy": Method(Where.EITHER, Over.PAIR_LINK, initiators=True),
    "ipc_copy": Method(Where.PAIR, Over.PAIR_LINK, initiators=True),
    "host_relay": Method(Where.PAIR, Over.HOST_LINK),
    "small_copy_latency": Method(Where.PAIR, Over.NOTHING, controlled=True),
    "load_latency": Method(Where.EITHER, Over.NOTHING),
    "zero_copy": Method(Where.EITHER, Over.HOST_LINK, initiators=True),
    "managed": Method(Where.EITHER, Over.HOST_LINK, initiators=True),
    "host_to_device": Method(Where.GPU, Over.HOST_LINK),
    "device_to_host": Method(Where.GPU, Over.HOST_LINK),
    "local_copy": Method(Where.GPU, Over.NOTHING),
}


def method_of(check: Check) -> Method:
    """The method of a check whose name was found known when it was read."""
    return METHODS[check.method]
