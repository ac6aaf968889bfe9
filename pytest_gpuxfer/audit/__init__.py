"""How many bytes each GPU moved, and over which link, while any code ran; `watch` for programs."""

from pytest_gpuxfer.audit.context import Counters, path_audit
from pytest_gpuxfer.audit.traffic import (
    GpuTraffic,
    PairTraffic,
    Traffic,
    UncertainBytes,
    UnknownTrafficError,
)

__all__ = (
    "Counters",
    "GpuTraffic",
    "PairTraffic",
    "Traffic",
    "UncertainBytes",
    "UnknownTrafficError",
    "path_audit",
)
