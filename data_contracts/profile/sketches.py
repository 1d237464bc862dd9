"""What a profile keeps of a column's values, in forms that merge exactly: bins, moments, and samples of values.

Values are counted in nested bins: a bin is the upper bits of a float64's bit pattern, so its edges are fixed. The
number of bits follows from the values alone: as many as keep at most MOST_BINS bins occupied. (DDSketch's bins follow
from logarithms, which differ between machines; UDDSketch collapses bins in the same way.)

Moments are sums of values and of their squares, in an order that the values' positions alone decide. Blocks of values
are summed about the part's first value by halving: element-wise additions, which every machine rounds in the same way.
Blocks and parts are then added exactly.

A sample counts different values: all of them while there are few, else those with the least hashes. Hashes are the same
on every machine. A value that is kept in the end was kept from its first row on, so its count is exact.

So any two parts merge exactly, and the result depends neither on the order nor on the batches. Memory for blocks of
numbers is reused from block to block, because the page faults of a new array cost more than the work. Numbers pass
between Arrow and NumPy by their buffers: `to_numpy` and `pa.array` import pandas, which takes 0.3 s, and Arrow takes
twice as long to leave out missing values.

`row_hashes` is a hash of 64 bits for each row, by what its values are: not by the names, the order or the width of its
columns. Numbers hash by their value in double precision, times by their moment, texts and tensors by their bytes. A
null equals NaN, and 0.0 equals -0.0. Different rows have the same hash by chance alone, or if their values are the same
in another order of the columns; such rows count as one where rows are compared with those of an earlier set.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Iterable
from fractions import Fraction
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.arrow_rows import decoded
from data_contracts.records import Bins, Dyadic, Moments, Sample

# Each thread has one buffer for each of these while it counts a block.
BLOCK, FLOATS, FIRST, SECOND = range(4)
# Longer texts are hashed one by one.
_SHORT = 256
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOWER = (1 << 33) - 1
MOST_BINS = 1024
# Wider ranges of bins are counted by hashing, not in an array.
SPAN = 1 << 17
_FIRST_PART = 4096
_MAGNITUDE = 0x7FFFFFFFFFFFFFFF
QUANTILES = ("0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99")
# Values that wait in all columns together, and in one, until they are a block.
_WAITING = 1 << 22
_LARGEST = 1 << 16
# float64 holds every whole number up to here.
EXACT = 2**53
# Different values that are all kept, and those that are kept of more (the estimate of their number is right to 6 %).
MOST_VALUES = 1024
KEPT = 256
# Characters of a text that is shown whole, and those that are shown of a longer one.
_LONGEST = 100
_SHOWN = 64
# Told apart before they are mixed: numbers, times, texts, lists, and what is missing.
_NUMBER, _WHOLE, _TIME, _TEXT, _LIST, _MISSING = (np.uint64(0x5851F42D4C957F2D * n % 2**64) for n in range(1, 7))
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_MICROSECONDS = _PER_SECOND["us"]


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.arrays = [np.empty(0, np.int64) for _ in range(4)]


_BUFFERS = _Buffers()


def buffer(number: int, size: int) -> NDArray[np.int64]:
    """The first `size` numbers of this thread's buffer, with any content; the next user of the buffer overwrites it."""
    if len(_BUFFERS.arrays[number]) < size:
        _BUFFERS.arrays[number] = np.empty(size, np.int64)
    return _BUFFERS.arrays[number][:size]


def without_nulls(column: pa.Array) -> NDArray[Any]:
    """The values of a column of integers, of floating point or of booleans (as 0 and 1), in order."""
    validity, values = column.buffers()
    if not len(column) or values is None:
        return np.empty(0)
    if pa.types.is_boolean(column.type):
        numbers = _bits(values, column)
    else:
        numbers = np.frombuffer(values, column.type.to_pandas_dtype())[column.offset :][: len(column)]
    return numbers if validity is None or not column.null_count else numbers[_bits(validity, column).view(bool)]


