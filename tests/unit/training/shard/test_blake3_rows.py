"""BLAKE3 of many messages at once is BLAKE3, at every length around the edges of blocks, chunks and strips."""

from __future__ import annotations

import numpy as np
import pytest
from blake3 import blake3

from training.shard import blake3_rows
from training.shard.blake3_rows import digests


@pytest.mark.parametrize(
    "lengths",
    [[1], [64], [65], [1, 63, 64, 65, 127, 128, 129, 1023, 1024], [3, 1024, 1025, 5, 4000], list(range(1, 200)), []],
    ids=["byte", "block", "over", "edges", "long", "each", "none"],
)
@pytest.mark.parametrize("together", [4, 2**13])
def test_digests_are_those_of_a_hasher(lengths, together, monkeypatch):
    monkeypatch.setattr(blake3_rows, "_TOGETHER", together)
    draw = np.random.default_rng(7)
    messages = [draw.bytes(length) for length in lengths]
    data = np.frombuffer(b"..." + b"".join(messages), np.uint8)
    offsets = 3 + np.cumsum([0, *lengths], dtype=np.int64)
    made = digests(data, offsets)
    assert made.shape == (len(messages), 2)
    assert [row.tobytes() for row in made] == [blake3(message).digest(16) for message in messages]
