"""The loops of TFRecord in native code, compiled by Numba; imported only where TFRecord is used.

Kernels take one-dimensional arrays unless stated otherwise, and named tuples of them, which Numba passes as it passes
the arrays in them; they read and write eight bytes at a time. Those that parse framed `tf.train.Example` messages read
the form that we write, with features in any order. They trust no input: every place is checked against the end of its
container, and a kernel returns the first row that is wrong, or the number of rows. Those that write rows into one
buffer, a column at a time, compute first the sizes of all entries, then the places of the messages, then write each
column's entries in turn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.feistel import compiled

ByteArray = NDArray[np.uint8]
# What counts or points: sizes, bounds, places in bytes; and the values of an Int64List.
Numbers = NDArray[np.int64]
# The bits of float32 values.
FloatBits = NDArray[np.uint32]
# What `words_of` gives.
Words = NDArray[np.uint64]
# Eight bytes are read and written at a time, so a buffer needs this many spare bytes after its end.
SPARE_BYTES = 8
# The largest head of a map entry without its key, including surplus copied bytes.
HEAD_SPARE_BYTES = 64
# Before the message: a record's length and the length's checksum. After it: the checksum of the message.
HEAD_BYTES, TAIL_BYTES = 12, 4
# The number of a Feature's list, by the kind of its values.
BYTES, FLOAT, INT64 = 1, 2, 3
# The wire type of a field that begins with its length.
LENGTH = 2
# Return codes of `records`: OK, or why it stopped.
OK, LENGTH_CHECKSUM, CHECKSUM = range(3)


class Entries(NamedTuple):
    """The map entries of one column, to write.

    Attributes:
        key: the column's name, (bytes,).
        valid: (rows,); 0 for a null.
        sizes: (rows,); bytes of each row's values on the wire.
        rows: (rows + 1,); row i has the values `rows[i]` to `rows[i + 1]`.
    """

    key: ByteArray
    valid: ByteArray
    sizes: Numbers
    rows: Numbers


class Columns(NamedTuple):
    """The columns to look for in messages.

    Attributes:
        keys: the bytes of all names.
        bounds: (columns + 1,); name c is `keys[bounds[c]]` to `keys[bounds[c + 1]]`.
        kinds: (columns,); the kind of each column's list, 0 for a column that is skipped.
    """

    keys: ByteArray
    bounds: Numbers
    kinds: Numbers


def words_of(data: ByteArray) -> Words:
    """A view of bytes in which element i is the eight bytes from byte i on, as a little-endian number."""
    return np.ndarray((len(data) - SPARE_BYTES + 1,), np.uint64, data, strides=(1,))


@compiled
def copy(out: Any, at: Any, data: Any, start: Any, size: Any) -> None:
    """Copy `size` bytes of one uint8 array into another."""
    for index in range(size):
        out[np.uint64(at + index)] = data[np.uint64(start + index)]


# ---- CRC-32C


def _tables() -> NDArray[np.uint32]:
    """Sixteen tables of 256: the effect of a byte on the CRC with 0 to 15 bytes after it (slicing by sixteen)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ 0x82F63B78, table >> 1).astype(np.uint32)
    tables = [table]
    for _ in range(15):
        tables.append(table[tables[-1] & 0xFF] ^ tables[-1] >> 8)
    return np.stack(tables)


_TABLES = _tables()


@compiled
def masked_crc(data: Any, start: Any, stop: Any) -> Any:
    """CRC-32C of `data[start:stop]` as TFRecord masks it: rotated right by 15 bits, plus a constant."""
    crc = np.uint32(0xFFFFFFFF)
    # Unsigned: Numba counts a negative index from the end.
    at, end = np.uint64(start), np.uint64(stop)
    while at + np.uint64(16) <= end:
        after = np.uint32(0)
        for index in range(4, 16):
            after ^= _TABLES[np.uint64(15 - index), data[at + np.uint64(index)]]
        for index in range(4):
            byte = data[at + np.uint64(index)] ^ (crc >> np.uint32(8 * index) & np.uint32(0xFF))
            after ^= _TABLES[np.uint64(15 - index), byte]
        crc = after
        at += np.uint64(16)
    while at < end:
        crc = _TABLES[0, (crc ^ data[at]) & np.uint32(0xFF)] ^ crc >> np.uint32(8)
        at += np.uint64(1)
    crc ^= np.uint32(0xFFFFFFFF)
    rotated = np.uint64(crc >> np.uint32(15) | crc << np.uint32(17))
    return (rotated + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF)


