"""Questions to people before a promotion, their answers, and the aliases that ask for them whatever a spec says.

A question and its answer are created once each; whoever writes an answer, the first one counts. Each alias has a list
of the questions about it, so that a new one supersedes those that nobody has answered, and a person is not asked again
what they refused. Who decides to ask is in `tasks`.

Which aliases are protected lies in the store, so that a spec cannot leave the protection out. Each decision is a record
of its own, created once and never deleted; the newest one holds, and each receipt of the alias names it, so that it
cannot be deleted or replaced later.

Signed answers and protections are envelopes (DSSE) that count only with an approver's key, or with the release key. The
signing libraries are imported only where something is signed or an alias has approvers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from data_contracts.approvals import PAYLOAD_TYPE, PROTECTION_TYPE, Answer, Protection, Question, expired, is_late
from data_contracts.canonical import canonical, digest, valid_name
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from infra.records.receipts import pointed_at
from infra.signing.keys import (
    PublicKey,
    SigningKey,
    load_public_key,
    load_signing_key,
    parse_public_key,
    signature_fault,
    signed_record,
    verify,
)
from infra.store import Store, layout
from infra.store.records import parsed
from infra.store.store import numbers

# Each question supersedes the open ones before it, so few of the newest are open.
_MOST_OPEN, _MOST_REFUSED = 20, 50


@dataclass(frozen=True)
class Approvers:
    """Whose signed answers count for an alias.

    Attributes:
        name: the model and its alias.
        keys: the approvers' keys by their ids; {} if answers need no signature.
        vouched: what vouches for the keys, as `Approval.vouched` says.
    """

    name: str
    keys: Mapping[str, PublicKey]
    vouched: Literal["", "spec", "protection"] = ""

    def fault(self, question: Question, answer: Answer) -> str:
        """Why the answer does not count, as the end of a sentence; "" if an approver signed it, or none needs to."""
        if not self.keys:
            return ""
        if answer.signature is None:
            return f"the answer of {answer.by} is not signed, and {self.name} takes signed answers only"
        try:
            payload = payload_of(answer.signature, list(self.keys.values()))
        except CorruptError as error:
            return f"the answer of {answer.by} is not signed by an approver: {error.message.rstrip('.')}"
        if payload != answer.signed_bytes:
            return f"the answer of {answer.by} is not what was signed"
        if answer.about is not None and answer.about != question.about:
            return f"{answer.by} signed an answer about something else"
        return ""

    def pem_of(self, answer: Answer) -> str:
        """The public key that signed an answer without a fault, in PEM; "" if none need sign."""
        if not self.keys or answer.signature is None:
            return ""
        return self.keys[answer.signature["signatures"][0]["keyid"]].pem().decode()


def payload_of(signature: Mapping[str, object], keys: Sequence[PublicKey]) -> bytes:
    """What an answer's signature covers; CorruptError if it is not an envelope that one of the keys signed."""
    return verify(canonical(signature), PAYLOAD_TYPE, keys, "the answer").payload


def public_pem(path: str) -> str:
    """The public key in a file, in PEM as a protection keeps it; UsageError if it is anything else."""
    return load_public_key(path, "--key").pem().decode()


def signing_key(named: str) -> SigningKey:
    """The private key that `--key` names: a path, `file:PATH` or `env:NAME`. UsageError if it cannot be used."""
    return load_signing_key(named if named.startswith(("file:", "env:")) else f"file:{named}", Path.cwd(), "--key")


def signed(answer: Answer, key: SigningKey) -> Answer:
    """The answer with a signature over all its other fields."""
    return signed_record(answer, PAYLOAD_TYPE, key)


def signed_protection(decision: Protection, key: SigningKey) -> Protection:
    """The decision about an alias with a signature over all its other fields."""
    return signed_record(decision, PROTECTION_TYPE, key)


def protection_fault(decision: Protection, n: int, key: PublicKey) -> str:
    """Why a signed decision, number `n` of its alias, does not count, as the end of a sentence; "" if it does."""
    fault = signature_fault(decision, PROTECTION_TYPE, key, "the decision")
    return fault or ("" if decision.n == n else "it is not what was signed")


def keys_of(protection: Protection | None) -> dict[str, PublicKey]:
    """The approvers' keys of a protection by their ids; {} if answers need no signature."""
    if protection is None or not protection.keys:
        return {}
    try:
        found = [parse_public_key(pem.encode(), "a key of its approvers") for pem in protection.keys]
    except UsageError as error:
        raise CorruptError(f"The protection of {protection.name} cannot be read: {error.message}") from error
    return {key.id: key for key in found}


