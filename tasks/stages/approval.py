"""What people decide before a promotion: the question, its answer, whose answers count, and protected aliases.

`approved` asks a person whether a candidate may be promoted, reads the answer, and asks again if the comparison has
changed. A question is about one comparison in one state of its alias. If the alias was moved since, a hold was lifted,
or the gates have another result, the answer does not apply any more, and a new question is asked. `answer` stores what
a person answers to a run that waits, by `approve` and `refuse`.

Signed answers count by keys of the spec, of the alias's protection, or of both. The spec belongs to its owner, but the
store does not. Keys in the store count only if the release key signed them, if the spec names them too, or if there is
neither a release key nor a spec that names keys.

`promote.require` is about how the candidate was made; the gates are about how good it is.

- `signed`: a key is configured, so the receipt and the model's files are signed.
- `contract`: the rows met a contract, with at least one critical expectation, all of which held.
- `clean_commit`: the training and this run came from a Git commit without uncommitted changes.
- `approved`: a person approved the promotion, once all gates are met.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Literal

from data_contracts.alias_moves import Approval
from data_contracts.approvals import MOST_NAME, Answer, Protection, Question, expired, is_late, meaning
from data_contracts.canonical import readable
from data_contracts.errors import ApprovalPending, ApprovalRefused, CorruptError, GateNotMet, UsageError
from data_contracts.handoffs import Checkpoint, ContractReport, Dataset, Evaluation, GateResult, ModelVersion
from data_contracts.pipeline_spec.contract import length_of
from infra import approvals
from infra.approvals import (
    Approvers,
    keys_of,
    protection,
    protections,
    refuse_forged,
    refuse_gone,
    refuse_stranger,
    signed,
    signed_protection,
)
from infra.approvals import decide as decide_protection
from infra.audit import now
from infra.models import registry
from infra.processes.environment import SIGNING_KEY
from infra.records.handoffs import read_handoff
from infra.records.receipts import pointed_at
from infra.signing.signatures import configured_key, refuse_unsigned_inputs
from infra.store import Manifest, Store, layout
from tasks.run.report import FINAL, latest_report
from tasks.run.run import Run
from tasks.stages.rollback import checked_reason

if TYPE_CHECKING:
    from infra.signing.keys import PublicKey, SigningKey

log = logging.getLogger("trainwright")
# For a run that no person began, nobody is asked again after a refusal in the same state of the alias.
UNATTENDED = ("schedule", "ci", "automation")


def is_asked_for(run: Run) -> bool:
    """Whether a promotion of this run needs an approval, by its spec or by the alias's protection."""
    promote = run.spec.promote
    asked = promote.approval == "manual" or "approved" in promote.require or promote.approvers
    return bool(asked) or standing_protection(run)[0] is not None


def refuse_alone(run: Run) -> None:
    """UsageError if an approval is needed, and this is a stage command, which nobody could continue."""
    if not run.recorded and is_asked_for(run):
        name = f"{run.spec.model_name}@{run.spec.promote.alias}"
        raise UsageError(
            f"promote: {name} needs an approval, and the stage command leaves no run that could wait for it.",
            remedy="Use `trainwright run SPEC`, which ends waiting and continues once it is answered.",
        )


def approved(
    run: Run,
    checkpoint: Checkpoint,
    evaluation: Evaluation,
    gates: Sequence[GateResult],
    champion: ModelVersion | None,
    state: str,
    asker: str | None = None,
) -> Approval | None:
    """The approval of this promotion, which meets its gates; None if none is needed.

    Args:
        state: seal of the alias's newest receipt; "" before the first.
        asker: the run whose question it is; default: this run.

    Raises:
        ApprovalPending: nobody has answered yet. The question is in the store.
        ApprovalRefused: a person refused, nobody answered in time, or the answer is not signed as it must be.
    """
    if not is_asked_for(run):
        return None
    known = approvers_of(run)  # first: nobody is asked whose answer could not count
    asks = partial(_question, run, (checkpoint, evaluation), gates, champion, state, run_id=asker)
    question = approvals.latest_question(run.store, asker or run.run_id)
    while True:
        if question is None:
            question = _ask(run, asks(0))
        _refuse_foreign(run, question)
        at = approvals.time_of(run.store)
        answer = approvals.answer_to(run.store, question, at)
        means = meaning(question, answer, at)
        if means.standing == "refused":
            raise _refused(question, means.reason)
        if _is_the_same(question, asks(question.n)):
            break
        question = _ask(run, asks(question.n + 1))
    if answer is None:
        raise _waits(question, "--key FILE " if known.keys else "")
    if wrong := known.fault(question, answer):
        raise _refused(question, wrong)
    return _taken(question, answer, known)