@compiled
def records(data: ByteArray, words: Words, at: Any, end: int, starts: Numbers, stops: Numbers) -> Any:
    """Find and check the records that lie whole between `at` and `end`, as many as `starts` has room for.

    Returns: their number, the place after the last, the code of the error there, and the size in bytes of the record
    there, if its head is complete.
    """
    count = 0
    while count < len(starts) and end - at >= HEAD_BYTES:
        if masked_crc(data, at, at + 8) != words[at + 8] & np.uint64(0xFFFFFFFF):
            return count, at, LENGTH_CHECKSUM, 0
        size = words[at]
        if size > np.uint64(2**62):
            return count, at, OK, 2**62
        start = at + HEAD_BYTES
        stop = start + np.int64(size)
        if stop + TAIL_BYTES > end:
            return count, at, OK, stop + TAIL_BYTES - at
        if masked_crc(data, start, stop) != words[stop] & np.uint64(0xFFFFFFFF):
            return count, at, CHECKSUM, 0
        starts[count] = start
        stops[count] = stop
        at = stop + TAIL_BYTES
        count += 1
    return count, at, OK, 0


@compiled
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


@compiled
def _content(data: Any, at: Any, end: Any, number: Any) -> Any:
    """(start, stop) of the content of the length-delimited field `number` at `at`; -1 twice if it is not there, if it
    does not end before `end`, or if `at` is -1.
    """
    if at < 0 or at >= end or data[at] != number << 3 | LENGTH:
        return -1, -1
    size, start = _varint(data, at + 1, end)
    if start < 0 or size > np.uint64(end - start):
        return -1, -1
    return start, start + np.int64(size)


@compiled
def _find(data: Any, start: Any, stop: Any, keys: Any, bounds: Any, guess: Any) -> Any:
    """The number of the key at `start`, most likely `guess`; -1 for an unknown key."""
    count = len(bounds) - 1
    for step in range(count):
        index = guess + step if guess + step < count else guess + step - count
        if bounds[index + 1] - bounds[index] != stop - start:
            continue
        same = 0
        while same < stop - start and data[start + same] == keys[bounds[index] + same]:
            same += 1
        if same == stop - start:
            return index
    return -1


@compiled
def _same(words: Any, first: Any, second: Any, size: Any) -> Any:
    """Whether the same `size` bytes, at least eight, stand at two places."""
    for at in range(0, size - 8, 8):
        if words[first + at] != words[second + at]:
            return False
    return words[first + size - 8] == words[second + size - 8]


