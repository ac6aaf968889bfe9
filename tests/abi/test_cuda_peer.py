from __future__ import annotations

from tests.abi.conftest import Run
from tests.abi.test_cuda import OPEN

START = (
    OPEN
    + """
import os, signal, time
from pytest_gpuxfer.hardware.driver import DeviceKind, PeerProcessError
from pytest_gpuxfer.model.pattern import Pattern

def gone(pid):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False

peer = driver.start_peer(1, hide_others=False)
pid = peer._process.pid
"""
)


def test_a_peer_process_shares_fills_compares_and_ends(under_cuda: Run) -> None:
    script = START + (
        "malloc = peer.share(4096, DeviceKind.MALLOC)\n"
        "print(malloc.kind, malloc.size_bytes, malloc.ordinal, len(malloc.handle))\n"
        "peer.fill(Pattern(1), 8)\n"
        "print(peer.compare(Pattern(1), 8).wrong_words)\n"
        "vmm = peer.share(4096, DeviceKind.VMM)\n"
        "print(os.readlink(f'/proc/self/fd/{vmm.handle}'))\n"
        "again = peer.share(8192, DeviceKind.MALLOC)\n"
        "print(again.size_bytes, os.path.exists(f'/proc/self/fd/{vmm.handle}'))\n"
        "vmm = peer.share(4096, DeviceKind.VMM)\n"
        "peer.close(); peer.close()\n"
        "print(gone(pid), os.path.exists(f'/proc/self/fd/{vmm.handle}'))\n"
    )
    assert under_cuda(script).splitlines() == [
        "malloc 4096 1 64",
        "0",
        "/dev/null",
        "8192 False",
        "True False",
    ]


def test_its_drivers_answer_is_an_error_of_ours(under_cuda: Run) -> None:
    script = START + (
        "try:\n    peer.share(4096, DeviceKind.VMM)\n"
        "except DriverError as error:\n    print(error.call, error.code, error)\n"
        "print(peer.share(4096, DeviceKind.MALLOC).size_bytes, 'still there')\n"
    )
    words, after = under_cuda(script, cuMemMap="2").splitlines()
    assert words.startswith("cuMemMap 2 cuMemMap failed: CUDA_ERROR_OUT_OF_MEMORY (2) (in the peer")
    assert after == "4096 still there"


def test_one_that_was_killed_is_said_to_be_gone(under_cuda: Run) -> None:
    script = START + (
        "os.kill(pid, signal.SIGKILL)\n"
        "for _ in range(2):\n"
        "    try:\n        peer.fill(1, 8)\n"
        "    except PeerProcessError as error:\n        print(error)\n"
    )
    first, second = under_cuda(script).splitlines()
    assert "ended with status -9: fill" in first
    assert "was ended, and is asked to fill" in second


def test_one_that_hangs_is_killed_after_its_deadline(under_cuda: Run) -> None:
    script = START + (
        "os.kill(pid, signal.SIGSTOP)\n"
        "peer._connection.settimeout(0.2)\n"
        "try:\n    peer.fill(1, 8)\n"
        "except PeerProcessError as error:\n    print(error)\n"
        "print(gone(pid))\n"
    )
    words, gone = under_cuda(script).splitlines()
    assert "did not answer within" in words
    assert gone == "True"


def test_it_ends_with_the_process_that_started_it(under_cuda: Run) -> None:
    """Killed, that has no time to close anything."""
    script = OPEN + (
        "import os, subprocess, sys, time\n"
        "inner = '''\n" + START + "print(pid, flush=True); os.kill(os.getpid(), 9)\n'''\n"
        "done = subprocess.run([sys.executable, '-c', inner], stdout=subprocess.PIPE, text=True)\n"
        "pid, deadline = int(done.stdout), time.monotonic() + 20\n"
        "def alive():\n"
        "    try:\n        state = open(f'/proc/{pid}/stat').read().split(')')[1].split()[0]\n"
        "    except OSError:\n        return False\n"
        "    return state != 'Z'\n"
        "while alive() and time.monotonic() < deadline:\n    time.sleep(0.01)\n"
        "print(done.returncode, alive())\n"
    )
    assert under_cuda(script) == "-9 False"


def test_more_than_it_shares_is_not_touched(under_cuda: Run) -> None:
    script = START + (
        "peer.share(4096, DeviceKind.MALLOC)\n"
        "try:\n    peer.fill(1, 4104)\n"
        "except PeerProcessError as error:\n    print(error)\n"
    )
    assert under_cuda(script).endswith("failed: 4104 bytes at 0 are outside 4096 bytes")