def _ask(run: Run, question: Question) -> Question:
    """Ask, unless a person refused the same already and no person began this run."""
    refused = approvals.refused_before(run.store, question) if run.resolved.trigger in UNATTENDED else None
    if refused is None:
        return approvals.ask(run.store, question)
    earlier, answer = refused
    why = meaning(earlier, answer, now()).reason
    raise _refused(
        question,
        f"{why}, in the run {earlier.run_id}, which had the same checkpoint, champion and gates",
        remedy="Nobody is asked again by a run that no person began. Begin one by hand to ask: `trainwright run SPEC`.",
    )


def _is_the_same(question: Question, now_asked: Question) -> bool:
    """Whether a question is exactly the one that would be asked now; a question of an earlier version has no state."""
    if question.state is not None and question.state != now_asked.state:
        return False
    same = (question.candidate, question.champion, question.evaluation) == (
        now_asked.candidate, now_asked.champion, now_asked.evaluation,
    )  # fmt: skip
    return same and question.about == now_asked.about


def _refuse_foreign(run: Run, question: Question) -> None:
    """CorruptError for a question that this run did not ask: an answer to it, even a signed one, means something else.

    Whoever can write to the store could have a person approve for another alias, whose approvers have the same keys.
    """
    if (question.model, question.alias) != (run.spec.model_name, run.spec.promote.alias):
        path = layout.question(question.run_id, question.n)
        raise CorruptError(
            f"{path} is about {question.name}, which the run {run.run_id} does not promote to.",
            remedy="Find out who changed it, and start a new run.",
            details={"file": path},
        )


def pending(run: Run) -> Question | None:
    """The question that the run waits for; None if it waits for none. Writes nothing."""
    question = approvals.latest_question(run.store, run.run_id)
    if question is None or approvals.stored_answer(run.store, question) is not None:
        return None
    return None if is_late(question, now()) else question


def _question(
    run: Run,
    candidate: tuple[Checkpoint, Evaluation],
    gates: Sequence[GateResult],
    champion: ModelVersion | None,
    state: str,
    n: int,
    run_id: str | None = None,
) -> Question:
    """Question `n` of the run `run_id` (default: this run), as it would be asked now."""
    checkpoint, evaluation = candidate
    asked_at = approvals.time_of(run.store)
    deadline = datetime.fromisoformat(asked_at) + length_of(run.spec.promote.approval_within)
    return Question(
        run_id=run_id or run.run_id,
        n=n,
        pipeline=run.spec.name,
        model=run.spec.model_name,
        alias=run.spec.promote.alias,
        candidate=checkpoint.ref,
        evaluation=evaluation.ref,
        champion=champion.ref if champion else None,
        champion_version=champion.version if champion else None,
        gates=list(gates),
        asked_at=asked_at,
        deadline=deadline.isoformat(timespec="seconds"),
        state=state,
        approvers=sorted(named_approvers(run)),
        store=run.store.uri,
    )


def _waits(question: Question, key: str) -> ApprovalPending:
    replaced = f" instead of version {question.champion_version}" if question.champion_version else ""
    met = "The gate is met" if len(question.gates) == 1 else f"All {len(question.gates)} gates are met"
    ready = f"{met}, and a" if question.gates else "A"
    return ApprovalPending(
        f"{ready} person must approve the candidate as {question.name}{replaced} before {readable(question.deadline)}.",
        remedy=f"Answer with `trainwright approve {question.run_id} {key}--reason WHY`, or with `refuse`; "
        f"then `trainwright resume {question.run_id}` continues the run.",
        details={"gates": [gate.to_json() for gate in question.gates], "question": question.to_json()},
    )