@compiled
def locate(
    data: ByteArray, words: Words, starts: Numbers, stops: Numbers, columns: Columns, begins: Numbers, ends: Numbers
) -> int:
    """Find where each column's values lie in each message: `begins[column, row]`, which a null leaves, and `ends`.

    Values are the content of a BytesList, or of the packed field in another list. Of two entries with one key, the last
    counts. An entry that begins with the same bytes as the column's previous entry is not parsed again.
    """
    keys, bounds, kinds = columns
    # Per column, its last entry: its start, the bytes before its values, and the bytes in all.
    previous = np.zeros(len(kinds), np.int64)
    heads, sizes = np.zeros_like(previous), np.zeros_like(previous)
    for row in range(len(starts)):
        column = -1
        entry, features_end = _content(data, starts[row], stops[row], 1)
        if features_end != stops[row]:
            return row
        while entry < features_end:
            guess = column + 1 if column + 1 < len(kinds) else 0
            head, size = heads[guess], sizes[guess]
            if head >= 8 and entry + size <= features_end and _same(words, entry, previous[guess], head):
                column = guess
                begins[column, row] = entry + head
                entry += size
                ends[column, row] = entry
                continue
            first = entry
            part, entry = _content(data, entry, features_end, 1)
            key, key_end = _content(data, part, entry, 1)
            feature, feature_end = _content(data, key_end, entry, 2)
            if entry < 0 or feature_end != entry:
                return row
            column = _find(data, key, key_end, keys, bounds, guess)
            if column < 0 or kinds[column] == 0 or feature == entry:
                continue
            start, stop = _content(data, feature, entry, kinds[column])
            if kinds[column] != BYTES and start < stop:
                start, stop = _content(data, start, stop, 1)
            if stop != entry:
                return row
            begins[column, row] = start
            ends[column, row] = stop
            previous[column], heads[column], sizes[column] = first, start - first, stop - first
    return len(starts)


@compiled
def count_values(data: ByteArray, begins: Numbers, ends: Numbers, kind: int, counts: Numbers, sizes: Numbers) -> int:
    """Per row the number of its values, -1 for a null, and their bytes."""
    for row in range(len(counts)):
        at = begins[row]
        counts[row] = -1 if at < 0 else 0
        sizes[row] = 0
        if at < 0:
            continue
        if kind == BYTES:
            while at < ends[row]:
                start, at = _content(data, at, ends[row], 1)
                if at < 0:
                    return row
                counts[row] += 1
                sizes[row] += at - start
            continue
        sizes[row] = ends[row] - at
        if kind == FLOAT:
            if sizes[row] % 4:
                return row
            counts[row] = sizes[row] // 4
            continue
        if sizes[row] and data[ends[row] - 1] >= 0x80:
            return row
        for byte in range(at, ends[row]):
            counts[row] += data[byte] < 0x80
    return len(counts)


@compiled
def single_floats(words: Words, begins: Numbers, ends: Numbers, out: FloatBits) -> bool:
    """Read one value of a FloatList from each row; False if a row has another number of values."""
    for row in range(len(begins)):
        if begins[row] < 0 or ends[row] - begins[row] != 4:
            return False
        out[row] = words[begins[row]] & np.uint64(0xFFFFFFFF)
    return True


@compiled
def single_ints(data: ByteArray, begins: Numbers, ends: Numbers, out: Numbers) -> bool:
    """Read one value of an Int64List from each row; False if a row has another number of values."""
    for row in range(len(begins)):
        if begins[row] < 0:
            return False
        value, behind = _varint(data, begins[row], ends[row])
        if behind != ends[row]:
            return False
        out[row] = np.int64(value)
    return True


@compiled
def item_sizes(data: ByteArray, begins: Numbers, ends: Numbers, sizes: Numbers) -> None:
    """The bytes of each value of the BytesLists that `count_values` counted, one row after another."""
    item = 0
    for row in range(len(begins)):
        at = begins[row]
        while 0 <= at < ends[row]:
            start, at = _content(data, at, ends[row], 1)
            sizes[item] = at - start
            item += 1


@compiled
def fill_raw(
    data: ByteArray, words: Words, begins: Numbers, ends: Numbers, kind: int, places: Numbers, out: Words
) -> None:
    """Copy the values of counted BytesLists or FloatLists unchanged, each row's from `places[row]` on.

    Up to seven surplus bytes of each value fall on what is copied later, or into the spare bytes.
    """
    for row in range(len(begins)):
        at = begins[row]
        place = places[row]
        while 0 <= at < ends[row]:
            start, stop = _content(data, at, ends[row], 1) if kind == BYTES else (at, ends[row])
            for index in range(0, stop - start, 8):
                out[place + index] = words[start + index]
            place += stop - start
            at = stop


