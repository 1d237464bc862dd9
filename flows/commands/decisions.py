"""`approve`, `refuse`, `protect`, `rollback`, `release`, `affected`: what people decide about models.

`approve` and `refuse` show the question of a run that waits, and answer it. `affected` lists the runs, versions and
aliases that were made with a package; `--hold` puts the versions on hold.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from data_contracts.approvals import Answer as Given
from data_contracts.approvals import Question
from data_contracts.canonical import is_name, readable
from data_contracts.errors import Cancelled, UsageError
from data_contracts.quoting import escaped
from flows.commands.guard import Answer, log
from flows.commands.server import QUIET
from flows.features import hooks, is_present
from infra import audit
from infra.approvals import public_pem, signing_key
from infra.models import registry
from infra.orchestrator.server import connect_if_running
from infra.processes.environment import SIGNING_KEY
from infra.signing.signatures import configured_key
from infra.store import Store, layout
from tasks.run.run import known_store_list, not_found, reopen_run
from tasks.stages.approval import answer, checked_name, open_question, unprotect
from tasks.stages.approval import protect as protect_alias
from tasks.stages.rollback import checked_reason, hold
from tasks.stages.rollback import release as lift
from tasks.stages.rollback import rollback as roll_back

if is_present("queries"):
    from tasks.queries.affected import Affected
    from tasks.queries.affected import affected as find_affected


# How long the mirrors may take after a rollback, which is done by then.
MIRRORS_S = 20.0


def approve(arguments: argparse.Namespace) -> Answer:
    """The `approve` command."""
    return _answered(arguments, "approved")


def refuse(arguments: argparse.Namespace) -> Answer:
    """The `refuse` command."""
    return _answered(arguments, "refused")


def _answered(arguments: argparse.Namespace, decision: Literal["approved", "refused"]) -> Answer:
    run = reopen_run(arguments.run, arguments.store)
    by, reason = checked_name(audit.actor()), checked_reason(arguments.reason)
    key = None if arguments.key is None else signing_key(arguments.key)
    question = open_question(run.store, run.run_id)
    _show_question(question, decision, arguments, signs=key is not None)
    given = answer(run.store, question, decision, by, reason, key)
    woken = _wake_flow_runs(run.run_id, given)
    then = f"the flow run {woken[0]} continues" if woken else f"`trainwright resume {run.run_id}` continues the run"
    sentence = f'{given.by} {decision} the candidate of the run {run.run_id}: "{given.reason}"; {then}'
    return Answer(sentence, {"run_id": run.run_id, "answer": given.to_json(), "resumed": woken})


def _show_question(question: Question, decision: str, arguments: argparse.Namespace, *, signs: bool) -> None:
    """Print the question; at a terminal, Cancelled unless the person says yes."""
    for line in question_lines(question):
        print(escaped(line), file=sys.stderr)
    if arguments.yes or arguments.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    does = {"approved": "Approve", "refused": "Refuse"}[decision] + (" and sign" if signs else "")
    print(f"{does} this? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Cancelled("Nothing was answered.", remedy="")


def question_lines(question: Question) -> list[str]:
    """What a question is about: the alias, the candidate, the champion, what the gates found, and the deadline."""
    champion = (
        "none; it would be the first version"
        if question.champion is None
        else f"version {question.champion_version}, id {question.champion.id}"
    )
    return [
        f"The run {question.run_id} of {question.pipeline} asks: may this candidate become {question.name}?",
        f"  candidate  checkpoint {question.candidate.id}",
        f"  champion   {champion}",
        *(f"  gate       {'met' if gate.met else 'NOT MET'}: {gate.sentence}" for gate in question.gates),
        *(["  gates      none"] if not question.gates else []),
        f"  asked      {readable(question.asked_at)}",
        f"  deadline   {readable(question.deadline)}; without an answer before, it counts as refused",
    ]


def _wake_flow_runs(run_id: str, given: Given) -> list[str]:
    """Resume the run's suspended flow runs in Prefect, if a server answers; the answer itself is in the store."""
    os.environ.update(QUIET)
    try:
        if not connect_if_running():
            return []
        from infra.orchestrator.flow_runs import wake

        decision: Literal["approve", "refuse"] = "approve" if given.decision == "approved" else "refuse"
        return wake(run_id, decision, given.reason, given.by)
    except Exception as error:  # whatever is wrong with the server, the answer counts
        log.warning("The answer is in the store, but Prefect did not resume the run's flow run: %s", error)
        return []


