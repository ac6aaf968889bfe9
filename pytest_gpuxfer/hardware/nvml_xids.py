"""The Xid events of a run, by NVML: what the driver reports of GPUs while we listen."""

from __future__ import annotations

from typing import Any, Final

from pytest_gpuxfer.model.unknown import Unknown

_XID_EVENTS: Final = 0x8  # nvmlEventTypeXidCriticalError
_NO_WAIT_MS: Final = 0
_TIMEOUT_CODE: Final = 10  # nothing has happened


class XidListener:
    """Listens from its making on, so that nothing that a measurement causes is missed."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._seen: dict[str, list[int]] = {}
        self._deaf: dict[str, Unknown] = {}  # GPUs that no events come from
        self._silent: Unknown | None = None  # why none come at all
        try:
            self._events = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                self._register(index)
        except nvml.NVMLError as error:
            self._silent = Unknown(f"NVML: {error}")

    def _register(self, index: int) -> None:
        nvml = self._nvml
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(gpu)
        except nvml.NVMLError:
            return  # it answers nothing, so nobody will ask for it
        try:
            nvml.nvmlDeviceRegisterEvents(gpu, _XID_EVENTS, self._events)
            self._seen[uuid] = []
        except nvml.NVMLError as error:
            self._deaf[uuid] = Unknown(f"NVML: {error}")

    def of(self, uuid: str) -> tuple[int, ...] | Unknown:
        """The Xid codes of a GPU so far, first one first."""
        if self._silent is None:
            self._collect()
        if self._silent is not None:
            return self._silent
        if uuid in self._seen:
            return tuple(self._seen[uuid])
        return self._deaf.get(uuid, Unknown("NVML lists no such GPU"))

    def _collect(self) -> None:
        nvml = self._nvml
        while True:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, _NO_WAIT_MS)
                uuid = nvml.nvmlDeviceGetUUID(event.device)
            except nvml.NVMLError as error:
                if error.value != _TIMEOUT_CODE:
                    self._silent = Unknown(f"NVML: {error}")
                return
            if event.eventType == _XID_EVENTS:
                self._seen.setdefault(uuid, []).append(int(event.eventData))