@compiled
def fill_ints(data: ByteArray, begins: Numbers, ends: Numbers, places: Numbers, out: Numbers) -> int:
    """Read the values of counted Int64Lists, each row's from `out[places[row]]` on."""
    for row in range(len(begins)):
        at = begins[row]
        place = places[row]
        while 0 <= at < ends[row]:
            value, at = _varint(data, at, ends[row])
            if at < 0:
                return row
            out[place] = np.int64(value)
            place += 1
    return len(begins)


@compiled
def _varint_bytes(value: Any) -> Any:
    size = 1
    while value >= np.uint64(0x80):
        value >>= np.uint64(7)
        size += 1
    return size


@compiled
def _put_varint(out: Any, at: Any, value: Any) -> Any:
    while value >= np.uint64(0x80):
        out[at] = value & np.uint64(0x7F) | np.uint64(0x80)
        value >>= np.uint64(7)
        at += 1
    out[at] = value
    return at + 1


@compiled
def _delimited(size: Any) -> Any:
    """Bytes of a length-delimited field with a field number below 16, whose content has `size` bytes."""
    return 1 + _varint_bytes(np.uint64(size)) + size


@compiled
def _put_delimiter(out: Any, at: Any, number: Any, size: Any) -> Any:
    out[at] = number << 3 | LENGTH
    return _put_varint(out, at + 1, np.uint64(size))


@compiled
def bytes_sizes(rows: Numbers, items: Numbers, sizes: Numbers) -> None:
    """Per row the bytes of its BytesList: values `rows[i]` to `rows[i + 1]`, where value k is `items[k]` onwards."""
    for row in range(len(sizes)):
        size = 0
        for item in range(rows[row], rows[row + 1]):
            size += _delimited(items[item + 1] - items[item])
        sizes[row] = size


@compiled
def int64_sizes(rows: Numbers, values: Numbers, sizes: Numbers) -> None:
    """Per row, the bytes of its values as varints."""
    for row in range(len(sizes)):
        size = 0
        for item in range(rows[row], rows[row + 1]):
            size += _varint_bytes(np.uint64(values[item]))
        sizes[row] = size


@compiled
def _list_bytes(kind: Any, size: Any) -> Any:
    """Bytes of a list message: packed numbers need one more field, which is left out when there are none."""
    return size if kind == BYTES or size == 0 else _delimited(size)


@compiled
def add_entries(kind: int, key: ByteArray, valid: ByteArray, sizes: Numbers, features: Numbers) -> None:
    """Add to each row's `features` the bytes of one column's map entry; a null has no entry."""
    known, entry = -1, 0
    for row in range(len(sizes)):
        if valid[row]:
            if sizes[row] != known:
                known = sizes[row]
                feature = _delimited(_list_bytes(kind, known))
                entry = _delimited(_delimited(len(key)) + _delimited(feature))
            features[row] += entry


@compiled
def lay_out(features: Numbers, first: int, most_bytes: int, starts: Numbers, stops: Numbers) -> Any:
    """Places of the messages from row `first` on, with room for a record's frame; returns (next row, bytes), at least
    one row.
    """
    at = 0
    row = first
    while row < len(features):
        size = _delimited(features[row])
        if row > first and at + HEAD_BYTES + size + TAIL_BYTES > most_bytes:
            break
        starts[row] = at + HEAD_BYTES
        stops[row] = starts[row] + size
        at = stops[row] + TAIL_BYTES
        row += 1
    return row, at


@compiled
def put_heads(out: ByteArray, features: Numbers, first: int, stop: int, places: Numbers) -> None:
    """Begin the messages of rows `first` to `stop` at their `places`, and advance the places."""
    for row in range(first, stop):
        places[row] = _put_delimiter(out, places[row], 1, features[row])


