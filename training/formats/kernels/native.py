"""The shared base of the kernels: compiling and caching them, eight bytes at a time, and CRC-32C."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
from blake3 import blake3
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

# Before the message: a record's length and the length's checksum. After it: the checksum of the message.
HEAD_BYTES, TAIL_BYTES = 12, 4
# Eight bytes are read and written at a time, so a buffer needs this many spare bytes after its end.
SPARE_BYTES = 8
# The number of a Feature's list, by the kind of its values.
BYTES, FLOAT, INT64 = 1, 2, 3
# Wire types.
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

_THIS_FILE = blake3(Path(__file__).read_bytes()).hexdigest(length=4)


def kernel(function: Callable) -> Any:
    """Compile a function on its first call for each set of types; the machine code is cached between processes."""
    # Numba caches it under this name until the function's own file changes, but it contains code of this file too.
    function.__qualname__ += f"-{_THIS_FILE}"
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither __pycache__ nor the user's cache folder can be written
        return njit(nogil=True)(function)


def _instruction(function: Callable) -> Any:
    """A function whose generated machine code is inlined into a kernel."""
    return intrinsic(function)


# ---- eight bytes at a time


def _place(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    place = builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer()), [index])
    return builder.bitcast(place, ir.IntType(64).as_pointer())


@_instruction
def load(typing_context: Any, array: Any, index: Any) -> Any:
    """The eight bytes of a uint8 array from `index` as a little-endian number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature.args[0], *arguments)
        return builder.load(place, align=1)

    return types.uint64(array, types.int64), generate


@_instruction
def store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Put eight bytes into a uint8 array at `index`, little-endian."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature.args[0], *arguments[:2])
        builder.store(arguments[2], place, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generate


@_instruction
def copy(typing_context: Any, out: Any, at: Any, data: Any, start: Any, size: Any) -> Any:
    """Copy `size` bytes of one uint8 array into another (memcpy)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to = _place(context, builder, signature.args[0], *arguments[:2])
        source = _place(context, builder, signature.args[2], *arguments[2:4])
        cgutils.raw_memcpy(builder, to, source, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), generate


# ---- CRC-32C


@_instruction
def _crc_instruction(typing_context: Any, crc: Any, value: Any) -> Any:
    """CRC-32C of eight more bytes, by the SSE 4.2 instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(64)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(wide, [wide, wide]), "llvm.x86.sse42.crc32.64.64"
        )
        return builder.call(function, arguments)

    return types.uint64(types.uint64, types.uint64), generate


def _tables() -> NDArray[np.uint64]:
    """Eight tables of 256: the effect of a byte on the CRC with 0 to 7 bytes after it (slicing by eight)."""
    table = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        table = np.where(table & np.uint64(1), table >> np.uint64(1) ^ np.uint64(0x82F63B78), table >> np.uint64(1))
    tables = [table]
    for _ in range(7):
        tables.append(table[tables[-1] & np.uint64(0xFF)] ^ tables[-1] >> np.uint64(8))
    return np.stack(tables)


_TABLES = _tables()


@kernel
def crc_by_tables(crc: Any, value: Any) -> Any:
    """CRC-32C of eight more bytes, on any processor."""
    value ^= crc
    crc = np.uint64(0)
    for after in range(8):
        crc ^= _TABLES[7 - after, value & np.uint64(0xFF)]
        value >>= np.uint64(8)
    return crc


def _has_crc_instruction() -> bool:
    # Numba may be configured to compile for another processor than this one.
    if config.CPU_NAME or config.CPU_FEATURES:  # type: ignore[attr-defined]
        return False
    return llvmlite.binding.get_default_triple().startswith("x86_64") and bool(
        llvmlite.binding.get_host_cpu_features().get("sse4.2")
    )


_crc_of_eight = _crc_instruction if _has_crc_instruction() else crc_by_tables


@kernel
def masked_crc(data: Any, start: Any, stop: Any) -> Any:
    """CRC-32C of `data[start:stop]` as TFRecord masks it: rotated right by 15 bits, plus a constant."""
    crc = np.uint64(0xFFFFFFFF)
    while start + 8 <= stop:
        crc = _crc_of_eight(crc, load(data, start))
        start += 8
    for at in range(start, stop):
        crc = _TABLES[0, (crc ^ np.uint64(data[at])) & np.uint64(0xFF)] ^ crc >> np.uint64(8)
    crc ^= np.uint64(0xFFFFFFFF)
    rotated = crc >> np.uint64(15) | crc << np.uint64(17)
    return (rotated + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF)
