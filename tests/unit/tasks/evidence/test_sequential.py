"""Fresh rows that are tallied night by night, and what they say at any time."""

from __future__ import annotations

import json

import numpy as np

from tasks.evidence.sequential import Tally, decide


def test_a_clear_gain_is_better_and_a_clear_loss_is_worse() -> None:
    assert decide(Tally(won=30, lost=10, tied=960), confidence=0.95).verdict == "better"
    assert decide(Tally(won=10, lost=30, tied=960), confidence=0.95).verdict == "worse"
    assert decide(Tally(won=21, lost=20, tied=959), confidence=0.95).verdict == "open"


def test_nothing_is_open() -> None:
    found = decide(Tally(), confidence=0.95)
    assert (found.verdict, found.gain, found.interval, found.rows, found.rows_to_go) == ("open", None, None, 0, None)


def test_a_tally_is_read_as_it_was_written() -> None:
    losses = np.random.default_rng(1).exponential(size=(2, 40))
    tally = Tally(3, 2, 1) + Tally.of(*losses, larger_is_better=False)
    assert Tally.from_json(json.loads(json.dumps(tally.to_json()))) == tally