@compiled
def _make_head(head: Any, kind: Any, key: Any, size: Any) -> Any:
    """Write the part of a map entry before values of `size` bytes into `head`; returns the place after it."""
    values = _list_bytes(kind, size)
    feature = _delimited(values)
    at = _put_delimiter(head, 0, 1, _delimited(len(key)) + _delimited(feature))
    at = _put_delimiter(head, at, 1, len(key))
    copy(head, at, key, 0, len(key))
    at = _put_delimiter(head, at + len(key), 2, feature)
    at = _put_delimiter(head, at, kind, values)
    return at if kind == BYTES or size == 0 else _put_delimiter(head, at, 1, size)


@compiled
def _put_head(words: Any, at: Any, head: Any, end: Any) -> Any:
    """Copy a head; up to seven surplus bytes fall on what is written later: values, next column or frame."""
    for index in range(0, end, 8):
        words[at + index] = head[index // 8]
    return at + end


@compiled
def put_bytes(
    out: ByteArray, words: Words, first: int, stop: int, places: Numbers, entries: Entries, items: Numbers,
    data: ByteArray,
) -> None:  # fmt: skip
    """Write the entries of a BytesList column (`Entries`) at `places`, and advance the places.

    Value k has the bytes `items[k]` to `items[k + 1]` of `data`.
    """
    key, valid, sizes, rows = entries
    head = np.empty((len(key) + HEAD_SPARE_BYTES) // 8, np.uint64)
    known, end = -1, 0
    for row in range(first, stop):
        if valid[row]:
            if sizes[row] != known:
                known, end = sizes[row], _make_head(head.view(np.uint8), BYTES, key, sizes[row])
            at = _put_head(words, places[row], head, end)
            for item in range(rows[row], rows[row + 1]):
                size = items[item + 1] - items[item]
                at = _put_delimiter(out, at, 1, size)
                copy(out, at, data, items[item], size)
                at += size
            places[row] = at


@compiled
def put_floats(words: Words, first: int, stop: int, places: Numbers, entries: Entries, values: FloatBits) -> None:
    """Write the entries of a FloatList column."""
    key, valid, sizes, rows = entries
    head = np.empty((len(key) + HEAD_SPARE_BYTES) // 8, np.uint64)
    known, end = -1, 0
    for row in range(first, stop):
        if valid[row]:
            if sizes[row] != known:
                known, end = sizes[row], _make_head(head.view(np.uint8), FLOAT, key, sizes[row])
            at = _put_head(words, places[row], head, end)
            for item in range(rows[row], rows[row + 1]):
                words[at] = np.uint64(values[item])  # four surplus bytes, see _put_head
                at += 4
            places[row] = at


@compiled
def put_ints(
    out: ByteArray, words: Words, first: int, stop: int, places: Numbers, entries: Entries, values: Numbers
) -> None:
    """Write the entries of an Int64List column."""
    key, valid, sizes, rows = entries
    head = np.empty((len(key) + HEAD_SPARE_BYTES) // 8, np.uint64)
    known, end = -1, 0
    for row in range(first, stop):
        if valid[row]:
            if sizes[row] != known:
                known, end = sizes[row], _make_head(head.view(np.uint8), INT64, key, sizes[row])
            at = _put_head(words, places[row], head, end)
            for item in range(rows[row], rows[row + 1]):
                at = _put_varint(out, at, np.uint64(values[item]))
            places[row] = at


@compiled
def frame(out: ByteArray, words: Words, first: int, stop: int, starts: Numbers, stops: Numbers) -> None:
    """Put length and checksums around the messages of rows `first` to `stop`."""
    for row in range(first, stop):
        head = starts[row] - HEAD_BYTES
        words[head] = np.uint64(stops[row] - starts[row])
        _put_crc(out, head + 8, masked_crc(out, head, head + 8))
        _put_crc(out, stops[row], masked_crc(out, starts[row], stops[row]))


@compiled
def _put_crc(out: Any, at: Any, crc: Any) -> None:
    for index in range(4):
        out[at + index] = crc >> np.uint64(8 * index) & np.uint64(0xFF)
