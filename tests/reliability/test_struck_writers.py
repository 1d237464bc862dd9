"""Aliases and leases under kills and stops: no confirmed move is lost, and no two processes hold one lease."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.models.registry import history
from infra.store import open_store
from tests.support.struck_writers import ALIAS, MODEL, strike, write_versions


@pytest.mark.parametrize(("moves", "strikes"), [(40, 3), pytest.param(2_532, 40, marks=pytest.mark.sweep)])
def test_no_move_of_an_alias_is_lost_or_made_twice(tmp_path: Path, moves: int, strikes: int) -> None:
    store = open_store(str(tmp_path / "store"))
    write_versions(store)
    struck = strike("alias", tmp_path / "store", tmp_path / "logs", enough=moves, strikes=strikes)
    receipts = history(store, MODEL, ALIAS)
    chain = [receipt.sentence.removeprefix("move ") for receipt in receipts]
    made = {words[1] for _, _, words in struck.said if words[0] == "made"}
    lost = {words[1] for _, _, words in struck.said if words[0] == "lost"}
    print(f"\n{len(made)} moves made, {len(lost)} lost to another, {struck.kills} kills, {struck.stops} stops")
    assert len(made) >= moves
    assert len(chain) == len(set(chain))
    assert made - set(chain) == set(), "said to be made, and not in the history"
    assert lost & set(chain) == set(), "said to be lost, and in the history"
    # The last move of a killed writer may have been made unconfirmed; every other move was confirmed.
    assert len(set(chain) - made) <= struck.kills + 4
    assert [receipt.previous for receipt in receipts] == [None, *(receipt.version for receipt in receipts[:-1])]


@pytest.mark.parametrize(("takes", "strikes"), [(20, 3), pytest.param(220, 40, marks=pytest.mark.sweep)])
def test_no_two_hold_one_lease(tmp_path: Path, takes: int, strikes: int) -> None:
    open_store(str(tmp_path / "store"))
    struck = strike("lease", tmp_path / "store", tmp_path / "logs", enough=takes, strikes=strikes)
    taken = [(int(words[1]), at) for at, _, words in struck.said if words[0] == "made"]
    tokens = [token for token, _ in taken]
    print(f"\n{len(taken)} takes, {struck.kills} kills, {struck.stops} stops")
    assert len(tokens) == len(set(tokens)), "one token for two"
    taken_at = dict(taken)
    began: dict[tuple[str, int], float] = {}
    for at, process, words in struck.said:
        token = int(words[1])
        if words[0] == "renewing":
            began[process, token] = at
        elif words[0] == "renewed" and (next_at := min((taken_at[t] for t in tokens if t > token), default=None)):
            # A renewal that began when the next one already held the lease must not succeed.
            assert began[process, token] <= next_at, f"token {token} was renewed after a later one was taken"