def _refused(question: Question, reason: str, remedy: str | None = None) -> ApprovalRefused:
    stays = f"stays at version {question.champion_version}" if question.champion_version else "names no version"
    return ApprovalRefused(
        f"Not promoted: {reason}; {question.name} {stays}.",
        remedy=remedy,
        details={"gates": [gate.to_json() for gate in question.gates], "question": question.to_json()},
    )


def _taken(question: Question, answer: Answer, approvers: Approvers) -> Approval:
    assert answer.via in ("cli", "prefect", "proxy")
    signature = answer.signature if approvers.keys else None
    keys = [] if signature is None else [str(one["keyid"]) for one in signature["signatures"]]
    return Approval(
        run_id=question.run_id,
        n=question.n,
        question=question.digest,
        by=answer.by,
        via=answer.via,
        reason=answer.reason,
        at=answer.at,
        keys=keys,
        signature=signature,
        public_key=approvers.pem_of(answer),
        vouched=approvers.vouched,
    )


def open_question(store: Store, run_id: str) -> Question:
    """The question that a run waits for, answered or not; UsageError if it waits for none, or has ended."""
    question = approvals.latest_question(store, run_id)
    if question is None or _is_over(store, question):
        raise UsageError(
            f"The run {run_id} does not wait for an answer{_ended(store, run_id)}.",
            remedy="`trainwright status` lists the runs that wait.",
        )
    return question


def answer(
    store: Store,
    question: Question,
    decision: Literal["approved", "refused"],
    by: str,
    reason: str,
    key: SigningKey | None = None,
) -> Answer:
    """Answer a question that a person has seen.

    Args:
        question: as `open_question` returned it; no other is answered, even if the store has another meanwhile.
        key: signs the answer; None: it is not signed.

    Returns:
        The answer that counts: this one, or an equal one of an earlier call whose reply was lost.

    Raises:
        UsageError: somebody has answered already, there is no reason, or the alias takes only answers that are signed
            with another key.
        ApprovalRefused: the deadline has passed.
    """
    why, name = checked_reason(reason), checked_name(by)
    at, run_id = approvals.time_of(store), question.run_id
    found = approvals.answer_to(store, question, at)
    if found is None:
        refuse_stranger(key, question.name, signers(store, question))
        mine = Answer(question=question.digest, decision=decision, by=name, via="cli", reason=why, at=at)
        mine = mine if key is None else signed(mine.model_copy(update={"about": question.about}), key)
        found = approvals.give(store, question, mine)
        if found == mine:
            return found
    means = meaning(question, found, at)
    if found.decision == "expired":
        raise ApprovalRefused(f"The answer came too late: {expired(question)}, which counts as refused.")
    before = means.reason or f'{found.by} approved it at {readable(found.at)}: "{found.reason}"'
    raise UsageError(
        f"The question of the run {run_id} is answered already: {before}.",
        remedy=f"The first answer counts; `trainwright resume {run_id}` continues the run.",
    )


def checked_name(by: str) -> str:
    """A person's name as it is stored; UsageError if it is empty, too long or not printable."""
    line = " ".join(by.split())
    if not line or len(line) > MOST_NAME or not line.isprintable():
        raise UsageError(
            f"{line[:MOST_NAME]!a} cannot be the name of whoever answers.",
            remedy=f"Use 1 to {MOST_NAME} printable characters.",
        )
    return line


def unsigned_counts(store: Store, question: Question) -> bool:
    """Whether an answer counts that nobody signed."""
    return not signers(store, question)


def signers(store: Store, question: Question) -> list[str]:
    """The ids of the keys that may sign an answer, by question and store; [] if no signature is needed."""
    stored = list(keys_of(protection(store, question.model, question.alias)))
    named = question.approvers
    return [one for one in named or stored if not stored or one in stored] or named


def _is_over(store: Store, question: Question) -> bool:
    """Whether the run has ended, so that no answer to its last question can change anything."""
    report = latest_report(store, question.run_id)
    return report is not None and report.verdict in FINAL


def _ended(store: Store, run_id: str) -> str:
    report = latest_report(store, run_id)
    return f": it ended {report.verdict.replace('_', ' ')}" if report is not None else ""


