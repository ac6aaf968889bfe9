"""Our kernels on a real GPU: loading them, how wide each is launched, and what they find."""

from __future__ import annotations

import ctypes
import math
from importlib import resources
from typing import Any, Final

from pytest_gpuxfer.hardware import host_pattern
from pytest_gpuxfer.hardware.cuda_calls import Primary, whole
from pytest_gpuxfer.hardware.cuda_memory import CudaMemory
from pytest_gpuxfer.hardware.driver import (
    CHAIN_LINE_BYTES,
    AtomicAdd,
    ChaseChain,
    Comparison,
    Context,
    Fill,
    Gate,
    Handshake,
    Kernel,
    KernelCopy,
    Memory,
    Stream,
    WriteChain,
)
from pytest_gpuxfer.model.pattern import WORD_BYTES, Pattern

KERNELS: Final = (
    "fill_pattern", "fill_word", "compare_pattern", "gate",
    "copy", "write_chain", "chase_chain", "handshake", "atomic_add",
)  # fmt: skip
_BLOCK_THREADS: Final = 256
_BLOCKS_PER_MULTIPROCESSOR: Final = 8
_COPY_BYTES: Final = 16  # a load
_COPY_LOADS: Final = 8  # of a thread in one turn of its block; UNROLL in kernels.cu
_COPY_BLOCK_THREADS: Final = 1024
_SHARED_BLOCK_THREADS: Final = 256
_SHARED_BLOCKS_PER_MULTIPROCESSOR: Final = 4
_WARP_THREADS: Final = 32
_RESULT_BYTES: Final = 24  # Result in kernels.cu
_NON_BLOCKING: Final = 1  # CU_STREAM_NON_BLOCKING: no waiting for other libraries' null stream
_GOLDEN: Final = (math.sqrt(5) - 1) / 2


