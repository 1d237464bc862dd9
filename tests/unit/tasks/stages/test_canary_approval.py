"""A canary whose promotion people must approve."""

from __future__ import annotations

import pytest

from data_contracts.alias_moves import ALIAS, Approval, CanaryEnd
from data_contracts.errors import ApprovalPending, ApprovalRefused, UsageError
from data_contracts.records import GateResult
from infra import approvals
from infra.models import canaries, registry
from tasks.stages.approval import answer, protect
from tasks.stages.canary import withdraw
from tests.support.standing_canary import ANN, CanaryPlace


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> CanaryPlace:
    return CanaryPlace(monkeypatch)


def test_an_approval_is_asked_for_when_the_canary_is_to_be_promoted(place: CanaryPlace) -> None:
    protect(place.store, "tiny", "champion", "ann", "it is in the shop")
    place.more = {"approval_within": "36h"}
    with pytest.raises(ApprovalPending):
        place.promoted(1)
    answer(place.store, place.question("run-1"), "approved", "ada", "first")
    place.promoted(1)
    assert place.promoted(2).decision == "canary", "nobody is asked before it moves the champion"
    with pytest.raises(ApprovalPending):
        place.night(0, 400, run_id="asks")
    asked = place.question("asks")
    assert (asked.candidate, asked.champion_version) == (place.checkpoints[2].ref, 1)
    assert [one.met for one in asked.gates] == [True]
    other = place.night(400, 10, run_id="other")
    assert "its promotion waits for an answer to the run asks before" in other.sentence
    place.passes(days=1)
    answer(place.store, place.question("asks"), "approved", "ada", "seen")
    place.passes(days=30)
    receipt = place.night(410, 10, run_id="asks")
    assert (receipt.decision, receipt.version, receipt.approval.by) == ("promoted", 2, "ada")


@pytest.mark.parametrize("first", ["canary", "candidate"])
def test_a_candidate_without_a_canary_leaves_the_canary_s_question_open(place: CanaryPlace, first: str) -> None:
    place.promoted(1, canary=False)
    place.more = {"approval": "manual"}
    assert place.promoted(2).decision == "canary"
    with pytest.raises(ApprovalPending):
        place.night(0, 400, run_id="asks")
    for run_id in ("plain-1", "plain-2"):  # the second supersedes the first, as ever
        with pytest.raises(ApprovalPending):
            place.promoted(5, run_id, canary=False)
    assert approvals.superseded_by(place.store, place.question("plain-2")) == ["plain-1"]
    if first == "canary":
        answer(place.store, place.question("asks"), "approved", "ada", "seen")
        assert place.night(400, 10, run_id="asks").version == 2
        with pytest.raises(ApprovalPending):  # the champion is another one now
            place.promoted(5, "plain-2", canary=False)
        assert (place.question("plain-2").champion_version, place.named()) == (2, 2)
    else:
        answer(place.store, place.question("plain-2"), "approved", "ada", "urgent")
        assert place.promoted(5, "plain-2", canary=False).decision == "promoted"
        assert place.night(400, 10, run_id="asks").decision == "canary", "it stands on, beside the new champion"


@pytest.mark.parametrize("by", ["the run that asked", "another run"])
def test_a_refused_canary_is_withdrawn(place: CanaryPlace, by: str) -> None:
    place.promoted(1, canary=False)
    place.more = {"approval": "manual"}
    place.promoted(2)
    with pytest.raises(ApprovalPending):
        place.night(0, 400, run_id="asks")
    answer(place.store, place.question("asks"), "refused", "ada", "not now")
    if by == "another run":
        assert place.night(0, 400, n=1, run_id="other").decision == "unchanged"
    else:
        with pytest.raises(ApprovalRefused, match='ada refused it at .*: "not now"; tiny@champion stays at version 1'):
            place.night(0, 400, run_id="asks")
    assert (place.named(), place.named(ALIAS), place.held()) == (1, None, [2])
    assert "ada refused it" in place.history()[-1].sentence


@pytest.mark.parametrize("approved", ["nobody", "a forged person"])
def test_an_end_that_somebody_wrote_into_the_store_promotes_nothing_without_an_approval(
    place: CanaryPlace, approved: str
) -> None:
    canary = place.stands()
    protect(place.store, "tiny", "champion", "ann", "it is in the shop")
    named = registry.read_alias(place.store, "tiny", "champion")
    assert named is not None
    forged = {"run_id": "x", "n": 0, "question": "", "by": "eve", "via": "cli", "reason": "", "at": place.now()}
    end = CanaryEnd(
        outcome="promoted", reason="a better", by="eve", at=place.now(), run_id="x",
        champion_receipt=named[0].value["receipt"],
        approval=None if approved == "nobody" else Approval(**forged),
        gate=GateResult(metric="a", met=True, value=1, bound=0, sentence=""),
    )  # fmt: skip
    canaries.end(place.store, canary, end)
    with pytest.raises(UsageError, match="is being promoted by the run x, which was first"):
        withdraw(place.store, "tiny", "it is slow", ANN)
    assert place.night(0, 10, n=1).decision == "unchanged"
    assert (place.named(), place.named(ALIAS)) == (1, None)
    assert place.history()[-1].sentence.endswith("but the approval that this needs is not in the store")