def signing_key(run: Run) -> SigningKey | None:
    """The key of `promote.sign` or of this process's environment; None if there is none.

    UsageError if it cannot be used, or if there is none although `signed` is required.
    """
    key = configured_key(run.spec.promote.sign, run.root)
    if key is None and "signed" in run.spec.promote.require:
        raise UsageError(
            "promote.require asks for signed, and no key is configured.",
            remedy=f"Name one with promote.sign or {SIGNING_KEY}; `trainwright key new DIR` makes a pair.",
        )
    return key


def refuse_early(run: Run) -> None:
    """Refuse, before any work, if it is already known that the candidate could not be promoted.

    Raises:
        UsageError: a requirement cannot be met, a key cannot be used, the run's inputs are not signed with it, or the
            spec asks for a canary.
        CorruptError: the run's inputs are not what was signed.
    """
    if run.spec.promote.canary is not None:
        raise UsageError(
            "promote.canary is not carried out any more, and without it the candidate would be promoted at once.",
            remedy="Leave it out. A gate with confidence about an evaluation set of the newest rows decides on fresh "
            "rows in each run; with promote.approval: manual, a person decides when.",
        )
    key = signing_key(run)
    if key is not None and run.recorded:
        refuse_unsigned_inputs(run.store, run.resolved, key)
    if run.spec.promote.approvers:
        approvers_of(run)
    required = run.spec.promote.require
    if "contract" in required and run.external:
        raise UsageError(
            "promote.require asks for contract, and the data is external.",
            remedy="Give the data a contract, or leave contract out of promote.require.",
        )
    if "clean_commit" in required and (wrong := _not_clean(run.resolved.commit, run.resolved.dirty)):
        raise UsageError(
            f"promote.require asks for clean_commit, and the project {wrong}.",
            remedy="Commit, and run again; or leave it out: --set promote.require=[]",
        )


def met_requirements(run: Run, checkpoint: Checkpoint, dataset: Dataset | None) -> list[str]:
    """The names of all requirements, which the candidate meets.

    Raises:
        GateNotMet: the candidate does not meet one; the sentence says which and why.
    """
    refuse_early(run)
    required = run.spec.promote.require
    for name, fault in (("contract", _no_contract), ("clean_commit", _not_committed)):
        if name in required and (why := fault(run, checkpoint, dataset)):
            raise GateNotMet(
                f"Not promoted: promote.require asks for {name}, and {why}.",
                remedy="Train again with --new from what meets it, or leave it out of promote.require.",
                details={"require": name},
            )
    return list(required)


def _no_contract(run: Run, checkpoint: Checkpoint, dataset: Dataset | None) -> str:
    if dataset is None:
        return "the data is external"
    sealed = pointed_at(run.store.manifest, dataset.ref)
    reports = [pointed_at(run.store.manifest, ref) for ref in sealed.parents]
    reports = [one for one in reports if one.kind == "contract"]
    if not reports:
        return f"{dataset.ref.uri} was made without one"
    return next(filter(None, (_broken(run, one) for one in reports)), "")


def _broken(run: Run, sealed: Manifest) -> str:
    """Why a contract report is not enough; "" if it is."""
    report = read_handoff(run.store, sealed.ref, ContractReport)
    expectations: list[dict[str, object]] = (sealed.settings.get("suite") or {}).get("expectations", [])
    critical = [one for one in expectations if one.get("severity", "critical") == "critical"]
    if not report.accepted:
        return f"{sealed.uri} rejected the data"
    if not critical:
        return f"{sealed.uri} has no critical expectation"
    if broken := [one for one in report.failures if one.severity == "critical"]:
        return f"{sealed.uri} found that {broken[0].expectation} is broken"
    return ""


def _not_committed(run: Run, checkpoint: Checkpoint, dataset: Dataset | None) -> str:
    code = pointed_at(run.store.manifest, checkpoint.ref).provenance.get("code") or {}
    wrong = _not_clean(code.get("commit"), code.get("dirty", True))
    return f"the training's project {wrong.replace('is', 'was').replace('has', 'had')}" if wrong else ""


def _not_clean(commit: str | None, dirty: bool) -> str:
    if commit is None:
        return "is not in a Git repository with a commit"
    return "has changes that are not committed" if dirty else ""