def refuse_stranger(key: SigningKey | None, name: str, key_ids: Sequence[str]) -> None:
    """UsageError if the alias `name` takes only answers signed with a key of `key_ids`, and `key` is another."""
    if not key_ids:
        return
    if key is None:
        raise UsageError(
            f"{name} takes signed answers only.", remedy="Name your private key: --key FILE or --key env:NAME."
        )
    if key.public.id not in key_ids:
        raise UsageError(
            f"The key {key.public.id[:16]} is not one of the approvers' keys of {name} "
            f"({', '.join(one[:16] for one in key_ids)}).",
            remedy="Sign with one of these, or add your public key where the approvers are named: promote.approvers of "
            "the spec, or `trainwright protect`.",
        )


def protections(store: Store, model: str, alias: str) -> list[Protection]:
    """All decisions about an alias, oldest first; CorruptError if one is damaged, missing or of another alias."""
    listed = sorted(numbers(store, layout.protections(model, alias)))
    found = []
    for k, number in enumerate(listed):
        path = layout.protection(model, alias, k)
        if number != k:
            raise CorruptError(f"{path} is missing, although there is a later one.", details={"file": path})
        one = store.read_as(path, Protection.from_json)
        if (one.model, one.alias) != (model, alias):
            raise CorruptError(f"{path} is about {one.model}@{one.alias}.", details={"file": path})
        found.append(one)
    return found


def protection(store: Store, model: str, alias: str) -> Protection | None:
    """The protection of an alias, as it stands in the store; None if it is not protected."""
    found = protections(store, model, alias)
    return found[-1] if found and found[-1].protected else None


def decide(store: Store, decision: Protection, sign: Callable[[Protection], Protection] | None = None) -> Protection:
    """Store a decision as the newest, signed with its number if `sign` signs it."""
    model, alias = decision.model, decision.alias
    k = len(protections(store, model, alias))
    while True:
        made = decision if sign is None else sign(decision.model_copy(update={"n": k}))
        if store.create_once(layout.protection(model, alias, k), made.to_json()):
            return made
        k += 1


def pin(decisions: Sequence[Protection]) -> dict[str, object] | None:
    """What a receipt says of the decisions about its alias: the number and the digest of the newest."""
    return {"n": len(decisions) - 1, "digest": digest(decisions[-1].to_json())} if decisions else None


def refuse_gone(store: Store, decisions: Sequence[Protection], newest: Ref | None, name: str) -> None:
    """CorruptError if the decision that the newest receipt of an alias (`name`) names is gone, or is another now."""
    if newest is None:
        return
    pinned = pointed_at(store.manifest, newest).provenance.get("protection")
    if pinned is None:  # what `pin` wrote
        return
    n, expected = parsed(newest.uri, lambda value: (int(value["n"]), str(value["digest"])), pinned)
    if len(decisions) <= n or digest(decisions[n].to_json()) != expected:
        raise CorruptError(
            f"Decision {n} about the protection of {name} is not the one that its newest receipt names.",
            remedy="Restore it from a copy of the store, and find out who changed it.",
            details={"file": newest.uri},
        )


def refuse_forged(decisions: Sequence[Protection], key: PublicKey | None, *, named: bool) -> bool:
    """Whether the release key signed the newest decision about an alias.

    Args:
        key: the release key; None if this process has none.
        named: whether the spec names the approvers, so that unsigned keys in the store can only be fewer.

    Raises:
        CorruptError: the newest decision is not signed, although an earlier one is or it names approvers, or it is not
            signed by the release key.
    """
    if not decisions:
        return False
    newest, n = decisions[-1], len(decisions) - 1
    path = layout.protection(newest.model, newest.alias, n)
    why = ""
    if newest.signature is not None:
        why = "" if key is None else protection_fault(newest, n, key)
    elif any(one.signature is not None for one in decisions):
        why = "it is not signed, and an earlier one is"
    elif key is not None and newest.keys and not named:
        why = "it names approvers' keys and is not signed"
    if why:
        raise CorruptError(
            f"The release key does not vouch for {path}: {why}.",
            remedy=f"See `trainwright history`, and decide again with the key: `trainwright protect {newest.name} …`.",
            details={"file": path},
        )
    return newest.signature is not None and key is not None


def time_of(store: Store) -> str:
    """The time by the store's clock, which whoever asks, answers or reads has in common: UTC, ISO 8601 with seconds."""
    return datetime.fromtimestamp(store.now_s(), UTC).isoformat(timespec="seconds")