def as_arrow(numbers: NDArray[np.int64]) -> pa.Array:
    """The same memory as a column of int64."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _bits(buffer: pa.Buffer, column: pa.Array) -> NDArray[np.uint8]:
    """The bit of each row, as 0 or 1."""
    start, stop = column.offset, column.offset + len(column)
    packed = np.frombuffer(buffer, np.uint8)[start // 8 : -(-stop // 8)]
    return np.unpackbits(packed, bitorder="little")[start % 8 :][: len(column)]


Hashes = NDArray[np.uint64]


def mixed(numbers: Hashes) -> Hashes:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014), a bijection."""
    mixing = _mixed_but_for_the_last_step(numbers.copy())
    mixing ^= mixing >> np.uint64(31)
    return mixing


def _mixed_but_for_the_last_step(mixing: Hashes, shifted: Hashes | None = None) -> Hashes:
    """In place; `shifted` is memory for as many numbers. The last step leaves the upper 31 bits as they are."""
    shifted = np.right_shift(mixing, np.uint64(30), out=shifted)
    mixing ^= shifted
    mixing *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(mixing, np.uint64(27), out=shifted)
    mixing ^= shifted
    mixing *= np.uint64(0x94D049BB133111EB)
    return mixing


def of_patterns(patterns: NDArray[np.int64]) -> Hashes:
    """Hashes of float64 values, by their patterns (`ordered`)."""
    return mixed(patterns.view(np.uint64) + _GOLDEN)


def of_patterns_below(patterns: NDArray[np.int64], bound: int) -> Hashes:
    """The hashes below a bound, and few more; `patterns` may be the buffer FIRST, which is overwritten."""
    mixing, shifted = (buffer(number, len(patterns)).view(np.uint64) for number in (FIRST, SECOND))
    np.add(patterns.view(np.uint64), _GOLDEN, out=mixing)
    _mixed_but_for_the_last_step(mixing, shifted)
    least = mixing[mixing <= np.uint64(bound | _LOWER)]
    least ^= least >> np.uint64(31)
    return least


def of_texts(texts: pa.Array) -> Hashes:
    """Hashes of texts (large_string, no nulls) by their bytes, eight at a time for all texts together."""
    _, offset_buffer, data = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    starts, sizes = offsets[:-1], np.diff(offsets)
    held = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    first, last = int(offsets[0]), int(offsets[-1])
    padded = np.concatenate([held[first:last], np.zeros(8, np.uint8)])
    words = np.ndarray((len(padded) - 7,), "<u8", padded.tobytes(), 0, (1,))
    hashes = mixed(sizes.astype(np.uint64) + _GOLDEN)
    rows = np.flatnonzero((sizes > 0) & (sizes <= _SHORT))
    at = 0
    while len(rows):
        left = sizes[rows] - at
        word = words[starts[rows] - first + at]
        kept = np.minimum(left, 8).astype(np.uint64) * np.uint64(8)
        # A shift by 64 bits is not defined, so it is done in two steps.
        low = np.uint64(64) - kept
        word = (word << (low >> np.uint64(1))) << (low - (low >> np.uint64(1)))
        hashes[rows] = mixed(hashes[rows] ^ word)
        at += 8
        rows = rows[left > 8]
    for row in np.flatnonzero(sizes > _SHORT).tolist():
        text = held[int(starts[row]) : int(starts[row] + sizes[row])].tobytes()
        hashes[row] = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
    return hashes


Ints = NDArray[np.int64]


def ordered(values: NDArray[np.float64], *, positive: bool = False) -> Ints:
    """Integers in the order of the values, equal for equal values.

    Args:
        values: none of them is -0.0.
        positive: none of them is below zero; then this is their own memory, else the buffer FIRST.
    """
    patterns = values.view(np.int64)
    if positive:
        return patterns
    found, signs = (buffer(number, len(values)) for number in (FIRST, SECOND))
    np.right_shift(patterns, 63, out=signs)
    np.bitwise_and(signs, _MAGNITUDE, out=signs)
    return np.bitwise_xor(patterns, signs, out=found)


