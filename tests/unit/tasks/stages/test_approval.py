"""promote asks before it moves an alias: once for each champion, and it takes no answer for another."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from data_contracts.approvals import Answer, Question
from data_contracts.errors import ApprovalPending, ApprovalRefused, CorruptError, OnHold, UsageError
from infra import approvals
from infra.approvals import signed, signing_key
from infra.audit import now
from infra.models import registry
from infra.signing.keys import SigningKey, sign_bytes
from infra.store import layout
from tasks.stages import approval as stage
from tasks.stages.approval import answer, open_question, protect, unprotect
from tasks.stages.promote import promote
from tasks.stages.rollback import release, rollback
from tests.support.signed import pair
from tests.unit.tasks.stages.test_promote import ANN, Place, gate, scored
from tests.unit.tasks.stages.test_promote import place as place


class Waiting:
    """A run of `place` that asks, each time it is resumed."""

    def __init__(self, place: Place, n: int, *, manual: bool = True, **changes: Any) -> None:
        """It begins with other fields of `promote`, as another run, or by another trigger if `changes` says so."""
        self.place, self.n = place, n
        self._begun: dict[str, Any] = {
            "run_id": f"run-{n}",
            "recorded": True,
            "approval": "manual" if manual else "none",
            "approval_within": "36h",
            **changes,
        }
        self.begin()

    def begin(self) -> None:
        asks = dict(self._begun)
        self.run = self.place.run(asks.pop("run_id"), gate(min=0.5), gate(min_gain=0.0), **asks)

    def resumed(self) -> Any:
        return promote.find_or_make(self.run, self.place.checkpoints[self.n], None, scored(self.n)).handoff

    def refused(self, words: str = ".", kind: type[Exception] = ApprovalRefused) -> None:
        """Resume it, which is refused with these words."""
        with pytest.raises(kind, match=words):
            self.resumed()

    def question(self) -> Question:
        return approvals.latest_question(self.place.store, self.run.run_id)

    def waits(self) -> Question:
        with pytest.raises(ApprovalPending):
            self.resumed()
        return self.question()

    def answered_and_resumed(self, key: SigningKey | None = None) -> Any:
        self.waits()
        self.answered(key=key)
        return self.resumed()

    def answered(self, decision: Any = "approved", key: SigningKey | None = None) -> None:
        answer(self.place.store, open_question(self.place.store, self.run.run_id), decision, "ada", "seen", key)


def test_a_run_asks_once_waits_and_is_promoted_with_the_approval_in_its_receipt(place: Place) -> None:
    run = Waiting(place, 1, manual=False, require=["approved"])  # as approval: manual
    assert stage.pending(run.run) is None
    asked = run.waits()
    assert stage.pending(run.run) == asked
    assert (asked.n, asked.champion, asked.candidate) == (0, None, place.checkpoints[1].ref)
    assert [one.met for one in asked.gates] == [True, True]
    span = datetime.fromisoformat(asked.deadline) - datetime.fromisoformat(asked.asked_at)
    assert span == timedelta(hours=36)
    assert run.waits() == asked, "asked once"
    assert registry.read_alias(place.store, "tiny", "champion") is None
    assert place.store.list(layout.models("tiny")) == [], "no version before the answer"
    run.answered()
    assert stage.pending(run.run) is None
    receipt = run.resumed()
    assert receipt.version == 1
    approval = receipt.approval
    assert (approval.by, approval.reason, approval.via, approval.n) == ("ada", "seen", "cli", 0)
    assert approval.question == asked.digest
    assert registry.history(place.store, "tiny", "champion")[-1].approval == approval


def test_a_refusal_is_final(place: Place) -> None:
    run = Waiting(place, 1)
    run.waits()
    run.answered("refused")
    for _ in range(2):
        run.refused(r'ada refused it at .*: "seen"; tiny@champion names no version\.')


def test_an_answer_after_the_deadline_is_refused_for_every_reader(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Waiting(place, 1)
    asked = run.waits()
    late = (datetime.fromisoformat(asked.deadline) + timedelta(seconds=1)).astimezone(UTC).isoformat()
    monkeypatch.setattr(approvals, "time_of", lambda _: late)
    with pytest.raises(ApprovalRefused, match="came too late: nobody answered before the deadline"):
        run.answered()
    # This reader's clock says that there is time left.
    run.refused("nobody answered before the deadline")


@pytest.mark.parametrize("ahead", [False, True])
def test_the_store_s_clock_says_what_is_late_whatever_that_of_a_machine_says(
    place: Place, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    run = Waiting(place, 1)
    deadline = datetime.fromisoformat(run.waits().deadline)
    in_store, here = (deadline + timedelta(hours=-1 if ahead == by_store else 1) for by_store in (True, False))
    monkeypatch.setattr(type(place.store), "now_s", lambda _: in_store.timestamp())
    monkeypatch.setattr(stage, "now", here.isoformat)
    if ahead:
        run.answered()
        assert run.resumed().decision == "promoted"
    else:
        with pytest.raises(ApprovalRefused, match="came too late"):
            run.answered()


def test_gates_are_computed_again_and_a_person_asked_again_if_the_champion_moved(place: Place) -> None:
    waiting = Waiting(place, 2)
    first = waiting.waits()
    place.promoted(1)
    waiting.answered()
    again = waiting.waits()
    assert (again.n, again.champion, again.champion_version) == (1, place.version(1), 1)
    assert place.compared == [(2, 1, ["a"])], "with the new champion"
    assert again.digest != first.digest
    waiting.answered()
    receipt = waiting.resumed()
    assert (receipt.version, receipt.previous, receipt.approval.n) == (2, 1, 1)


def test_a_stage_command_has_no_run_that_could_wait(place: Place) -> None:
    Waiting(place, 1, recorded=False).refused("leaves no run that could wait", UsageError)
    assert place.compared == []


def test_a_protected_alias_asks_although_the_spec_does_not(place: Place) -> None:
    protect(place.store, "tiny", "champion", "cto", "it is in the shop")
    assert Waiting(place, 1, manual=False).answered_and_resumed().approval.by == "ada"
    unprotect(place.store, "tiny", "champion", "cto", "moved")
    assert Waiting(place, 2, manual=False).resumed().approval is None


def test_a_rollback_of_a_protected_alias_needs_a_reason(place: Place) -> None:
    place.promoted(1)
    place.promoted(2)
    protect(place.store, "tiny", "champion", "cto", "it is in the shop")
    with pytest.raises(UsageError, match="is protected, so a rollback needs a reason"):
        rollback(place.store, "tiny", "champion", None, ANN)
    assert place.now() == (2, [])
    rollback(place.store, "tiny", "champion", None, ANN, "recall fell")
    assert place.now() == (1, [2])


def test_decisions_about_protection_are_kept_and_a_gap_is_damage(place: Place) -> None:
    for k in range(3):
        protect(place.store, "tiny", "champion", "cto", f"reason {k}")
    found = approvals.protections(place.store, "tiny", "champion")
    assert [one.reason for one in found] == ["reason 0", "reason 1", "reason 2"]
    assert datetime.fromisoformat(found[-1].at) <= datetime.fromisoformat(now())
    place.store.create_json(layout.protection("tiny", "champion", 4), found[0].to_json())
    Waiting(place, 1, manual=False).refused(r"3\.json is missing", CorruptError)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[SigningKey]:
    """Three private keys: of two approvers and of a stranger; two algorithms."""
    folder = tmp_path_factory.mktemp("keys")
    made = [pair(folder / str(n))[0] for n in range(2)]
    path = folder / "ed25519.pem"
    private = Ed25519PrivateKey.generate()
    path.touch(0o600)
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return [made[0], signing_key(str(path)), made[1]]


def with_approvers(place: Place, *keys: SigningKey) -> None:
    protect(place.store, "tiny", "champion", "cto", "signed only", [key.public.pem().decode() for key in keys])


def test_with_approvers_keys_only_their_signed_answers_count(place: Place, keys: list[SigningKey]) -> None:
    with_approvers(place, *keys[:2])
    run = Waiting(place, 1, manual=False)
    run.waits()
    with pytest.raises(UsageError, match="tiny@champion takes signed answers only"):
        run.answered()
    with pytest.raises(UsageError, match="is not one of the approvers' keys of tiny@champion"):
        run.answered(key=keys[2])
    assert run.waits() == run.question(), "neither was written"
    run.answered(key=keys[1])
    approval = run.resumed().approval
    assert approval.keys == [keys[1].public.id]
    assert f"signed with the key {keys[1].public.id[:16]}" in approval.sentence
    payload = base64.b64decode(approval.signature["payload"])
    assert json.loads(payload)["question"] == run.question().digest


FORGERIES: dict[str, Callable[[Answer, list[SigningKey]], Answer]] = {
    "not signed": lambda mine, keys: mine,
    "signed by a stranger": lambda mine, keys: signed(mine, keys[2]),
    "another decision": lambda mine, keys: signed(mine.model_copy(update={"decision": "refused"}), keys[0]).model_copy(
        update={"decision": "approved"}
    ),
    "another question": lambda mine, keys: signed(mine.model_copy(update={"question": "0" * 64}), keys[0]).model_copy(
        update={"question": mine.question}
    ),
    "another name": lambda mine, keys: signed(mine, keys[0]).model_copy(update={"by": "eve"}),
    "another type": lambda mine, keys: mine.model_copy(
        update={"signature": json.loads(sign_bytes(mine.signed_bytes, "application/json", keys[0]))}
    ),
    "no envelope": lambda mine, keys: mine.model_copy(update={"signature": {"payload": "e30="}}),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_answer_in_the_store_promotes_nothing(place: Place, keys: list[SigningKey], forgery: str) -> None:
    with_approvers(place, *keys[:2])
    run = Waiting(place, 1, manual=False)
    asked = run.waits()
    mine = Answer(question=asked.digest, decision="approved", by="ada", via="cli", reason="seen", at=asked.asked_at)
    approvals.give(place.store, asked, FORGERIES[forgery](mine, keys))
    run.refused()
    assert registry.read_alias(place.store, "tiny", "champion") is None


def test_a_signed_answer_is_not_an_answer_to_another_run(place: Place, keys: list[SigningKey]) -> None:
    with_approvers(place, keys[0])
    first, second = Waiting(place, 1, manual=False), Waiting(place, 2, manual=False)
    first.waits()
    first.answered(key=keys[0])
    asked = second.waits()
    stolen = Answer.from_json(place.store.read_json(layout.answer(first.run.run_id, 0)))
    for forged in (stolen, stolen.model_copy(update={"question": asked.digest})):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("infra.approvals.answer_to", lambda *_, forged=forged: forged)
            second.refused()


@pytest.mark.parametrize("field", ["alias", "model"])
def test_an_answer_to_a_question_that_the_run_did_not_ask_promotes_nothing(
    place: Place, keys: list[SigningKey], field: str
) -> None:
    with_approvers(place, keys[0])
    run = Waiting(place, 1, manual=False)
    asked = stage._question(run.run, (place.checkpoints[1], scored(1)), [], None, "", 0)
    approvals.ask(place.store, asked.model_copy(update={field: "other"}))
    run.answered(key=keys[0])
    run.refused("which the run run-1 does not promote to", CorruptError)
    assert registry.read_alias(place.store, "tiny", "champion") is None


def test_an_approval_does_not_survive_a_rollback_and_a_release(place: Place) -> None:
    place.promoted(1)
    waiting = Waiting(place, 2)
    first = waiting.waits()
    waiting.answered()
    place.promoted(2, run_id="other")
    rollback(place.store, "tiny", "champion", None, ANN, "recall fell")
    waiting.refused(kind=OnHold)
    release(place.store, "tiny", "champion", 2, "the test set was wrong", ANN)
    again = waiting.waits()
    assert (again.n, again.champion, again.candidate) == (1, first.champion, first.candidate), "the same comparison"
    assert again.state != first.state
    waiting.answered()
    assert waiting.resumed().approval.n == 1


def test_a_question_of_an_earlier_version_knows_no_state_of_the_alias(place: Place) -> None:
    run = Waiting(place, 1)
    run.waits()
    path = layout.question(run.run.run_id, 0)
    earlier = run.question().model_copy(update={"state": None})
    place.store.forget(path)
    place.store.create_json(path, earlier.to_json())
    run.answered()
    assert run.resumed().approval.question == earlier.digest


@pytest.mark.parametrize("field", ["sentence", "value", "bound"])
def test_a_question_that_shows_other_gates_is_asked_anew(place: Place, field: str) -> None:
    run = Waiting(place, 1)
    asked = run.waits()
    better = {"sentence": "a is 0.9999, at least the 0.5 asked for", "value": 0.9999, "bound": 0.1}[field]
    forged = asked.model_copy(
        update={"gates": [asked.gates[0].model_copy(update={field: better}), *asked.gates[1:]]}
    )  # fmt: skip
    path = layout.question(run.run.run_id, 0)
    place.store.forget(path)
    place.store.create_json(path, forged.to_json())
    run.answered()
    again = run.waits()
    assert (again.n, again.gates) == (1, asked.gates)


def test_what_the_rows_can_still_decide_does_not_ask_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Waiting(place, 1)
    asked = run.waits()
    run.answered()
    later = [one.model_copy(update={"ledger": "these rows decided 7 comparisons"}) for one in asked.gates]
    monkeypatch.setattr("tasks.stages.promote.judged", lambda *_: later)
    assert run.resumed().approval.n == 0
