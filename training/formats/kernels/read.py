"""Kernels that parse framed `tf.train.Example` messages, in any form that protobuf allows.

No kernel trusts its input: every place is checked against the end of its container, and an error returns the row and a
code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from training.formats.kernels.arrays import ByteArray, Columns, FloatBits, Numbers
from training.formats.kernels.native import (
    BYTES,
    FIXED32,
    FIXED64,
    FLOAT,
    HEAD_BYTES,
    INT64,
    LENGTH,
    TAIL_BYTES,
    VARINT,
    copy,
    kernel,
    load,
    masked_crc,
)

# Return codes of a kernel: OK, or why it stopped.
OK, LENGTH_CHECKSUM, CHECKSUM, NO_MESSAGE, TOO_LONG, WIRE_TYPE, OTHER_LIST, NUMBER_CUT, NUMBER_LONG = range(9)


@kernel
def records(data: ByteArray, at: Any, end: int, starts: Numbers, stops: Numbers) -> Any:
    """Find and check the records that lie whole between `at` and `end`, as many as `starts` has room for.

    Returns: their number, the place after the last, the code of the error there, and the size in bytes of the record
    there, if its head is complete.
    """
    count = 0
    while count < len(starts) and end - at >= HEAD_BYTES:
        if masked_crc(data, at, at + 8) != load(data, at + 8) & np.uint64(0xFFFFFFFF):
            return count, at, LENGTH_CHECKSUM, 0
        size = load(data, at)
        if size > np.uint64(2**62):
            return count, at, OK, 2**62
        start = at + HEAD_BYTES
        stop = start + np.int64(size)
        if stop + TAIL_BYTES > end:
            return count, at, OK, stop + TAIL_BYTES - at
        if masked_crc(data, start, stop) != load(data, stop) & np.uint64(0xFFFFFFFF):
            return count, at, CHECKSUM, 0
        starts[count] = start
        stops[count] = stop
        at = stop + TAIL_BYTES
        count += 1
    return count, at, OK, 0


@kernel
def _varint(data: Any, at: Any, end: Any) -> Any:
    """(number, place after it); the place is -1 if the number is cut off or has more than ten bytes."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, at
        shift += np.uint64(7)
    return value, -1


@kernel
def _field(data: Any, at: Any, end: Any) -> Any:
    """(field number, wire type, start, stop, code) of the field at `at`, in a message that ends at `end`."""
    tag, at = _varint(data, at, end)
    if at < 0:
        return 0, 0, 0, 0, NO_MESSAGE
    number = np.int64(tag >> np.uint64(3))
    wire = np.int64(tag & np.uint64(7))
    start = at
    if wire == LENGTH:
        size, start = _varint(data, at, end)
        if start < 0:
            return 0, 0, 0, 0, NO_MESSAGE
        if size > np.uint64(end - start):
            return 0, 0, 0, 0, TOO_LONG
        return number, wire, start, start + np.int64(size), OK
    if wire == VARINT:
        _, stop = _varint(data, at, end)
        return number, wire, start, stop, OK if stop >= 0 else NO_MESSAGE
    if wire != FIXED64 and wire != FIXED32:
        return 0, 0, 0, 0, WIRE_TYPE
    stop = at + (8 if wire == FIXED64 else 4)
    return number, wire, start, stop, OK if stop <= end else TOO_LONG


@kernel
def _find(data: Any, start: Any, stop: Any, keys: Any, bounds: Any, guess: Any) -> Any:
    """The number of the key at `start`, most likely `guess`; -1 for an unknown key."""
    for step in range(len(bounds) - 1):
        index = (guess + step) % (len(bounds) - 1)
        if bounds[index + 1] - bounds[index] != stop - start:
            continue
        same = 0
        while same < stop - start and data[start + same] == keys[bounds[index] + same]:
            same += 1
        if same == stop - start:
            return index
    return -1


@kernel
def _same(data: Any, one: Any, other: Any, size: Any) -> Any:
    """Whether the same `size` bytes, at least eight, stand at two places."""
    for at in range(0, size - 8, 8):
        if load(data, one + at) != load(data, other + at):
            return False
    return load(data, one + size - 8) == load(data, other + size - 8)