def copy_shape(loads: int, sharers: int, multiprocessors: int) -> tuple[int, int]:
    """How many blocks, of how many threads, copy so many times 16 bytes.

    Alone, a block for each turn ends most evenly, in blocks so narrow that small copies too are
    spread over many multiprocessors. But the blocks of the first of several kernels would hold
    up the others', so each has no more than find room at once; and not all that would: with the
    GPU full, a kernel's stores to the host and another's loads from it slow each other down
    (H200: 30 GB/s both, with half as many threads 36 to 40).
    """
    if sharers > 1:
        room = multiprocessors * _SHARED_BLOCKS_PER_MULTIPROCESSOR // sharers
        turns = -(-loads // (_COPY_LOADS * _SHARED_BLOCK_THREADS))
        return max(1, min(turns, room)), _SHARED_BLOCK_THREADS
    warps = -(-loads // (_COPY_LOADS * multiprocessors * _WARP_THREADS))
    threads = max(1, min(warps, _COPY_BLOCK_THREADS // _WARP_THREADS)) * _WARP_THREADS
    return max(1, -(-loads // (_COPY_LOADS * threads))), threads


class CudaKernels(CudaMemory):
    """The Driver's calls that run kernels, with gates, fills and comparisons."""

    def _load(self, context: Context) -> None:
        """Load the kernels and launch each once, so that nothing is loaded behind a closed gate."""
        primary: Primary = context.handle
        cuda = self._cuda
        ptx = resources.files("pytest_gpuxfer.hardware").joinpath("kernels.ptx").read_bytes()
        module = self._call_in(context, cuda.cuModuleLoadData, ptx + b"\0")
        primary.undo["module", 0] = lambda: self._call(cuda.cuModuleUnload, module)
        primary.kernels = {
            name: self._call_in(context, cuda.cuModuleGetFunction, module, name.encode())
            for name in KERNELS
        }
        primary.stream = self._new_stream(context)
        primary.result = self.allocate_device(context, _RESULT_BYTES).address
        primary.readback = self.allocate_host(context, _RESULT_BYTES + WORD_BYTES).address
        ctypes.c_uint32.from_address(primary.readback).value = 1  # an open gate
        scratch = primary.result
        harmless: dict[str, tuple[int, ...]] = {
            "gate": (primary.readback, primary.readback + 4, 0),
            "fill_word": (scratch, 1, 0),
            "fill_pattern": (scratch, 1, 0),
            "compare_pattern": (scratch, 1, 0, scratch),
            "copy": (scratch, scratch, 0),
            "write_chain": (scratch, 0, 1),
            "chase_chain": (scratch, 0, scratch),
            "handshake": (scratch, scratch, 0, 0, 0),
            "atomic_add": (scratch, 0),
        }
        with self._current(primary):
            for name in KERNELS:
                self._launch(primary, primary.stream, name, 1, 1, *harmless[name])
            self._call(cuda.cuStreamSynchronize, primary.stream)

    def _new_stream(self, context: Context) -> Any:
        handle = self._call_in(context, self._cuda.cuStreamCreate, _NON_BLOCKING)
        destroy = self._cuda.cuStreamDestroy
        context.handle.undo["stream", int(handle)] = lambda: self._call(destroy, handle)
        return handle

    # -- launching -------------------------------------------------------------------------------

    def _launch(
        self, primary: Primary, stream: Any, name: str, blocks: int, threads: int, *arguments: int
    ) -> None:
        """Launch in the current context; every parameter of our kernels is of 64 bits."""
        parameters = (arguments, (ctypes.c_uint64,) * len(arguments))
        function = primary.kernels[name]
        launch = self._cuda.cuLaunchKernel
        self._call(launch, function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, 0)

    def _launch_wide(
        self, primary: Primary, stream: Any, name: str, items: int, *arguments: int
    ) -> None:
        """A thread for each item, up to what fills the GPU."""
        most = primary.multiprocessors * _BLOCKS_PER_MULTIPROCESSOR
        blocks = max(1, min(most, -(-items // _BLOCK_THREADS)))
        self._launch(primary, stream, name, blocks, _BLOCK_THREADS, *arguments)

    def launch(self, kernel: Kernel, stream: Stream) -> None:
        primary, handle = stream.context.handle, stream.handle
        with self._current(primary):
            match kernel:
                case Fill(memory, content):
                    is_word = isinstance(content, int)
                    name = "fill_word" if is_word else "fill_pattern"
                    value = content if isinstance(content, int) else content.offset_words
                    words = whole(memory)
                    self._launch_wide(primary, handle, name, words, memory.address, words, value)
                case KernelCopy():
                    self._launch_copy(primary, handle, kernel)
                case WriteChain(memory):
                    lines = memory.size_bytes // CHAIN_LINE_BYTES
                    chain = memory.address, lines, chain_step(lines)
                    self._launch_wide(primary, handle, "write_chain", lines, *chain)
                case ChaseChain(memory, hops, arrived):
                    chase = memory.address, hops, arrived.address
                    self._launch(primary, handle, "chase_chain", 1, 1, *chase)
                case Handshake(own, peer, rounds, leads, limit_ns):
                    flags = own.address, peer.address, rounds, leads, limit_ns
                    self._launch(primary, handle, "handshake", 1, 1, *flags)
                case AtomicAdd(memory, times):
                    self._launch_wide(primary, handle, "atomic_add", times, memory.address, times)

    def _launch_copy(self, primary: Primary, stream: Any, kernel: KernelCopy) -> None:
        destination, source = kernel.destination, kernel.source
        count = whole(source, _COPY_BYTES)
        if destination.size_bytes < source.size_bytes:
            raise ValueError(f"{source.size_bytes} bytes do not fit {destination.size_bytes}")
        shape = copy_shape(count, kernel.sharers, primary.multiprocessors)
        arguments = destination.address, source.address, count
        self._launch(primary, stream, "copy", *shape, *arguments)

    # -- gates -----------------------------------------------------------------------------------

    def create_gate(self, context: Context) -> Gate:
        memory = self.allocate_host(context, 2 * ctypes.sizeof(ctypes.c_uint32))
        return Gate(context, (ctypes.c_uint32 * 2).from_address(memory.address))

    def destroy_gate(self, gate: Gate) -> None:
        self._undo(gate.context, "host", ctypes.addressof(gate.handle))

    def close_gate(self, gate: Gate, stream: Stream, limit_ns: int) -> None:
        gate.handle[:] = [0, 0]  # not open, not expired
        address = ctypes.addressof(gate.handle)
        primary = stream.context.handle
        with self._current(primary):
            self._launch(primary, stream.handle, "gate", 1, 1, address, address + 4, limit_ns)

    def open_gate(self, gate: Gate) -> None:
        gate.handle[0] = 1

    def gate_expired(self, gate: Gate) -> bool:
        return bool(gate.handle[1])

    # -- what memory holds -----------------------------------------------------------------------

    def fill_host(self, memory: Memory, content: Pattern | int) -> None:
        whole(memory)
        host_pattern.fill(memory, content)

    def read_words(self, memory: Memory, count: int) -> tuple[int, ...]:
        words = memory.window(0, count * WORD_BYTES)
        if memory.ordinal is None:
            return tuple((ctypes.c_uint64 * count).from_address(words.address))
        primary, found = self._owner(memory), (ctypes.c_uint64 * count)()
        with self._current(primary):
            self._move(primary, ctypes.addressof(found), words.address, words.size_bytes)
            self._call(self._cuda.cuStreamSynchronize, primary.stream)
        return tuple(found)

    def compare(self, memory: Memory, content: Pattern) -> Comparison:
        words = whole(memory)
        if memory.ordinal is None:
            return host_pattern.compare(memory, content)
        primary = self._owner(memory)
        readback = (ctypes.c_uint64 * 4).from_address(primary.readback)
        readback[:] = [0, 2**64 - 1, 0, 0]
        arguments = (memory.address, words, content.offset_words, primary.result)
        with self._current(primary):
            self._move(primary, primary.result, primary.readback, _RESULT_BYTES)
            self._launch_wide(primary, primary.stream, "compare_pattern", words, *arguments)
            self._move(primary, primary.readback, primary.result, _RESULT_BYTES)
            self._call(self._cuda.cuStreamSynchronize, primary.stream)
            wrong, first, last, _ = readback
            if wrong == 0:
                return Comparison(0)
            first_word = memory.address + first * WORD_BYTES
            self._move(primary, primary.readback + _RESULT_BYTES, first_word, WORD_BYTES)
            self._call(self._cuda.cuStreamSynchronize, primary.stream)
        expected, got = content.word(first), readback[3]
        return Comparison(wrong, first * WORD_BYTES, last * WORD_BYTES, expected, got)

    def _move(self, primary: Primary, destination: int, source: int, size_bytes: int) -> None:
        copy = self._cuda.cuMemcpyAsync
        self._call(copy, destination, source, size_bytes, primary.stream)


def chain_step(lines: int) -> int:
    """How many lines from one to the next, so that all are met before any is met again.

    Near the golden section, so that lines met soon after each other lie far apart.
    """
    step = max(1, round(lines * _GOLDEN))
    while math.gcd(step, lines) > 1:
        step += 1
    return step
