"""Bands: the length that the similarity allows, and minima that do not depend on what is hashed together."""

from __future__ import annotations

import random

import numpy as np
import pytest

from training.contamination import near
from training.contamination.near import Bands, banding


@pytest.mark.parametrize("similarity", [0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0])
def test_few_pairs_at_the_similarity_share_no_band(similarity: float) -> None:
    bands, length = banding(similarity)
    assert bands * length <= near.MINIMA
    assert (1 - similarity**length) ** bands <= near.MISSED


def test_a_text_has_the_same_bands_beside_any_others(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(2)
    texts = ["".join(draw.choices("abcé \U0001f600", k=draw.randint(1, 300))) for _ in range(50)]
    together = Bands(0.8, 5).of(texts)
    assert np.array_equal(together, np.concatenate([Bands(0.8, 5).of([one]) for one in texts]))
    monkeypatch.setattr(near, "CHUNK", 100)
    assert np.array_equal(together, Bands(0.8, 5).of(texts))


def test_equal_minima_are_as_frequent_as_the_similarity() -> None:
    draw = random.Random(3)
    bands = Bands(1.0, 5)  # one band of all minima
    shares = []
    for _ in range(60):
        words = ["".join(draw.choices("abcdefghij", k=5)) for _ in range(60)]
        other = [*words[:40], *("".join(draw.choices("klmnopqrst", k=5)) for _ in range(20))]
        a, b = " ".join(words), " ".join(other)
        one, two = ({t[i : i + 5] for i in range(len(t) - 4)} for t in (a, b))
        minima = np.empty((2, near.MINIMA), np.uint32)
        bands._minima([a, b], minima)
        shares.append((minima[0] == minima[1]).mean() - len(one & two) / len(one | two))
    assert abs(np.mean(shares)) < 0.02