def latest_question(store: Store, run_id: str) -> Question | None:
    """The last question that a run asked; None if it asked none."""
    asked = [int(name) for name in store.list(layout.approvals(run_id)) if name.isdecimal()]
    return None if not asked else _question(store, run_id, max(asked))


def ask(store: Store, question: Question) -> Question:
    """Store a question; returns it, or the one that another process of the run stored under its number.

    Questions of earlier runs about the same alias that nobody has answered count as refused from now on.
    """
    k = _enter(store, question)
    path = layout.question(question.run_id, question.n)
    if not store.create_once(path, question.to_json()):
        question = store.read_as(path, Question.from_json)
    for earlier in islice(_listed(store, question.model, question.alias, k), _MOST_OPEN):
        if earlier.run_id != question.run_id and answer_to(store, earlier, question.asked_at) is None:
            later = Answer(
                question=earlier.digest,
                decision="superseded",
                by=question.run_id,
                via="run",
                reason=f"the run {question.run_id} asked about {question.name} later, and so superseded this question",
                at=question.asked_at,
            )
            give(store, earlier, later)
    return question


def superseded_by(store: Store, question: Question) -> list[str]:
    """The runs whose questions a question superseded."""
    found = []
    for earlier in islice(_listed(store, question.model, question.alias), _MOST_OPEN):
        answer = stored_answer(store, earlier)
        if answer is not None and (answer.decision, answer.by) == ("superseded", question.run_id):
            found.append(earlier.run_id)
    return list(dict.fromkeys(found))


def refused_before(store: Store, question: Question) -> tuple[Question, Answer] | None:
    """The question of another run, about the same and in the same state of the alias, that a person refused."""
    for earlier in islice(_listed(store, question.model, question.alias), _MOST_REFUSED):
        if (earlier.about, earlier.state) != (question.about, question.state) or earlier.run_id == question.run_id:
            continue
        answer = stored_answer(store, earlier)
        if answer is None or answer.decision != "refused" or answer.question != earlier.digest:
            continue
        if not is_late(earlier, answer.at):
            return earlier, answer
    return None


def answer_to(store: Store, question: Question, now: str) -> Answer | None:
    """The answer that is stored; None while nobody has answered in time.

    The first reader that finds the deadline passed answers with `expired`, so that no later answer can count.
    """
    found = stored_answer(store, question)
    if found is None and is_late(question, now):
        late = Answer(
            question=question.digest,
            decision="expired",
            by="nobody",
            via="deadline",
            reason=expired(question),
            at=now,
        )
        return give(store, question, late)
    return found


def stored_answer(store: Store, question: Question) -> Answer | None:
    """The answer that is stored; unlike `answer_to`, nothing is written if the deadline has passed."""
    return store.find_as(layout.answer(question.run_id, question.n), Answer.from_json)


def give(store: Store, question: Question, answer: Answer) -> Answer:
    """Store an answer; returns the answer that counts: this one, or the one that was there before."""
    path = layout.answer(question.run_id, question.n)
    if store.create_once(path, answer.to_json()):
        return answer
    return store.read_as(path, Answer.from_json)


def _enter(store: Store, question: Question) -> int:
    """Enter a question at the end of its alias's list; returns its number there."""
    k = max(numbers(store, layout.questions(question.model, question.alias)), default=-1) + 1
    entry = {"schema_version": 1, "run_id": question.run_id, "n": question.n}
    while not store.create_once(layout.question_entry(question.model, question.alias, k), entry):
        k += 1
    return k


def _listed(store: Store, model: str, alias: str, before: int | None = None) -> Iterator[Question]:
    """The questions about an alias, the newest first; those that were deleted, or never stored, are left out.

    Args:
        before: only those that stand before this number in the list.
    """
    for k in sorted(numbers(store, layout.questions(model, alias)), reverse=True):
        if before is not None and k >= before:
            continue
        entry = store.find_as(layout.question_entry(model, alias, k), _named)
        found = None if entry is None else _question(store, *entry)
        if found is not None and (found.model, found.alias) == (model, alias):
            yield found


def _named(entry: dict[str, Any]) -> tuple[str, int]:
    run_id, n = valid_name(entry["run_id"]), int(entry["n"])
    if n < 0:
        raise ValueError("a question's number is not below 0")
    return run_id, n


def _question(store: Store, run_id: str, n: int) -> Question | None:
    path = layout.question(run_id, n)
    found = store.find_as(path, Question.from_json)
    if found is not None and (found.run_id, found.n) != (run_id, n):
        raise CorruptError(f"{path} is a question of the run {found.run_id}.", details={"file": path})
    return found
