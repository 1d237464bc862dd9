"""The rows that the zoo's modules train on: a table with columns of many kinds, small enough to learn in seconds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

CLASSES = 3
WORDS = 50


def table(count: int, seed: int) -> pa.Table:
    """`count` rows.

    x: 16 floats; a, b: numbers; label: one of 3 classes that x decides; yes: 0 or 1; y: a number; tags: 3 numbers of
    0 and 1; tokens: 3 to 9 words below 50; word: a single one.
    """
    draw = np.random.RandomState(seed)
    x = draw.standard_normal((count, 16)).astype(np.float32)
    scores = x @ np.random.RandomState(0).standard_normal((16, CLASSES))
    tokens = [draw.randint(1, WORDS, size) for size in draw.randint(3, 10, count)]
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "x": pa.array(list(x), pa.list_(pa.float32())),
            "a": pa.array(x[:, 0].astype(np.float64)),
            "b": pa.array(x[:, 1].astype(np.float64)),
            "label": pa.array(scores.argmax(1)),
            "yes": pa.array((x.sum(1) > 0).astype(np.int64)),
            "y": pa.array(x.sum(1).astype(np.float64) / 4),
            "tags": pa.array(list((scores > 0).astype(np.float32)), pa.list_(pa.float32())),
            "tokens": pa.array([row.tolist() for row in tokens], pa.list_(pa.int64())),
            "word": pa.array([int(row[0]) for row in tokens], pa.int64()),
        }
    )
