"""A PyTorch program that moves known numbers of bytes, to hold `gpuxfer watch` against.

    gpuxfer watch -- python benchmarks/watch_known_traffic.py [GB]

Moves that many GB (10, unless told) to gpu0, from gpu0, and, if there are two GPUs, from gpu0 to
gpu1; says how many bytes each was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

CHUNK_BYTES = 2 * 10**8


def repeat(words: str, copies: int, copy: Callable[[], object]) -> None:
    for _ in range(copies):
        copy()
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    print(f"{words}: {copies * CHUNK_BYTES / 1e9:.2f} GB", flush=True)


def main() -> None:
    copies = int(float(sys.argv[1] if len(sys.argv) > 1 else 10) * 1e9) // CHUNK_BYTES
    host = torch.zeros(CHUNK_BYTES, dtype=torch.uint8, pin_memory=True)
    near = torch.zeros(CHUNK_BYTES, dtype=torch.uint8, device="cuda:0")
    repeat("host to gpu0", copies, lambda: near.copy_(host, non_blocking=True))
    repeat("gpu0 to host", copies, lambda: host.copy_(near, non_blocking=True))
    if torch.cuda.device_count() > 1:
        far = torch.zeros(CHUNK_BYTES, dtype=torch.uint8, device="cuda:1")
        repeat("gpu0 to gpu1", copies, lambda: far.copy_(near, non_blocking=True))


if __name__ == "__main__":
    main()