def _pattern(value: float) -> int:
    """The integer that `ordered` makes of a value."""
    pattern: int = struct.unpack("<q", struct.pack("<d", value + 0.0))[0]
    return pattern ^ (_MAGNITUDE if pattern < 0 else 0)


def value_of(pattern: int) -> float:
    """The value that `ordered` makes this integer of; of a pattern above infinity, infinity."""
    pattern = max(min(pattern, _MAGNITUDE), -_MAGNITUDE - 1)  # a wide bin's end may be beyond all patterns
    plain = pattern ^ (_MAGNITUDE if pattern < 0 else 0)
    value: float = struct.unpack("<d", struct.pack("<q", plain))[0]
    return math.copysign(math.inf, pattern) if math.isnan(value) else value


class BinCounter:
    """Counts values in at most MOST_BINS bins."""

    def __init__(self) -> None:
        self.shift = 0
        self._keys: Ints = np.empty(0, np.int64)
        self._counts: Ints = np.empty(0, np.int64)

    @property
    def patterns(self) -> Ints:
        """The bins; with shift 0, the patterns of all values so far."""
        return self._keys

    def add(self, patterns: Ints, low: float, high: float) -> None:
        """Count values.

        Args:
            patterns: from `ordered`.
            low, high: the least and the greatest of the values.
        """
        if not len(self._keys):
            # A small first part shows about how wide the bins are, so the rest is not counted to the last bit.
            first, patterns = np.sort(patterns[:_FIRST_PART]), patterns[_FIRST_PART:]
            self._merge(*_summed(first, np.ones(len(first), np.int64)))
        if len(patterns):
            keys = np.right_shift(patterns, self.shift, out=buffer(SECOND, len(patterns)))
            self._merge(*_counted(keys, *(_pattern(value) >> self.shift for value in (low, high))))

    def add_counts(self, patterns: Ints, counts: Ints) -> None:
        """Count ascending different values, so often each."""
        self._merge(*_summed(patterns >> self.shift, counts))

    def merge(self, other: Bins) -> None:
        """Add the counts of another part."""
        if not other.keys:
            return
        keys, counts = np.array(other.keys, np.int64), np.array(other.counts, np.int64)
        shift = max(self.shift, other.shift)
        self._coarsen(shift)
        self._merge(*_united(keys >> (shift - other.shift), counts))

    def record(self) -> Bins:
        """The bins as they are sealed."""
        return Bins(shift=self.shift, keys=self._keys.tolist(), counts=self._counts.tolist())

    def _merge(self, keys: Ints, counts: Ints) -> None:
        """Add counts of different bins of the current shift."""
        if len(self._keys):
            at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            if np.array_equal(self._keys[at], keys):  # as in nearly every block but the first
                self._counts[at] += counts
                return
        self._keys, self._counts = _united(np.concatenate([self._keys, keys]), np.concatenate([self._counts, counts]))
        if len(self._keys) > MOST_BINS:
            self._coarsen(self.shift + _bits_too_many(self._keys))

    def _coarsen(self, shift: int) -> None:
        if shift > self.shift and len(self._keys):
            self._keys, self._counts = _summed(self._keys >> (shift - self.shift), self._counts)
        self.shift = max(shift, self.shift)


def _counted(keys: Ints, low: int, high: int) -> tuple[Ints, Ints]:
    """The different integers, which lie between two, and how often each occurs; `keys` are changed."""
    if high - low < SPAN:
        keys -= low
        counts = np.bincount(keys)
        present = np.flatnonzero(counts > 0)
        return present + low, counts[present]
    found = as_arrow(keys).value_counts()
    return without_nulls(found.field("values")), without_nulls(found.field("counts"))


