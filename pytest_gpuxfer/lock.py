"""One measuring run a host: two at once would share links, and blame the machine for it."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_NAME: Final = "gpuxfer.lock"


class LockError(Exception):
    """Another run measures, or the lock cannot be taken: one line."""


class HostLock:
    """Held from its making until `release`, or until this process ends, however it ends.

    It is the kernel's lock on an open file: what stays behind is a file that anybody may lock
    again. Raises LockError.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / _NAME
        self._descriptor = -1
        try:
            self._descriptor = _open(path)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            self.release()
            if not (holder and holder.isprintable()):  # whoever wrote it may mean us ill
                holder = "unknown"
            raise LockError(
                f"another run measures on this host: {holder} ({path}); wait for it,"
                " or say --gpuxfer-lock=off if the two share no GPU and no link"
            ) from None
        except OSError as error:
            self.release()
            raise LockError(
                f"{path} cannot be locked: {error.strerror}; name another folder by"
                " --gpuxfer-lock=DIR"
            ) from None
        since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
        words = f"pid {os.getpid()}, since {since}\n"
        with suppress(OSError):  # a full disk takes no words, and the lock is held all the same
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, words.encode(), 0)

    def release(self) -> None:
        """Let others measure; again is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _open(path: Path) -> int:
    """The file, made if missing, for every user; never through a link that another one laid."""
    # No O_CREAT for a file that exists: in a sticky folder the kernel refuses it to other users.
    with suppress(FileNotFoundError):
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        os.fchmod(descriptor, 0o666)  # whatever the umask
        return descriptor
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
