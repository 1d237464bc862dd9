"""BLAKE3 of many messages at once is BLAKE3, at every length around the edges of blocks, chunks and groups."""

from __future__ import annotations

import numpy as np
import pytest
from blake3 import blake3

from training.shard import key_digests
from training.shard.key_digests import digests


@pytest.mark.parametrize(
    "lengths",
    [[1], [64], [65], [1, 63, 64, 65, 127, 128, 129, 1023, 1024], [3, 1024, 1025, 5, 4000], list(range(1, 200)), []],
    ids=["byte", "block", "over", "edges", "long", "each", "none"],
)
@pytest.mark.parametrize("few", [0, 2**40], ids=["native", "one by one"])
def test_digests_are_those_of_a_hasher(lengths, few, monkeypatch):
    monkeypatch.setattr(key_digests, "FEW", few)
    draw = np.random.default_rng(7)
    messages = [draw.bytes(length) for length in lengths]
    data = np.frombuffer(b"..." + b"".join(messages), np.uint8)
    offsets = 3 + np.cumsum([0, *lengths], dtype=np.int64)
    made = digests(data, offsets)
    assert made.shape == (len(messages), 2)
    assert [row.tobytes() for row in made] == [blake3(message).digest(16) for message in messages]


def test_native_code_takes_over_once_there_were_many(monkeypatch):
    together, made = key_digests._together, []
    monkeypatch.setattr(key_digests, "FEW", 10)
    monkeypatch.setattr(key_digests, "_digested", 0)
    monkeypatch.setattr(key_digests, "_together", lambda *messages: made.append(1) or together(*messages))
    data, offsets = np.arange(8, dtype=np.uint8), np.arange(9, dtype=np.int64)
    first = digests(data, offsets)
    assert not made
    assert digests(data, offsets).tolist() == first.tolist()
    assert made
