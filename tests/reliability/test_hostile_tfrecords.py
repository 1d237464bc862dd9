"""TFRecord files that were damaged on purpose: each is read as it stands, or refused in one sentence."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.errors import TrainwrightError
from tests.support.shard_rows import shard_reader
from tests.support.splits import normalised
from tests.unit.training.formats import reference
from training import formats

MEMORY_BYTES = 2**30


def framed(message: bytes, length: int | None = None) -> bytes:
    """A record with right checksums, so that what is in it is looked at; its length may be a lie."""
    size = (len(message) if length is None else length).to_bytes(8, "little")
    # A record of those 8 bytes ends with their checksum.
    return size + reference.record(size)[-4:] + message + reference.record(message)[-4:]


def changed(message: bytes, draw: random.Random) -> bytes:
    """One message, damaged in one of the ways that a parser trips over."""
    data, at = bytearray(message), draw.randrange(len(message))
    kind = draw.randrange(6)
    if kind == 0:
        data[at] ^= 1 << draw.randrange(8)
    elif kind == 1:
        data[at : at + draw.randrange(1, 9)] = b"\xff" * draw.randrange(1, 12)  # a length of many digits
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        data[at:at] = data[draw.randrange(len(data)) :][: draw.randrange(1, 40)]
    elif kind == 4:
        data[at:at] = bytes([0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F])  # a field of 4 GiB
    else:
        data = bytearray(draw.randbytes(draw.randrange(0, 200)))
    return bytes(data)


def hostile(records: list[bytes], draw: random.Random) -> bytes:
    """A whole file: a message damaged under right checksums, or the framing itself."""
    if draw.random() < 0.7:
        chosen = draw.randrange(len(records))
        return b"".join(framed(changed(one, draw) if n == chosen else one) for n, one in enumerate(records))
    if draw.random() < 0.5:
        return b"".join(framed(one, draw.choice([0, 2**31, 2**40, 2**62, 2**64 - 1])) for one in records)
    return changed(b"".join(map(framed, records)), draw)


@pytest.mark.parametrize("files", [400, pytest.param(7_750, marks=pytest.mark.sweep)])
def test_a_hostile_tfrecord_is_refused_in_one_sentence_within_bounded_memory(tmp_path: Path, files: int) -> None:
    table = normalised(
        pa.table(
            {
                "image": pa.array([bytes(range(20 + n)) for n in range(8)]),
                "label": pa.array(range(8)),
                "weight": pa.array(np.linspace(0, 1, 8), pa.float32()),
                "words": pa.array([["a", "bc", "d" * n] for n in range(8)]),
            }
        )
    )
    path, draw = tmp_path / "shard.tfrecord", random.Random(7)
    formats.write_shard("tfrecord", table, path)
    good, records, at = path.read_bytes(), [], 0
    while at < len(good):
        size = int.from_bytes(good[at : at + 8], "little")
        records.append(good[at + 12 : at + 12 + size])
        at += size + 16
    assert b"".join(map(framed, records)) == good  # else nothing below gets past the checksums
    read = refused = 0
    sentences: set[str] = set()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(files):
        path.write_bytes(hostile(records, draw))
        try:
            shard_reader("tfrecord")(path, table.schema)
            read += 1
        except TrainwrightError as error:
            refused += 1
            sentences.add(str(error))
    print(f"\n{files} files: {read} read, {refused} refused")
    assert [text for text in sentences if "\n" in text or path.name not in text] == []
    assert refused > files / 2
    assert read
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before * 1024 < MEMORY_BYTES
