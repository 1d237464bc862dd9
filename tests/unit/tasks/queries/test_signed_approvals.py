"""`prove --key` verifies an approver's signature again, and says what vouches for the approver's key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.alias_moves import Approval
from data_contracts.approvals import Answer, Question
from data_contracts.errors import CorruptError
from infra.approvals import signed
from infra.signing.keys import SigningKey
from tasks.queries.proof import prove
from tasks.stages.approval import protect
from tests.support.commands import output_of
from tests.support.signed import MODEL, SignedStore, pair

AT = "2026-11-25T10:00:00+00:00"


class Approved:
    """A store whose champion was approved by Ada, who signed; both keys are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ada, _, _ = pair(folder / "ada")
        release, _, self.public = pair(folder / "release")
        self.made = SignedStore(folder, release)

    def promoted(self, *, about: bool = True, key: SigningKey | None = None, **changes: Any) -> Approved:
        """Version 1, with an approval in which `changes` were made after it was signed."""
        version, evaluation = self.made.version(1)
        question = Question(
            run_id="r1", n=0, pipeline=MODEL, model=MODEL, alias="champion", candidate=version.checkpoint.ref,
            evaluation=evaluation.ref, champion=None, champion_version=None, asked_at=AT,
            deadline="2026-11-26T10:00:00Z",
        )  # fmt: skip
        said = question.about.model_copy(update=changes.pop("lie", {})) if about else None
        plain = Answer(
            question=question.digest, decision=changes.pop("decision", "approved"), by="ada", via="cli", reason="seen",
            at=AT, about=said,
        )  # fmt: skip
        answer = signed(plain, key or self.ada)
        approval = {
            **{"run_id": "r1", "n": 0, "question": question.digest, "by": "ada", "via": "cli", "reason": "seen"},
            **{"at": AT, "keys": [self.ada.public.id], "signature": answer.signature, "vouched": "spec"},
            **{"public_key": self.ada.public.pem().decode(), **changes},
        }
        self.made.move(version, evaluation.ref, "champion", approval=Approval.model_validate(approval))
        return self

    def said(self, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
        words = ["prove", f"{MODEL}@champion", "--store", str(self.made.root), "--key", str(self.public)]
        return output_of(capsys, *words, code=code)

    def sentence(self) -> str:
        (one,) = prove(self.made.store, MODEL, keys=[self.made.key.public] if self.made.key else []).signed.approvals
        return one.sentence


@pytest.fixture
def place(tmp_path: Path) -> Approved:
    return Approved(tmp_path)


def test_who_approved_with_which_key_and_what_vouches(place: Approved, capsys: pytest.CaptureFixture[str]) -> None:
    key = place.ada.public.id[:16]
    expected = f"  approval: ada approved version 1, signed with the key {key}…; the run's spec named the key\n"
    assert expected in place.promoted().said(capsys)


@pytest.mark.parametrize(
    ("vouched", "words"),
    [("", "nothing vouches for the key"), ("protection", "the release key signed the protection")],
)
def test_a_key_for_which_nothing_vouches_is_said_to_be_one(place: Approved, vouched: str, words: str) -> None:
    assert words in place.promoted(vouched=vouched).sentence()


def test_an_unsigned_approval_is_said_to_be_one(place: Approved) -> None:
    unsigned = {"signature": None, "keys": [], "public_key": "", "vouched": ""}
    assert "the name is as stated, and nobody signed it" in place.promoted(**unsigned).sentence()


LIES: dict[str, dict[str, Any]] = {
    "another name": {"by": "eve"},
    "another reason": {"reason": "it is fine"},
    "another time": {"at": "2026-11-25T10:00:01+00:00"},
    "another question": {"question": "0" * 64},
    "a refusal": {"decision": "refused"},
    "another alias": {"lie": {"alias": "canary"}},
    "another model": {"lie": {"model": "other"}},
    "another candidate": {"lie": {"candidate": "0" * 64}},
    "another champion": {"lie": {"champion": "0" * 64}},
    "other gates": {"lie": {"gates": "0" * 64}},
    "the id of another key": {"keys": ["0" * 64]},
}


@pytest.mark.parametrize("lie", LIES)
def test_an_approval_of_something_else_is_refused(
    place: Approved, lie: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "has a signed approval of something else than it says" in place.promoted(**LIES[lie]).said(capsys, code=6)


def test_the_signature_of_another_key_is_refused(place: Approved, tmp_path: Path) -> None:
    stranger, _, _ = pair(tmp_path / "stranger")
    with pytest.raises(CorruptError, match="is signed by the key"):
        place.promoted(key=stranger).sentence()


def test_a_receipt_of_an_earlier_version_is_verified_with_the_key_in_the_store(place: Approved) -> None:
    earlier = {"about": False, "public_key": "", "vouched": ""}
    assert "the signature was not verified again" in place.promoted(**earlier).sentence()
    protect(place.made.store, MODEL, "champion", "cto", "x", [place.ada.public.pem().decode()])
    said = place.sentence()
    assert "nothing vouches for the key" in said
    assert said.endswith("an earlier Trainwright signed only the digest of the question")


def test_a_key_in_a_receipt_that_is_none(place: Approved) -> None:
    with pytest.raises(CorruptError, match="names a key that cannot be read"):
        place.promoted(public_key="none").sentence()