def _united(keys: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Ascending keys, each once, with the sums of their counts."""
    order = np.argsort(keys, kind="stable")
    return _summed(keys[order], counts[order])


def _summed(keys: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """The same for keys that ascend already, of which there is at least one."""
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[first], np.add.reduceat(counts, first)


def _bits_too_many(keys: Ints) -> int:
    """The least number of bits to drop from ascending keys, so that at most MOST_BINS different ones are left."""
    low, high = 1, 63
    while low < high:
        middle = (low + high) // 2
        if np.count_nonzero(np.diff(keys >> middle)) + 1 <= MOST_BINS:
            high = middle
        else:
            low = middle + 1
    return low


def edges(bins: Bins, key: int) -> tuple[float, float]:
    """The least value of a bin and the least above it; the value itself twice, if the bin holds one value."""
    low = value_of(key << bins.shift)
    return (low, low) if bins.shift == 0 else (low, value_of((key + 1) << bins.shift))


def quantiles(bins: Bins, minimum: float, maximum: float) -> dict[str, float]:
    """Quantiles by rank, straight between the edges of a bin and never outside the values' range."""
    total = sum(bins.counts)
    below = np.concatenate([[0], np.cumsum(bins.counts)]).tolist()
    found = {}
    for name in QUANTILES:
        rank = float(name) * (total - 1)
        at = int(np.searchsorted(below, rank, side="right")) - 1
        low, high = edges(bins, bins.keys[at])
        if not (math.isfinite(low) or math.isfinite(high)):
            continue  # an infinite value
        low, high = (min(max(edge, minimum), maximum) for edge in (low, high))
        inside = (rank - below[at] + 0.5) / bins.counts[at]
        found[name] = low if low == high else low + (high - low) * min(inside, 1.0)
    return found


def common(first: Bins, second: Bins) -> tuple[list[int], list[int], list[int], int]:
    """The bins of two profiles, made equally wide: ascending keys, counts of each profile, and the shift."""
    shift = max(first.shift, second.shift)
    one, two = (_by_key(bins, shift) for bins in (first, second))
    keys = sorted(one.keys() | two.keys())
    return keys, [one.get(key, 0) for key in keys], [two.get(key, 0) for key in keys], shift


def _by_key(bins: Bins, shift: int) -> dict[int, int]:
    counts: dict[int, int] = {}
    for key, count in zip(bins.keys, bins.counts, strict=True):
        wider = key >> (shift - bins.shift)
        counts[wider] = counts.get(wider, 0) + count
    return counts


Floats = NDArray[np.float64]


def block_of(columns: int) -> int:
    """Values in a block of a table with this number of columns: it follows from the data, so it changes no result."""
    return min(_LARGEST, 1 << max(_WAITING // max(columns, 1), 1).bit_length() - 1)


def exact(value: Fraction) -> Dyadic:
    """A fraction whose denominator is a power of two, as mantissa and exponent."""
    return _shortest((value.numerator, 1 - value.denominator.bit_length()))


def fraction(value: Dyadic) -> Fraction:
    """What `exact` was given."""
    mantissa, exponent = value
    return Fraction(mantissa) * (Fraction(2) ** exponent)


class MomentCounter:
    """Adds up finite values of one part, block by block."""

    def __init__(self) -> None:
        self._centre: float | None = None
        self._count = 0
        self._totals: list[float] = []
        self._squares: list[float] = []

    def add(self, block: Floats) -> None:
        """Add the finite values of a block."""
        if not len(block):
            return
        if self._centre is None:
            self._centre = float(block[0])
        with np.errstate(over="ignore", invalid="ignore"):
            distance = np.subtract(block, self._centre, out=buffer(FIRST, len(block)).view(np.float64))
            squares = np.multiply(distance, distance, out=buffer(SECOND, len(block)).view(np.float64))
            self._count += len(block)
            self._totals.append(_halved(distance))
            self._squares.append(_halved(squares))

    def add_whole(self, numbers: Ints, counts: Ints, first: int) -> bool:
        """Add a block of whole numbers by their counts, if no order of additions would round; else False.

        Args:
            numbers: ascending.
            first: the first value of the block.
        """
        centre = first if self._centre is None else self._centre
        if centre != int(centre) or abs(centre) > EXACT:
            return False
        distance = numbers - int(centre)
        furthest, count = max(-int(distance[0]), int(distance[-1])), int(counts.sum())
        if furthest * furthest * count > EXACT:
            return False
        self._centre = float(centre)
        self._count += count
        self._totals.append(float(distance @ counts))
        self._squares.append(float((distance * distance) @ counts))
        return True

    def record(self) -> Moments | None:
        """The sums; None without values, or if they are too large for float64."""
        if self._centre is None or not all(map(math.isfinite, (*self._totals, *self._squares))):
            return None
        centre, count = Fraction(self._centre), self._count
        total, squares = sum(map(Fraction, self._totals)), sum(map(Fraction, self._squares))
        return Moments(
            count=count,
            total=exact(total + count * centre),
            squares=exact(squares + 2 * centre * total + count * centre * centre),
        )


class MomentSum:
    """Adds up the sums of parts, exactly."""

    def __init__(self) -> None:
        self._count, self._total, self._squares = 0, (0, 0), (0, 0)

    def add(self, part: Moments) -> None:
        """Add a part."""
        self._count += part.count
        self._total, self._squares = _added(self._total, part.total), _added(self._squares, part.squares)

    def record(self) -> Moments | None:
        """The sums of all parts together; None without parts."""
        if not self._count:
            return None
        return Moments(count=self._count, total=_shortest(self._total), squares=_shortest(self._squares))


def _added(left: Dyadic, right: Dyadic) -> Dyadic:
    exponent = min(left[1], right[1])
    return (left[0] << (left[1] - exponent)) + (right[0] << (right[1] - exponent)), exponent


def _shortest(value: Dyadic) -> Dyadic:
    """As `exact` gives it: with an odd mantissa."""
    mantissa, exponent = value
    if not mantissa:
        return 0, 0
    zeros = (mantissa & -mantissa).bit_length() - 1
    return mantissa >> zeros, exponent + zeros


def mean_and_stdev(moments: Moments) -> tuple[float, float]:
    """Mean and standard deviation (divided by the number of values)."""
    mean = fraction(moments.total) / moments.count
    variance = fraction(moments.squares) / moments.count - mean * mean
    return float(mean), math.sqrt(max(variance, Fraction()))


def _halved(values: Floats) -> float:
    """The sum, by adding the second half to the first until one value is left; `values` are overwritten."""
    size = 1 << max(len(values) - 1, 0).bit_length()
    if size != len(values):
        values = np.concatenate([values, np.zeros(size - len(values))])
    while size > 1:
        size //= 2
        np.add(values[:size], values[size : 2 * size], out=values[:size])
    return float(values[0])


def label(text: str, hash_: int) -> str:
    """A text as the profile shows it: whole, or its beginning and its hash."""
    return text if len(text) <= _LONGEST else f"{text[:_SHOWN]}…{hash_:016x}"


class TextSample:
    """Different texts and the number of their rows."""

    def __init__(self) -> None:
        self._exact = True
        self._found: dict[str, tuple[int, int]] = {}  # label: hash and count

    def add(self, texts: pa.Array) -> None:
        """Count texts (large_string, no nulls)."""
        if not self._exact:
            hashes = of_texts(texts)
            below = hashes <= np.uint64(max(hash_ for hash_, _ in self._found.values()))
            if not below.any():
                return
            texts = texts.take(as_arrow(np.flatnonzero(below)))
        counted = texts.value_counts()
        self.add_counts(counted.field("values"), counted.field("counts").to_pylist())

    def add_counts(self, texts: pa.Array, counts: list[int]) -> None:
        """Count different texts (large_string, no nulls), so often each."""
        hashes = of_texts(texts)
        if self._exact and len(texts) > MOST_VALUES:
            self._exact = False
        if not self._exact and len(texts) > KEPT:
            least = np.sort(np.argpartition(hashes, KEPT - 1)[:KEPT])
            texts, counts, hashes = texts.take(as_arrow(least)), [counts[at] for at in least.tolist()], hashes[least]
        for text, hash_, count in zip(texts.to_pylist(), hashes.tolist(), counts, strict=True):
            name = label(text, hash_)
            self._found[name] = (hash_, self._found.get(name, (0, 0))[1] + count)
        self._trim()

    def merge(self, part: Sample) -> None:
        """Add the values of another part."""
        self._exact = self._exact and part.exact
        for name, hash_, count in zip(part.labels, part.hashes, part.counts, strict=True):
            self._found[name] = (hash_, self._found.get(name, (0, 0))[1] + count)
        self._trim()

    def _trim(self) -> None:
        self._exact = self._exact and len(self._found) <= MOST_VALUES
        if not self._exact and len(self._found) > KEPT:
            by_hash = sorted(self._found.items(), key=lambda one: (one[1][0], one[0]))
            self._found = dict(by_hash[:KEPT])

    def record(self) -> Sample:
        """The values as they are sealed, by their hashes."""
        found = sorted(self._found.items(), key=lambda one: (one[1][0], one[0]))
        return Sample(
            exact=self._exact,
            hashes=[hash_ for _, (hash_, _) in found],
            labels=[name for name, _ in found],
            counts=[count for _, (_, count) in found],
        )


class NumberSample:
    """The least hashes of numbers, once there are too many different ones for bins of one value."""

    def __init__(self) -> None:
        self._least: Hashes = np.empty(0, np.uint64)

    def add_patterns(self, patterns: NDArray[np.int64]) -> None:
        """Take numbers into account, by their patterns."""
        full = len(self._least) == KEPT
        self.add(of_patterns_below(patterns, int(self._least[-1])) if full else of_patterns(patterns))

    def add(self, hashes: Hashes) -> None:
        """Take hashes into account."""
        if len(self._least) == KEPT:
            hashes = hashes[hashes < self._least[-1]]
        if not len(hashes):
            return
        if len(hashes) > 16 * KEPT:  # most of a first block need not be sorted
            near = _different(hashes[hashes <= np.uint64(2**64 // len(hashes) * 4 * KEPT)])
            hashes = near if len(near) >= KEPT else hashes  # few values, often
        self._least = _different(np.concatenate([self._least, hashes]))[:KEPT]

    def record(self) -> Sample:
        """The hashes as they are sealed."""
        return Sample(exact=False, hashes=self._least.tolist())


def _different(hashes: Hashes) -> Hashes:
    """Each of at least one hash once, ascending; sorts `hashes`. (np.unique makes a hash table, which is slower.)"""
    hashes.sort()
    return hashes[np.concatenate([[True], hashes[1:] != hashes[:-1]])]


def distinct(sample: Sample) -> int:
    """The number of different values: exact, or estimated from the hashes (Bar-Yossef et al. 2002)."""
    if sample.exact or len(sample.hashes) < KEPT:
        return len(sample.hashes)
    return round((KEPT - 1) * 2**64 / (sample.hashes[-1] + 1))


def as_texts(column: pa.Array) -> pa.Array:
    """A column of text in one type, without nulls; pa.ArrowInvalid if it holds other bytes than UTF-8."""
    texts = pc.drop_null(column).cast(pa.large_string())
    texts.validate(full=True)
    return texts


def row_hashes(columns: Iterable[pa.Array]) -> Hashes:
    """The hash of each row: (rows,) uint64; there is at least one column."""
    total: Hashes | None = None
    for column in columns:
        found = mixed(value_hashes(column))
        total = found if total is None else total + found
    assert total is not None
    return mixed(total)


def value_hashes(values: pa.Array) -> Hashes:
    """The hash of each value of a column: (rows,) uint64."""
    values = decoded(values)
    type_ = values.type
    if pa.types.is_null(type_):
        return np.full(len(values), _MISSING)
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        hashes = _reals(_filled(values.cast(pa.float64()), 0.0))
        return _with_missing(hashes, pc.fill_null(pc.is_nan(values.cast(pa.float64())), True))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        hashes = _lists(values)
    elif pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        hashes = _wholes(values)
    elif pa.types.is_temporal(type_):
        hashes = _times(values)
    else:
        hashes = mixed(of_texts(_texts(values)) + _TEXT)
    return _with_missing(hashes, pc.is_null(values)) if values.null_count else hashes


def _filled(values: pa.Array, filling: float) -> NDArray[np.float64]:
    return np.asarray(values.fill_null(filling).to_numpy(zero_copy_only=False), np.float64)


def _with_missing(hashes: Hashes, missing: pa.Array) -> Hashes:
    hashes[missing.to_numpy(zero_copy_only=False)] = _MISSING
    return hashes


def _reals(numbers: NDArray[np.float64]) -> Hashes:
    return mixed((numbers + 0.0).view(np.uint64) + _NUMBER)  # -0.0 becomes 0.0


def _wholes(values: pa.Array) -> Hashes:
    """Whole numbers as double precision where that is exact, so that 1 is 1.0."""
    wide = pa.uint64() if pa.types.is_unsigned_integer(values.type) else pa.int64()
    numbers = values.cast(wide).fill_null(0).to_numpy(zero_copy_only=False)
    hashes = _reals(numbers.astype(np.float64))
    # Compared in the numbers' own type; the magnitude of the least int64 has none.
    large = (numbers > EXACT) if wide == pa.uint64() else (numbers > EXACT) | (numbers < -EXACT)
    if large.any():
        sign = (numbers[large] < 0).astype(np.uint64) * _GOLDEN
        hashes[large] = mixed(numbers[large].astype(np.uint64) + _WHOLE + sign)
    return hashes


def _times(values: pa.Array) -> Hashes:
    """Moments and lengths of time by microseconds, and what is left of nanoseconds."""
    type_ = values.type
    if pa.types.is_date32(type_):
        days = values.cast(pa.int32()).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return mixed((days * (86_400 * _MICROSECONDS)).view(np.uint64) + _TIME)
    narrow = pa.types.is_time32(type_)
    whole = values.cast(pa.int32()).cast(pa.int64()) if narrow else values.cast(pa.int64())
    numbers = whole.fill_null(0).to_numpy(zero_copy_only=False)
    unit = "ms" if pa.types.is_date64(type_) else type_.unit
    if unit != "ns":
        return mixed((numbers * (_MICROSECONDS // _PER_SECOND[unit])).view(np.uint64) + _TIME)
    micro, nano = np.divmod(numbers, 1000)
    return mixed(micro.view(np.uint64) + _TIME + nano.view(np.uint64) * _GOLDEN)


def _texts(values: pa.Array) -> pa.Array:
    """Texts and bytes as one array of large texts or bytes, whose offsets are 64 bits wide, without nulls."""
    if pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    large = pa.large_string() if pa.types.is_string(values.type) else pa.large_binary()
    return values.cast(large).fill_null("" if large == pa.large_string() else b"")


def _lists(values: pa.Array) -> Hashes:
    """Lists by the hashes of their values, each mixed with its place."""
    lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    inner = value_hashes(pc.list_flatten(values))
    starts = np.cumsum(lengths) - lengths
    places = np.arange(len(inner), dtype=np.int64) - np.repeat(starts, lengths)
    placed = mixed(inner + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(placed, dtype=np.uint64)])
    total = sums[starts + lengths] - sums[starts]
    return mixed(total + lengths.astype(np.uint64) + _LIST)
