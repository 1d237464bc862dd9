"""Whose signed answers count: the spec's approvers and those whom the release key vouches for, and nobody in the store.

The attacker can write every file of the store and has a key pair, but neither the release key nor an approver's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from data_contracts.approvals import Answer, Protection
from data_contracts.errors import ApprovalPending, CorruptError, UsageError
from infra import approvals
from infra.approvals import protections, signed, signed_protection
from infra.models import registry
from infra.processes.environment import SIGNING_KEY
from infra.signing.keys import PRIVATE_FILE, PUBLIC_FILE, SigningKey
from infra.store import layout, open_store
from infra.store.folder import FolderBackend
from tasks.stages import approval
from tasks.stages.approval import protect, unprotect
from tests.support.signed import pair
from tests.unit.tasks.stages.test_approval import Waiting
from tests.unit.tasks.stages.test_promote import Place

NAMES = ("release", "ada", "mallory")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pair of keys for each name."""
    made = tmp_path_factory.mktemp("keys")
    for name in NAMES:
        pair(made / name)
    return made


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    """In a folder: the files of a checkpoint are read to be signed."""
    return Place(monkeypatch, FolderBackend(tmp_path / "store"))


@pytest.fixture
def keys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, SigningKey]:
    """The private keys by name; the release key is configured."""
    from infra.signing.keys import load_signing_key

    monkeypatch.setenv(SIGNING_KEY, str(folder / "release" / PRIVATE_FILE))
    # Its stand-ins of runs have no inputs; tests/unit/infra/signing/test_inputs.py is about those.
    monkeypatch.setattr(approval, "refuse_unsigned_inputs", lambda *_: None)
    return {name: load_signing_key(f"file:{folder / name / PRIVATE_FILE}", folder, "x") for name in NAMES}


def pems(*keys: SigningKey) -> list[str]:
    return [key.public.pem().decode() for key in keys]


def forge(place: Place, n: int, *keys: SigningKey, protected: bool = True) -> Protection:
    """A decision as only its author's own code writes it, in the place of number `n`."""
    made = Protection(
        model="tiny", alias="champion", protected=protected, keys=pems(*keys), by="cto", at="2026-11-25T10:00:00+00:00",
        reason="signed only",
    )  # fmt: skip
    put(place, n, made)
    return made


def put(place: Place, n: int, decision: Protection) -> None:
    path = layout.protection("tiny", "champion", n)
    place.store.forget(path)
    place.store.create_json(path, decision.to_json())


def given(run: Waiting, key: SigningKey) -> None:
    """An answer that is written past the command, which would refuse a stranger's key."""
    asked = run.question()
    mine = Answer(question=asked.digest, decision="approved", by="ada", via="cli", reason="seen", at=asked.asked_at)
    approvals.give(run.place.store, asked, signed(mine.model_copy(update={"about": asked.about}), key))


def test_the_release_key_vouches_for_the_approvers_and_the_receipt_says_so(
    place: Place, keys: dict[str, SigningKey]
) -> None:
    made = protect(place.store, "tiny", "champion", "cto", "x", pems(keys["ada"]), keys["release"])
    assert (made.n, made.signature is not None) == (0, True)
    run = Waiting(place, 1, manual=False)
    with pytest.raises(ApprovalPending, match="Answer with `trainwright approve run-1 --key FILE --reason WHY`"):
        run.resumed()
    run.answered(key=keys["ada"])
    approval = run.resumed().approval
    assert (approval.vouched, approval.keys) == ("protection", [keys["ada"].public.id])
    assert approval.public_key == pems(keys["ada"])[0]


