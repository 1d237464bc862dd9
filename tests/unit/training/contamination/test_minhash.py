"""Bands: as long as the similarity allows; equal minima are as frequent as the similarity."""

from __future__ import annotations

import random

import pytest

from training.contamination import near
from training.contamination.near import banding, bands_of, shingles_of


@pytest.mark.parametrize("similarity", [0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0])
def test_few_pairs_at_the_similarity_share_no_band(similarity: float) -> None:
    bands, length = banding(similarity)
    assert bands * length <= near.MINIMA
    assert (1 - similarity**length) ** bands <= near.MISSED


def test_a_shared_band_is_as_frequent_as_the_similarity_says() -> None:
    """Each band of each pair is equal with the probability of the pair's similarity to the power of the minima."""
    draw, (bands, length) = random.Random(3), banding(0.8)
    shares, expected = [], []
    for _ in range(200):
        words = ["".join(draw.choices("abcdefghij", k=5)) for _ in range(60)]
        texts = [" ".join(words), " ".join([*words[:54], *("".join(draw.choices("klmnop", k=5)) for _ in range(6))])]
        digests = bands_of(texts, 0.8, 5)
        assert digests.shape == (2, bands)
        assert digests.tolist() == [bands_of([text], 0.8, 5)[0].tolist() for text in texts]
        shares.append((digests[0] == digests[1]).mean())
        here, there = (shingles_of(text, 5) for text in texts)
        expected.append((len(here & there) / len(here | there)) ** length)
    assert abs(sum(shares) - sum(expected)) / len(shares) < 0.03