def protect(arguments: argparse.Namespace) -> Answer:
    """The `protect` command."""
    model, _, alias = arguments.name.partition("@")
    alias = alias or "champion"
    if not is_name(model) or not is_name(alias) or alias == "history":
        raise UsageError(f"{arguments.name} cannot be a model and its alias.", remedy="Write it as NAME@ALIAS.")
    store = store_with(arguments, or_only=True)
    if arguments.off and arguments.key:
        raise UsageError("protect: --off and --key were given.", remedy="Give one of them.")
    by, why, key = audit.actor(), arguments.reason, configured_key()
    if arguments.off:
        decision = unprotect(store, model, alias, by, why, key)
    else:
        decision = protect_alias(store, model, alias, by, why, [public_pem(path) for path in arguments.key], key)
    signed = "a signed approval" if decision.keys else "an approval"
    sentence = (
        f"{model}@{alias} is protected: each promotion needs {signed}, and each rollback a reason"
        if decision.protected
        else f"{model}@{alias} is no longer protected; specs decide whether a promotion needs an approval"
    )
    if key is not None:
        sentence += f". The decision is signed with the key {key.public.id[:16]}"
    elif decision.keys:
        sentence += (
            f". Nobody vouches for the approvers' keys: set {SIGNING_KEY} to sign this decision, or name them in "
            "promote.approvers of the spec"
        )
    if not store.list(layout.models(model)):
        # The name may be mistyped: whoever relies on the protection should see that nothing has this name yet.
        sentence += f". {store.uri} has no model {model} yet: check the name if it should have one"
    return Answer(sentence, decision.to_json())


def store_with(arguments: argparse.Namespace, what: str = "model", *, or_only: bool = False) -> Store:
    """The known store that has the named model; UsageError that calls it `what` if none has it.

    Args:
        or_only: take the only known store even if the model does not exist yet.
    """
    model = arguments.name.partition("@")[0]
    stores = known_store_list(arguments.store)
    for store in stores if is_name(model) else ():
        if store.list(layout.models(model)):
            return store
    if or_only and len(stores) == 1:
        return stores[0]
    raise not_found(f"{what} {model}", stores)


def rollback(arguments: argparse.Namespace) -> Answer:
    """The `rollback` command."""
    tellers = hooks("decide")
    model, _, alias = arguments.name.partition("@")
    about = provenance_of("rollback")
    store, alias = store_with(arguments), alias or "champion"
    receipt = roll_back(store, model, alias, arguments.to, about, arguments.reason, arguments.evidence)
    for tell in tellers:
        tell(store, MIRRORS_S)
    return Answer(receipt.sentence, receipt.to_json())


def release(arguments: argparse.Namespace) -> Answer:
    """The `release` command."""
    model, _, alias = arguments.name.partition("@")
    if arguments.version is not None and arguments.checkpoint is not None:
        raise UsageError("release: a version and --checkpoint were given.", remedy="Name one of them.")
    which = arguments.version if arguments.checkpoint is None else arguments.checkpoint
    store, about = store_with(arguments), provenance_of("release")
    receipt = lift(store, model, alias or "champion", which, arguments.reason, about)
    return Answer(receipt.sentence, receipt.to_json())


def provenance_of(command: str) -> dict[str, Any]:
    """The provenance of what a person decides with a command, which is no run."""
    commit, dirty = audit.revision(Path.cwd())
    return {
        "parents": [],
        "run_id": f"{command}-{secrets.token_hex(4)}",
        "code": {"commit": commit, "dirty": dirty},
        "started": audit.now(),
        "finished": audit.now(),
        "actor": audit.actor(),
        "trigger": "cli",
        "tags": {},
    }


def affected(arguments: argparse.Namespace) -> Answer:
    """The `affected` command, for every known store."""
    if arguments.hold:
        checked_reason(arguments.reason)
    elif arguments.reason:
        raise UsageError("affected: --reason was given without --hold.", remedy="Add --hold, or leave it out.")
    lines: list[str] = []
    value: list[dict[str, object]] = []
    for store in known_store_list(arguments.store):
        result = find_affected(store, arguments.package)
        sentences = _hold_affected(store, result, arguments.reason) if arguments.hold else []
        lines += map(escaped, [f"{store.uri}:", *_affected_lines(result), *sentences])
        value.append({"store": store.uri, **asdict(result), "held": sentences})
    return Answer("\n".join(lines) or "No store is known on this machine; name one with --store.", {"stores": value})


def _hold_affected(store: Store, result: Affected, reason: str) -> list[str]:
    """Put the affected versions of each model on hold for all its aliases, also those that have ended."""
    sentences = []
    for model, alias, _ in registry.aliases(store, ended=True):
        checkpoints = {version.checkpoint_id: version.version for version in result.versions if version.model == model}
        if receipt := hold(store, model, alias, checkpoints, result.requirement, reason, provenance_of("affected")):
            sentences.append(receipt.sentence)
    return sentences


def _affected_lines(result: Affected) -> list[str]:
    return [
        f"made with {result.requirement}: {len(result.aliases):,} aliases, {len(result.versions):,} versions of "
        f"models, {len(result.runs):,} runs",
        *(f"  alias    {model}@{alias} is version {number}" for model, alias, number in result.aliases),
        *(
            f"  version  {version.model}@{version.version}: {', '.join(version.packages)}"
            for version in result.versions
        ),
        *(f"  run      {run_id}: {', '.join(packages)}" for run_id, packages in result.runs.items()),
        f"not known: {len(result.unknown_versions):,} versions of models, {len(result.unknown_runs):,} runs",
        *(f"  version  {version.model}@{version.version}" for version in result.unknown_versions),
        *(f"  run      {run_id}" for run_id in result.unknown_runs),
    ]