def named_approvers(run: Run) -> dict[str, PublicKey | None]:
    """The keys that `promote.approvers` names by their ids, None for a key of which only the id is known.

    UsageError if a file cannot be read, is not a public key, or can be written by anyone.
    """
    found: dict[str, PublicKey | None] = {}
    for named in run.spec.promote.approvers:
        if not named.startswith("file:"):
            found.setdefault(named, None)
            continue
        from infra.signing.keys import load_trusted_key

        key = load_trusted_key(run.root, named.removeprefix("file:"), "promote.approvers")
        found[key.id] = key
    return found


def standing_protection(run: Run) -> tuple[Protection | None, bool]:
    """The protection of the run's alias, None if it is not protected, and whether the release key vouches for it.

    CorruptError if a decision is gone, or is not signed as it must be.
    """
    store, model, alias = run.store, run.spec.model_name, run.spec.promote.alias
    found = protections(store, model, alias)
    current = registry.read_alias(store, model, alias)
    refuse_gone(store, found, registry.newest_receipt(current and current[0]), f"{model}@{alias}")
    key = configured_key(run.spec.promote.sign, run.root) if found else None
    vouched = refuse_forged(found, None if key is None else key.public, named=bool(run.spec.promote.approvers))
    return (found[-1] if found and found[-1].protected else None), vouched


def approvers_of(run: Run) -> Approvers:
    """Whose signed answers count for this run; without keys, any answer does.

    Raises:
        UsageError: a key that the spec names cannot be used, or no key could approve.
        CorruptError: as `standing_protection`.
    """
    protected, vouched = standing_protection(run)
    named, stored = named_approvers(run), keys_of(protected)
    name = f"{run.spec.model_name}@{run.spec.promote.alias}"
    if not named:
        return Approvers(name, stored, "protection" if stored and vouched else "")
    both = {id: key or stored.get(id) for id, key in named.items() if not stored or id in stored}
    known = {id: key for id, key in both.items() if key is not None}
    if not known:
        raise UsageError(
            f"Nobody could approve for {name}: "
            + (
                "none of the keys of promote.approvers is an approver's key of its protection."
                if stored
                else "promote.approvers names only ids of keys, and the alias has no approvers' keys."
            ),
            remedy="Name the public keys as file:PATH, and give the same keys to `trainwright protect`, if it has any.",
        )
    return Approvers(name, known, "spec")


def protect(
    store: Store,
    model: str,
    alias: str,
    by: str,
    reason: str,
    keys: Sequence[str] = (),
    key: SigningKey | None = None,
) -> Protection:
    """Protect an alias, or change how it is protected: its promotions need an approval, its rollbacks a reason.

    The model need not exist yet. UsageError if a name cannot be one, there is no reason, or there is no key although an
    earlier decision is signed.

    Args:
        keys: public keys of approvers, in PEM; only answers that are signed with one of them count.
        key: the release key, which signs the decision; None: the decision is not signed.
    """
    decision = _decision(model, alias, by, reason, protected=True)
    return _decided(store, decision.model_copy(update={"keys": list(dict.fromkeys(keys))}), key)


def unprotect(store: Store, model: str, alias: str, by: str, reason: str, key: SigningKey | None = None) -> Protection:
    """End the protection of an alias; its records stay. UsageError as `protect`, or if it is not protected."""
    decision = _decision(model, alias, by, reason, protected=False)
    if protection(store, model, alias) is None:
        raise UsageError(f"{model}@{alias} is not protected.")
    return _decided(store, decision, key)


def _decided(store: Store, decision: Protection, key: SigningKey | None) -> Protection:
    if key is not None:
        return decide_protection(store, decision, lambda numbered: signed_protection(numbered, key))
    if any(one.signature for one in protections(store, decision.model, decision.alias)):
        raise UsageError(
            f"Decisions about {decision.name} are signed, and no key is configured to sign the next one.",
            remedy=f"Name the release key: {SIGNING_KEY}=FILE.",
        )
    return decide_protection(store, decision)


def _decision(model: str, alias: str, by: str, reason: str, *, protected: bool) -> Protection:
    why, name = checked_reason(reason), checked_name(by)
    return Protection(model=model, alias=alias, protected=protected, by=name, at=now(), reason=why)
