"""The verdict on a fault, and how it is shown."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from data_contracts.messages.gang import InjectedFault
from tasks.gameday import (
    FAULTS,
    NOT_TRIED,
    OUTCOME_COLUMNS,
    Outcome,
    Timeline,
    game_day_page,
    judged,
    kept_all,
    not_injected,
    not_tried,
    outcome_row,
    outcomes_in_words,
)
from tests.support.pictures import elements_of

STRUCK = InjectedFault(name="rank-killed", generation=0, rank=1, node=0, host="<b>", step=15, checkpoint="c")
GOOD = Timeline(STRUCK, 1_767_225_600.0, 1.24, "node_lost", 9.0, 10.5, 10)


def outcome(times: Timeline = GOOD, *, failure: str = "", same: bool | None = True) -> Outcome:
    return judged(FAULTS["rank-killed"], times, failure=failure, limit_s=5.0, nodes=2, same_weights=same)


KILLED = judged(
    FAULTS["conductor-killed"],
    replace(GOOD, cause="", noticed_s=2.0),
    failure="",
    limit_s=None,
    nodes=1,
    same_weights=True,
)


@pytest.mark.parametrize(
    ("found", "verdict", "why"),
    [
        (outcome(), "as promised", ""),
        (outcome(same=None), "as promised", ""),
        (outcome(replace(GOOD, noticed_s=6.0)), "as promised", ""),
        (outcome(replace(GOOD, noticed_s=6.3)), "slower than promised", "noticed after 6.3 s, promised are 5 s"),
        (outcome(replace(GOOD, cause="hung")), "not as promised", "the cause named is hung, not node_lost"),
        (outcome(same=False), "not as promised", "the final weights are not those of a training without a fault"),
        (
            outcome(replace(GOOD, noticed_s=None)),
            "not as promised",
            "nothing in the records shows that it was noticed",
        ),
        (outcome(failure="hung: it hangs"), "not recovered", "hung: it hangs"),
        (
            outcome(replace(GOOD, recovered_s=None)),
            "not recovered",
            "the training ended without a step after the fault",
        ),
        (outcome(Timeline()), "not injected", "no checkpoint was committed before the training ended"),
        (outcome(Timeline(), failure="oom: full"), "not injected", "oom: full"),
        (KILLED, "as promised", ""),  # a conductor that was killed names no cause
    ],
)
def test_the_verdict_is_what_the_records_say_against_what_is_promised(found: Outcome, verdict: str, why: str) -> None:
    assert (found.verdict, found.why, kept_all([outcome(), found])) == (verdict, why, verdict == "as promised")


def test_a_game_day_that_injected_nothing_kept_no_promise() -> None:
    refused = [not_tried(fault, "the store is not a folder") for fault in FAULTS.values()]
    assert not kept_all(refused)
    assert kept_all([outcome(), *refused])
    assert not kept_all([outcome(), not_injected(FAULTS["rank-hung"], "the time was used up")])


def test_the_figures_are_rounded_and_paid_for_every_node() -> None:
    found = outcome()
    assert (found.noticed_s, found.lost_steps, found.lost_node_s) == (1.2, 5, 21.0)
    assert (found.at, found.where) == ("2026-01-01T00:00:00+00:00", "rank 1 of node 0 (<b>), after step 15")
    left = ("rank-killed", "as promised", "1.2 s", "5.0 s", "9.0 s", "5", "21.0 s", "the same", "")
    assert (outcome_row(found), outcome_row(outcome(same=False))[7]) == (left, "different")
    assert outcome_row(not_tried(FAULTS["rank-hung"], "x"))[2:] == ("–", "–", "–", "–", "–", "–", "x")


def test_the_page_shows_every_fault_and_escapes_what_a_store_says() -> None:
    outcomes = [outcome(), not_tried(FAULTS["rank-hung"], "x")]
    assert outcomes_in_words(outcomes) == "1 fault injected, 1 recovered from as promised, 1 not injected."
    elements = elements_of(game_day_page("tiny", outcomes, datetime(2026, 11, 26, tzinfo=UTC), 75.0))
    assert {"b", "script"}.isdisjoint(elements.names)
    for text in (*OUTCOME_COLUMNS, "rank-hung", "rank 1 of node 0 (<b>), after step 15", NOT_TRIED["link-cut"]):
        assert text in elements.texts, text