@kernel
def locate(data: ByteArray, starts: Numbers, stops: Numbers, columns: Columns, begins: Numbers, ends: Numbers) -> Any:
    """Find where each column's list lies in each message: `begins[column, row]`, or -1 for a null, and `ends`.

    Of two entries with one key, and of two lists in one feature, the last counts. A column of kind 0 is skipped. An
    entry that begins with the same bytes as the column's previous entry is not parsed again.

    Returns: row, code, column and kind of the list there; OK after the last row.
    """
    keys, bounds, kinds = columns
    # Per column, the last entry whose end is its list's end: its start, the bytes before the list, and the bytes in
    # all.
    known = np.zeros(len(kinds), np.int64)
    heads, sizes = np.zeros_like(known), np.zeros_like(known)
    for row in range(len(starts)):
        begins[:, row] = -1
        column = -1
        at = starts[row]
        while at < stops[row]:
            number, wire, entry, features_end, code = _field(data, at, stops[row])
            if code != OK:
                return row, code, 0, 0
            at = features_end
            if number != 1 or wire != LENGTH:
                continue
            while entry < features_end:
                column = column + 1 if column + 1 < len(kinds) else 0
                head, size = heads[column], sizes[column]
                if head >= 8 and entry + size <= features_end and _same(data, entry, known[column], head):
                    begins[column, row] = entry + head
                    entry += size
                    ends[column, row] = entry
                    continue
                first = entry
                number, wire, part, entry, code = _field(data, entry, features_end)
                if code != OK:
                    return row, code, 0, 0
                if number != 1 or wire != LENGTH:
                    continue
                key = key_end = feature = feature_end = part
                while part < entry:
                    number, wire, start, part, code = _field(data, part, entry)
                    if code != OK:
                        return row, code, 0, 0
                    if wire == LENGTH and number == 1:
                        key, key_end = start, part
                    elif wire == LENGTH and number == 2:
                        feature, feature_end = start, part
                found = _find(data, key, key_end, keys, bounds, column)
                if found < 0:
                    continue
                column = found
                begins[column, row] = -1
                while kinds[column] and feature < feature_end:
                    number, wire, start, feature, code = _field(data, feature, feature_end)
                    if code != OK:
                        return row, code, column, 0
                    if wire != LENGTH or number < BYTES or number > INT64:
                        continue
                    if number != kinds[column]:
                        return row, OTHER_LIST, column, number
                    begins[column, row] = start
                    ends[column, row] = feature
                    known[column], heads[column], sizes[column] = first, start - first, feature - first
                if begins[column, row] < 0 or ends[column, row] != entry:
                    heads[column] = 0
    return len(starts), OK, 0, 0


@kernel
def _is_value(kind: Any, number: Any, wire: Any) -> Any:
    """Whether a list's field holds values: packed, or unpacked."""
    if number != 1:
        return False
    return wire == LENGTH or (kind == FLOAT and wire == FIXED32) or (kind == INT64 and wire == VARINT)


@kernel
def count_values(data: ByteArray, begins: Numbers, ends: Numbers, kind: int, counts: Numbers, sizes: Numbers) -> Any:
    """Per row the number of values in its list, -1 for a null, and their wire bytes; (row, code), OK at the end."""
    for row in range(len(counts)):
        at = begins[row]
        counts[row] = -1 if at < 0 else 0
        sizes[row] = 0
        while 0 <= at < ends[row]:
            number, wire, start, stop, code = _field(data, at, ends[row])
            if code != OK:
                return row, code
            at = stop
            if not _is_value(kind, number, wire):
                continue
            sizes[row] += stop - start
            if kind == BYTES:
                counts[row] += 1
            elif kind == FLOAT:
                if (stop - start) % 4:
                    return row, NUMBER_CUT
                counts[row] += (stop - start) // 4
            elif start < stop:
                if data[stop - 1] >= 0x80:
                    return row, NUMBER_CUT
                count = 0
                for byte in range(start, stop):
                    count += data[byte] < 0x80
                counts[row] += count
    return len(counts), OK


@kernel
def single_floats(data: ByteArray, begins: Numbers, ends: Numbers, out: FloatBits) -> Any:
    """Read a FloatList of one packed value from each row; False, with nothing read, if a row has anything else."""
    for row in range(len(begins)):
        at = begins[row]
        if at < 0 or ends[row] - at != 6 or data[at] != LENGTH | 8 or data[at + 1] != 4:
            return False
        out[row] = load(data, at + 2) & np.uint64(0xFFFFFFFF)
    return True


@kernel
def single_ints(data: ByteArray, begins: Numbers, ends: Numbers, out: Numbers) -> Any:
    """Read an Int64List of one packed value from each row; False, with nothing read, if a row has anything else."""
    for row in range(len(begins)):
        at = begins[row]
        if at < 0 or ends[row] - at < 3 or data[at] != LENGTH | 8 or data[at + 1] != ends[row] - at - 2:
            return False
        value, behind = _varint(data, at + 2, ends[row])
        if behind != ends[row]:
            return False
        out[row] = np.int64(value)
    return True


@kernel
def item_sizes(data: ByteArray, begins: Numbers, ends: Numbers, sizes: Numbers) -> None:
    """The bytes of each value of the BytesLists that `count_values` counted, one row after another."""
    item = 0
    for row in range(len(begins)):
        at = begins[row]
        while 0 <= at < ends[row]:
            number, wire, start, at, _ = _field(data, at, ends[row])
            if _is_value(BYTES, number, wire):
                sizes[item] = at - start
                item += 1


@kernel
def fill_raw(data: ByteArray, begins: Numbers, ends: Numbers, kind: int, places: Numbers, out: ByteArray) -> None:
    """Copy the values of counted BytesLists or FloatLists unchanged, each row's from `places[row]` on."""
    for row in range(len(begins)):
        at = begins[row]
        place = places[row]
        while 0 <= at < ends[row]:
            number, wire, start, at, _ = _field(data, at, ends[row])
            if _is_value(kind, number, wire):
                copy(out, place, data, start, at - start)
                place += at - start


@kernel
def fill_ints(data: ByteArray, begins: Numbers, ends: Numbers, places: Numbers, out: Numbers) -> Any:
    """Read the values of counted Int64Lists, each row's from `out[places[row]]` on; (row, code), OK at the end."""
    for row in range(len(begins)):
        at = begins[row]
        place = places[row]
        while 0 <= at < ends[row]:
            number, wire, start, at, _ = _field(data, at, ends[row])
            while _is_value(INT64, number, wire) and start < at:
                value, start = _varint(data, start, at)
                if start < 0:
                    return row, NUMBER_LONG
                out[place] = np.int64(value)
                place += 1
    return len(begins), OK