ATTACKS: dict[str, tuple[Callable[[Place, dict[str, SigningKey]], object], str]] = {
    "a key of one's own, unsigned": (lambda place, keys: forge(place, 1, keys["mallory"]), "not signed, and"),
    "no protection any more": (lambda place, keys: forge(place, 1, protected=False), "not signed, and"),
    "the first decision replaced": (lambda place, keys: forge(place, 0, keys["mallory"]), "approvers' keys and is not"),
    "signed by a stranger": (
        lambda place, keys: put(
            place, 1, signed_protection(forge(place, 1, keys["mallory"]).model_copy(update={"n": 1}), keys["mallory"])
        ),
        "is signed by the key",
    ),
    "a key added to what was signed": (
        lambda place, keys: put(
            place, 0, protections(place.store, "tiny", "champion")[0].model_copy(update={"keys": pems(keys["mallory"])})
        ),
        "is not what was signed",
    ),
    "an earlier decision again": (
        lambda place, keys: [
            protect(place.store, "tiny", "champion", "cto", "y", pems(keys["release"]), keys["release"]),
            put(place, 2, protections(place.store, "tiny", "champion")[0]),
        ],
        "is not what was signed",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("act", "words"), ATTACKS.values(), ids=ATTACKS)
def test_a_writer_of_the_store_adds_no_approver(
    place: Place, keys: dict[str, SigningKey], act: Callable[[Place, dict[str, SigningKey]], object], words: str
) -> None:
    protect(place.store, "tiny", "champion", "cto", "x", pems(keys["ada"]), keys["release"])
    act(place, keys)
    Waiting(place, 1, manual=False).refused(words, CorruptError)
    assert registry.read_alias(place.store, "tiny", "champion") is None


def test_a_decision_that_a_receipt_names_cannot_be_deleted(place: Place, keys: dict[str, SigningKey]) -> None:
    protect(place.store, "tiny", "champion", "cto", "x", pems(keys["ada"]), keys["release"])
    Waiting(place, 1, manual=False).answered_and_resumed(keys["ada"])
    place.store.forget(layout.protection("tiny", "champion", 0))
    for attempt in (None, pems(keys["mallory"])):
        if attempt:
            forge(place, 0, keys["mallory"])
        Waiting(place, 2, manual=False).refused("is not the one that its newest receipt names", CorruptError)
    assert place.now() == (1, [])


def test_without_a_release_key_nothing_vouches_and_the_receipt_says_so(
    place: Place, keys: dict[str, SigningKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SIGNING_KEY)
    protect(place.store, "tiny", "champion", "cto", "x", pems(keys["ada"]))
    assert Waiting(place, 1, manual=False).answered_and_resumed(keys["ada"]).approval.vouched == ""


def test_a_plain_protection_of_an_earlier_version_still_asks(place: Place, keys: dict[str, SigningKey]) -> None:
    forge(place, 0)
    assert Waiting(place, 1, manual=False).answered_and_resumed().approval.keys == []


def test_once_a_decision_is_signed_the_next_must_be(place: Place, keys: dict[str, SigningKey]) -> None:
    protect(place.store, "tiny", "champion", "cto", "x", pems(keys["ada"]), keys["release"])
    for act in (protect, unprotect):
        with pytest.raises(UsageError, match="are signed, and no key is configured to sign the next one"):
            act(place.store, "tiny", "champion", "cto", "y")
    ended = unprotect(place.store, "tiny", "champion", "cto", "moved", keys["release"])
    assert ended.n == 1
    assert Waiting(place, 1, manual=False).resumed().approval is None


def test_the_spec_names_whose_answers_count(place: Place, keys: dict[str, SigningKey], folder: Path) -> None:
    run = Waiting(place, 1, manual=False, approvers=[f"file:{folder / 'ada' / PUBLIC_FILE}"])
    assert run.waits().approvers == [keys["ada"].public.id]
    with pytest.raises(UsageError, match="takes signed answers only"):
        run.answered()
    with pytest.raises(UsageError, match="is not one of the approvers' keys"):
        run.answered(key=keys["mallory"])
    run.answered(key=keys["ada"])
    assert run.resumed().approval.vouched == "spec"


@pytest.mark.parametrize("signed_too", [False, True])
def test_a_key_in_the_store_that_the_spec_does_not_name_approves_nothing(
    place: Place, keys: dict[str, SigningKey], folder: Path, signed_too: bool
) -> None:
    run = Waiting(place, 1, manual=False, approvers=[f"file:{folder / 'ada' / PUBLIC_FILE}"])
    asked = run.waits()
    both = pems(keys["ada"], keys["mallory"])
    if signed_too:
        protect(place.store, "tiny", "champion", "cto", "x", both, keys["release"])
    else:
        forge(place, 0, keys["ada"], keys["mallory"])
    given(run, keys["mallory"])
    run.refused("is not signed by an approver")
    assert approvals.stored_answer(place.store, asked) is not None


def test_an_id_suffices_if_the_store_has_the_key(place: Place, keys: dict[str, SigningKey]) -> None:
    with pytest.raises(UsageError, match="names only ids of keys, and the alias has no approvers' keys"):
        Waiting(place, 1, approvers=[keys["ada"].public.id]).answered_and_resumed()
    forge(place, 0, keys["mallory"], keys["ada"])
    run = Waiting(place, 2, approvers=[keys["ada"].public.id])
    assert run.answered_and_resumed(keys["ada"]).approval.vouched == "spec"


def test_no_key_is_left_if_spec_and_protection_agree_on_none(
    place: Place, keys: dict[str, SigningKey], folder: Path
) -> None:
    protect(place.store, "tiny", "champion", "cto", "x", pems(keys["release"]), keys["release"])
    run = Waiting(place, 1, manual=False, approvers=[f"file:{folder / 'ada' / PUBLIC_FILE}"])
    run.refused("Nobody could approve for tiny@champion: none of the keys", UsageError)
    assert approvals.latest_question(place.store, "run-1") is None, "nobody is asked whose answer could not count"


def test_a_key_file_that_others_can_write_names_nobody(
    place: Place, keys: dict[str, SigningKey], folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "ada.pub.pem"
    path.write_bytes((folder / "ada" / PUBLIC_FILE).read_bytes())
    path.chmod(0o666)
    run = Waiting(place, 1, approvers=[f"file:{path}"])
    run.refused("other users can change", UsageError)
    path.unlink()
    run.refused(r"promote\.approvers: the key file .* cannot be read", UsageError)


def test_a_signed_answer_says_what_it_is_about(place: Place, keys: dict[str, SigningKey], folder: Path) -> None:
    run = Waiting(place, 1, manual=False, approvers=[f"file:{folder / 'ada' / PUBLIC_FILE}"])
    asked = run.waits()
    run.answered(key=keys["ada"])
    stored = approvals.stored_answer(place.store, asked)
    said = json.loads(stored.signed_bytes)["about"]
    assert (said["model"], said["alias"], said["champion"]) == ("tiny", "champion", "")
    assert said["candidate"] == place.checkpoints[1].ref.id
    other = stored.about.model_copy(update={"alias": "other"}) if stored.about else None
    lying = signed(stored.model_copy(update={"about": other, "signature": None}), keys["ada"])
    path = layout.answer(asked.run_id, 0)
    place.store.forget(path)
    place.store.create_json(path, lying.to_json())
    run.refused("signed an answer about something else")


def test_a_signed_approval_counts_in_no_copy_of_its_store(
    place: Place, keys: dict[str, SigningKey], folder: Path, tmp_path: Path
) -> None:
    """The copy asks again; what a person signed there is for the copy."""
    run = Waiting(place, 1, manual=False, approvers=[f"file:{folder / 'ada' / PUBLIC_FILE}"])
    original = place.store
    asked = run.waits()
    run.answered(key=keys["ada"])
    assert asked.about.store == original.uri
    shutil.copytree(original.uri, tmp_path / "copy")
    place.store = open_store(str(tmp_path / "copy"))
    run.begin()
    again = run.waits()
    assert (again.n, again.about.store) == (1, place.store.uri)
    place.store = original
    run.begin()
    assert run.resumed().decision == "promoted"
