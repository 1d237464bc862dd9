"""Every path in a store, as pure functions that check each part of a path; no other module builds one.

Paths are relative to the store's root, with `/`. A sealed directory is named by its URI, such as `datasets/<key>-0`.
`training` is `trainings/<key>-<n>`; `rows_id` stands for the rows of a test set.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from data_contracts.canonical import digest, valid_name, valid_path
from data_contracts.errors import UsageError

STORE = "store.json"
MANIFEST = "manifest.json"
_ATTEMPT = re.compile(r"(.+)-(0|[1-9][0-9]*)")
_GENERATION = re.compile(r"g(0|[1-9][0-9]*)")
_CHECKPOINT = re.compile(r"([0-9]+)-(g[0-9]+)(?:\.([a-z]+))?")
# Of the training, of the model's files, and of the receipt, which is written last.
SIGNATURES = ("provenance.dsse", "model.sig", "receipt.dsse")
_ROOT = "budgets"
NODES = "nodes"
# How many levels below the root the sealed directories of each area are.
SEALED_AREAS = {
    "code": 2,
    "contracts": 2,
    "datasets": 2,
    "evaluations": 2,
    "imports": 2,
    "recipes": 2,
    "models": 3,
    "trainings": 4,
    "aliases": 5,
}


def check_path(path: str, what: str = "path in a store") -> str:
    """`path`, if it stays below the folder it is relative to (see `valid_path`); else UsageError."""
    try:
        return valid_path(path)
    except ValueError as error:
        raise UsageError(
            f"{path!r} cannot be a {what}.",
            remedy="Use a relative path in UTF-8 with '/' and without '..', backslashes or control characters.",
        ) from error


def name_part(text: str) -> str:
    """A name as a part of a path; UsageError if it cannot be one."""
    try:
        return valid_name(text)
    except ValueError as error:
        raise UsageError(f"{error}.") from error


def number_part(value: int) -> int:
    """A number as a part of a path; UsageError if it is negative."""
    if value < 0:
        raise UsageError(f"{value} cannot be a number in a store's path: it is negative.")
    return value


def attempt(area: str, key: str, n: int) -> str:
    """Attempt `n` (from 0) of reuse key `key` in `contracts`, `datasets`, `evaluations` or `trainings`."""
    return f"{name_part(area)}/{name_part(key)}-{number_part(n)}"


def split_attempt(name: str) -> tuple[str, int] | None:
    """`<key>-<n>` as (key, n); None for another name."""
    match = _ATTEMPT.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def manifest(uri: str) -> str:
    """The manifest of a sealed directory."""
    return f"{uri}/{MANIFEST}"


def split_manifest(path: str) -> str | None:
    """The sealed directory whose manifest is at `path`; None for another file, such as one of that name deeper inside.

    Also None for a path that no store can have, which only somebody else can have put there.
    """
    try:
        uri, _, name = valid_path(path).rpartition("/")
    except ValueError:
        return None
    area, _, rest = uri.partition("/")
    return uri if name == MANIFEST and rest.count("/") + 2 == SEALED_AREAS.get(area) else None


def tombstone(uri: str) -> str:
    """The record of what was deleted at `uri`, why and by whom."""
    return f"tombstones/{check_path(uri)}.json"


def uses(uri: str) -> str:
    """Folder of the days on which `uri` was claimed for use."""
    return f"uses/{check_path(uri)}"


def use(uri: str, day: str) -> str:
    """Mark: claimed for use on `day` (ISO, UTC), created once."""
    return f"{uses(uri)}/{name_part(day)}"


def search_records(name: str) -> str:
    """Folder of the records of a search, by number from 0; the newest holds."""
    return f"searches/{name_part(name)}/records"


def search_record(name: str, number: int) -> str:
    """How a search is carried out from now on, created once."""
    return f"{search_records(name)}/{number_part(number)}.json"


def search_lease(name: str) -> str:
    """Pointer: who carries a search out."""
    return f"searches/{name_part(name)}/lease"


def search_events(name: str) -> str:
    """Folder of what happened in a search, by number from 0."""
    return f"searches/{name_part(name)}/events"


def search_event(name: str, number: int) -> str:
    """One thing that happened in a search, created once."""
    return f"{search_events(name)}/{number_part(number)}.json"


def code(code_digest: str, n: int = 0) -> str:
    """Sealed bundle of a user's code; number `n` of the same files, after `n` deleted bundles."""
    return f"code/{name_part(code_digest)}" + (f"-{number_part(n)}" if n else "")


def imported(content_digest: str) -> str:
    """Sealed weights from outside."""
    return f"imports/{name_part(content_digest)}"


# Runs.


def trigger(idempotency_key: str) -> str:
    """Record of what an idempotency key started; a key that is not a valid name is replaced by its digest."""
    try:
        return f"triggers/{valid_name(idempotency_key)}"
    except ValueError:
        return f"triggers/{digest(idempotency_key)}"


def pipeline(slug: str) -> str:
    """Record of the pipeline that owns a page name, created once."""
    return f"pipelines/{name_part(slug)}"


def runs() -> str:
    """Folder of all runs, named by their ids, which sort by time."""
    return "runs"


def run(run_id: str) -> str:
    """Folder of a run."""
    return f"runs/{name_part(run_id)}"


def resolved(run_id: str) -> str:
    """A run's inputs, resolved once at its start."""
    return f"{run(run_id)}/resolved.json"


def inputs_signature(run_id: str) -> str:
    """The signature of a run's inputs."""
    return f"{run(run_id)}/resolved.dsse"


def stage(run_id: str, stage_name: str) -> str:
    """Record of how a stage of a run ended."""
    return f"{run(run_id)}/stages/{name_part(stage_name)}.json"


def report(run_id: str) -> str:
    """A run's report."""
    return f"{run(run_id)}/report.json"


def run_names(run_id: str, token: int) -> str:
    """What the records of a run name, as the process wrote it that took the run's lease with this token."""
    return f"{run(run_id)}/names/{number_part(token)}.json"


def is_run_names(path: str) -> bool:
    """Whether a file of a run says what the run's records name."""
    return path.split("/")[2:3] == ["names"] and path.endswith(".json")


def page(run_id: str, n: int | None = None) -> str:
    """The page of a run's report; or of attempt `n`, which is not beside its record, because attempts are counted."""
    return f"{run(run_id)}/report.html" if n is None else f"{run(run_id)}/pages/{number_part(n)}.html"


def run_attempts(run_id: str) -> str:
    """Folder of the attempts (Prefect's flow runs) of a run."""
    return f"{run(run_id)}/attempts"


def run_attempt(run_id: str, n: int) -> str:
    """One attempt of a run."""
    return f"{run_attempts(run_id)}/{number_part(n)}.json"


def usages(run_id: str, execution: str | None = None) -> str:
    """Folder of what a run's executions used; or of one execution."""
    return f"{run(run_id)}/usage" + (f"/{name_part(execution)}" if execution is not None else "")


def usage(run_id: str, execution: str, what: str) -> str:
    """Record of an execution: `began`, `ended`, or a numbered part such as `gang-0`."""
    return f"{usages(run_id, execution)}/{name_part(what)}.json"


def is_superseded(path: str, present: Collection[str]) -> bool:
    """Whether a file is a part of an execution whose record of its end is present, which holds all of its parts."""
    parts = path.split("/")
    of_execution = len(parts) == 5 and parts[0] == "runs" and parts[2] == "usage"
    return of_execution and parts[4] != "ended.json" and "/".join([*parts[:4], "ended.json"]) in present


def usage_beat(run_id: str, execution: str) -> str:
    """Pointer: until when an execution is known to have worked."""
    return f"{usages(run_id, execution)}/beat"


def mirrored(run_id: str | None = None, mirror: str | None = None) -> str:
    """Folder of the updates that mirrors got about a run or a rollback; of one mirror; or of all runs."""
    parts = [name_part(part) for part in (run_id, mirror) if part is not None]
    return "/".join(["mirrored", *parts])


def delivery(run_id: str, mirror: str, what: str, n: int) -> str:
    """Record of attempt `n` from 0 to tell a mirror `what`: `final`, `alias`, or the number of the run's attempt."""
    return f"{mirrored(run_id, mirror)}/{name_part(what)}-{number_part(n)}.json"


def telling() -> str:
    """Pointer: which process sends updates to the mirrors of this store."""
    return "mirrored/lease"


def remote_job(run_id: str, name: str) -> str:
    """Folder of a job that a node elsewhere does for a run; its layout is that of a training."""
    return f"{run(run_id)}/errands/{name_part(name)}"


def executions(run_id: str) -> str:
    """Folder of a run's executions, one record for each process that carried it out."""
    return f"runs/{name_part(run_id)}/executions"


def execution(run_id: str, token: int) -> str:
    """Record of the process that took the run's lease with this token."""
    return f"{executions(run_id)}/{number_part(token)}.json"


def handed_over(run_id: str, token: int) -> str:
    """Record that the process with this token handed the run over to another one."""
    return f"{executions(run_id)}/{number_part(token)}-handed-over.json"


def month_folder() -> str:
    """Folder of the figures of months, which stay when their runs are deleted."""
    return "costs"


def month_costs(month: str) -> str:
    """Record of what the runs of a calendar month such as 2026-10 used, created once after the month."""
    return f"{month_folder()}/{name_part(month)}.json"


def crashes(run_id: str) -> str:
    """Folder of a run's crashes that were answered by resuming it."""
    return f"runs/{name_part(run_id)}/crashes"


def crash(run_id: str, n: int) -> str:
    """Record of crash `n` from 0, created once."""
    return f"{crashes(run_id)}/{number_part(n)}.json"


def stages(run_id: str) -> str:
    """Folder of the records of how a run's stages ended."""
    return f"runs/{name_part(run_id)}/stages"


def remote_jobs(run_id: str) -> str:
    """Folder of the jobs that nodes elsewhere do for a run."""
    return f"runs/{name_part(run_id)}/errands"


def run_of_remote_job(remote_job: str) -> str | None:
    """The run that a node elsewhere does a job for, by the job's folder; None for another folder, as of a training."""
    parts = remote_job.split("/")
    return parts[1] if parts[0] == "runs" and len(parts) == 4 else None


def profiled(run_id: str, n: int, what: str) -> str:
    """The `page` or the `trace` of profile `n` of a run's training, from 0; created once."""
    ending = {"page": "html", "trace": "trace.json.gz"}[what]
    return f"runs/{name_part(run_id)}/profiles/{number_part(n)}.{ending}"


def environments() -> str:
    """Folder of what is installed where processes of runs imported from, a folder for each such environment."""
    return "environments"


def environment(content_digest: str) -> str:
    """The list of what is installed in an environment, named by its digest."""
    return f"{environments()}/{name_part(content_digest)}/packages.json"


def runs_with(content_digest: str) -> str:
    """Folder of the runs with a process that imported from an environment."""
    return f"{environments()}/{name_part(content_digest)}/runs"


def imported_from(content_digest: str, run_id: str) -> str:
    """Mark: a process of a run imported from an environment, created once."""
    return f"{runs_with(content_digest)}/{name_part(run_id)}"


def trainings() -> str:
    """Folder of all trainings."""
    return "trainings"


def slots(training: str) -> str:
    """Folder of the concurrency leases in Prefect that a training's conductors took."""
    return f"{check_path(training)}/slots"


def slot(training: str, lease_id: str) -> str:
    """Mark: a conductor of the training took this lease."""
    return f"{slots(training)}/{name_part(lease_id)}"


def backfills(pipeline_name: str) -> str:
    """Folder of the windows that a pipeline's backfills have begun."""
    return f"backfills/{name_part(pipeline_name)}"


def backfilled(pipeline_name: str, window: str, what: str) -> str:
    """Record that a window was `begun`, or has `ended`; created once."""
    return f"{backfills(pipeline_name)}/{name_part(window)}/{name_part(what)}.json"


def training(key: str, n: int) -> str:
    """Directory of a training."""
    return f"{trainings()}/{name_part(key)}-{number_part(n)}"


def lease(training: str) -> str:
    """Pointer: who conducts the training."""
    return f"{check_path(training)}/lease"


def latest(training: str) -> str:
    """Pointer: the training's committed checkpoints."""
    return f"{check_path(training)}/latest"


def result(training: str) -> str:
    """The checkpoint that the training handed over."""
    return f"{check_path(training)}/result.json"


def generation(training: str, g: int) -> str:
    """Folder of generation `g`."""
    return f"{check_path(training)}/g{number_part(g)}"


def split_generation(name: str) -> int | None:
    """The number in `g<number>`, the name of a generation's folder; None for another name."""
    match = _GENERATION.fullmatch(name)
    return int(match[1]) if match else None


def launch(training: str, g: int) -> str:
    """The launch settings of generation `g`."""
    return f"{generation(training, g)}/launch.json"


def cancel(training: str, g: int) -> str:
    """Marker that cancels generation `g`."""
    return f"{generation(training, g)}/cancel"


def rollcall(training: str, g: int) -> str:
    """The nodes that take part in generation `g`, and their rendezvous."""
    return f"{generation(training, g)}/rollcall.json"


def gang_beat(training: str, g: int, i: int) -> str:
    """What the conductor of generation `g` knew of its nodes, for the `i`-th time."""
    return f"{generation(training, g)}/beat-{number_part(i)}.json"


def node(training: str, g: int, k: int) -> str:
    """Folder in which node `k` reports."""
    return f"{generation(training, g)}/node-{number_part(k)}"


def joined(training: str, g: int, k: int) -> str:
    """Node `k`'s answer to the roll-call, as stores of earlier versions have it."""
    return f"{node(training, g, k)}/joined.json"


def beat(training: str, g: int, k: int, i: int) -> str:
    """Heartbeat `i` of node `k`, as stores of earlier versions have it."""
    return f"{node(training, g, k)}/beat-{number_part(i)}.json"


def node_exit(training: str, g: int, k: int) -> str:
    """Record of how node `k` ended."""
    return f"{node(training, g, k)}/exit.json"


def rank_log(training: str, g: int, k: int, rank: int, i: int | None = None) -> str:
    """The end of a rank's log, stored by node `k`; or chunk `i` of it, stored while it runs."""
    return f"{node(training, g, k)}/log-rank-{number_part(rank)}{'' if i is None else f'-{number_part(i)}'}.txt"


def logger_files(training: str, g: int) -> str:
    """An archive of the files that the loggers of the user's config wrote in a generation."""
    return f"{generation(training, g)}/loggers.zip"


def checkpoints(training: str) -> str:
    """Folder of a training's checkpoints and their marks."""
    return f"{check_path(training)}/checkpoints"


def checkpoint(training: str, step: int, g: int) -> str:
    """Sealed checkpoint of a step, written by generation `g`."""
    return f"{checkpoints(training)}/{number_part(step)}-g{number_part(g)}"


def split_checkpoint(name: str) -> tuple[int, int, str] | None:
    """`<step>-g<generation>`, optionally with `.<mark>`, as (step, generation, mark or ""); None for another name."""
    match = _CHECKPOINT.fullmatch(name)
    generation = split_generation(match[2]) if match else None
    return None if match is None or generation is None else (int(match[1]), generation, match[3] or "")


def verified(checkpoint_uri: str) -> str:
    """Mark: the verify stage passed."""
    return f"{check_path(checkpoint_uri)}.verified"


def quarantined(checkpoint_uri: str) -> str:
    """Mark: quarantined, with the reason."""
    return f"{check_path(checkpoint_uri)}.quarantined"


def models(name: str | None = None) -> str:
    """Folder of a model's versions, or the folder of all models."""
    return "models" if name is None else f"models/{name_part(name)}"


def model(name: str, version: int) -> str:
    """Sealed version of a model, from 1."""
    return f"{models(name)}/{number_part(version)}"


def alias(model_name: str, alias_name: str) -> str:
    """Pointer of a model's alias; an alias cannot be named `history`, which is the receipts' folder."""
    if alias_name == "history":
        raise UsageError("'history' cannot be an alias: receipts are kept under that name.", remedy="Choose another.")
    return f"aliases/{name_part(model_name)}/{name_part(alias_name)}"


def histories(model_name: str) -> str:
    """Folder of the histories of a model's aliases."""
    return f"aliases/{name_part(model_name)}/history"


def history(model_name: str, alias_name: str) -> str:
    """Folder of an alias's sealed receipts."""
    return f"{histories(model_name)}/{name_part(alias_name)}"


def receipt(model_name: str, alias_name: str, k: int) -> str:
    """Sealed receipt `k` of an alias, from 0."""
    return f"{history(model_name, alias_name)}/{number_part(k)}"


def signature(receipt_uri: str, what: str) -> str:
    """A signature beside a receipt, one of `SIGNATURES`."""
    return f"{receipt_uri}.{what}"


def aliases(model_name: str | None = None) -> str:
    """Folder of a model's aliases, or the folder of all aliases."""
    return "aliases" if model_name is None else f"aliases/{name_part(model_name)}"


def protections(model_name: str, alias_name: str) -> str:
    """Folder of decisions about the protection of an alias: `<k>.json` from 0, the newest of which holds."""
    return f"protections/{name_part(model_name)}/{name_part(alias_name)}"


def protection(model_name: str, alias_name: str, k: int) -> str:
    """Decision `k` about the protection of an alias."""
    return f"{protections(model_name, alias_name)}/{number_part(k)}.json"


def questions(model_name: str, alias_name: str) -> str:
    """Folder that lists the questions about an alias, in order: `<k>.json` from 0; some may be gone."""
    return f"questions/{name_part(model_name)}/{name_part(alias_name)}"


def question_entry(model_name: str, alias_name: str, k: int) -> str:
    """Entry `k` of that list: the run and the number of its question."""
    return f"{questions(model_name, alias_name)}/{number_part(k)}.json"


def canaries() -> str:
    """Folder of what versions before 2026-11-29 kept of canaries."""
    return "canaries"


def approvals(run_id: str) -> str:
    """Folder of a run's questions to people: `<n>/` from 0."""
    return f"runs/{name_part(run_id)}/approvals"


def question(run_id: str, n: int) -> str:
    """Question `n` of a run: may the candidate be promoted?"""
    return f"{approvals(run_id)}/{number_part(n)}/question.json"


def answer(run_id: str, n: int) -> str:
    """The answer to question `n`."""
    return f"{approvals(run_id)}/{number_part(n)}/answer.json"


def exposures(rows_id: str | None = None) -> str:
    """Folder of the comparisons that a set of test rows decided, or the folder of all sets."""
    return "exposures" if rows_id is None else f"exposures/{name_part(rows_id)}"


def exposed_rows(rows_id: str) -> str:
    """The digests of the rows."""
    return f"{exposures(rows_id)}/rows"


def exposure(rows_id: str, n: int, what: str = "json") -> str:
    """Entry of comparison `n` from 0, or beside it `spent.json` (spent before) or `better` (a mark)."""
    return f"{exposures(rows_id)}/{number_part(n)}.{what}"


def split_exposure(path: str) -> tuple[str, int, str] | None:
    """(rows_id, n, what) of a path of `exposure`; None for another path."""
    match = re.fullmatch(r"exposures/([^/]+)/(0|[1-9][0-9]*)\.(json|spent\.json|better)", path)
    return (match[1], int(match[2]), match[3]) if match else None


def rules_versions(kind: str) -> str:
    """Folder of the versions of a store's `budgets` or `policy`: `<n>.json` from 0, the newest of which holds."""
    return f"editions/{name_part(kind)}"


def rules_version(kind: str, n: int) -> str:
    """Version `n`."""
    return f"{rules_versions(kind)}/{number_part(n)}.json"


def periods(budget: str, scope: str) -> str:
    """Folder of the periods in which a budget was used; `scope` is the digest of what it counts."""
    return f"{_ROOT}/{name_part(budget)}/{name_part(scope)}"


def balance(budget: str, scope: str, period: str) -> str:
    """Pointer: the amounts of a budget that are used and held in a period."""
    return f"{periods(budget, scope)}/{name_part(period)}/balance"


def entries(budget: str, scope: str, period: str) -> str:
    """Folder of what each ended execution used of it."""
    return f"{periods(budget, scope)}/{name_part(period)}/entries"


def entry(budget: str, scope: str, period: str, name: str) -> str:
    """Record of what one execution used, created once."""
    return f"{entries(budget, scope, period)}/{name_part(name)}.json"


def warning(budget: str, scope: str, period: str, name: str) -> str:
    """Record that a share of it was reached, created once."""
    return f"{periods(budget, scope)}/{name_part(period)}/warned/{name_part(name)}.json"


def concurrency_lock(pipeline_name: str) -> str:
    """Pointer, a lease: which of the runs that no person started may work."""
    return f"schedules/{name_part(pipeline_name)}/turn"


def end_request(pipeline_name: str, token: int, holder: str) -> str:
    """Mark, created once: it asks the holder of the concurrency lock with this fencing token to end.

    A holder's name is random, so nobody can ask a holder to end before it exists.
    """
    return f"schedules/{name_part(pipeline_name)}/wanted/{number_part(token)}-{digest(holder)[:16]}.json"


def scheduled(pipeline_name: str, key: str) -> str:
    """Record, created once: a scheduled time, known by its run's key, has its run."""
    return f"schedules/{name_part(pipeline_name)}/times/{digest(key)}.json"


def sensor_cursor(pipeline_name: str) -> str:
    """Pointer: the newest step of the pipeline's sensor whose run has been started."""
    return f"schedules/{name_part(pipeline_name)}/sensor/cursor"


def sensor_steps(pipeline_name: str) -> str:
    """Folder of the steps of the pipeline's sensor."""
    return f"schedules/{name_part(pipeline_name)}/sensor/steps"


def sensor_step(pipeline_name: str, n: int) -> str:
    """Record of step `n` from 0, created once: the files that it was about."""
    return f"{sensor_steps(pipeline_name)}/{number_part(n)}.json"


def node_folder(name: str) -> str:
    """Name of a node's folder below `nodes`: the node's name, or its digest if the name cannot be part of a path."""
    try:
        return valid_name(name)
    except ValueError:
        return digest(name)[:32]


def node_failures(folder: str) -> str:
    """Folder of the failure events of a node."""
    return f"{NODES}/{name_part(folder)}/mishaps"


def node_failure(name: str, same: str) -> str:
    """One failure event; `same` is the digest of what identifies it."""
    return f"{node_failures(node_folder(name))}/{name_part(same)}.json"


def node_standings(folder: str) -> str:
    """Folder of people's decisions about a node: `<k>.json` from 0, the newest of which holds."""
    return f"{NODES}/{name_part(folder)}/standing"


def node_standing(folder: str, k: int) -> str:
    """Decision `k` about a node."""
    return f"{node_standings(folder)}/{number_part(k)}.json"


def game_day_record(training: str, what: Literal["injected", "first", "caught-up"]) -> str:
    """Record of a training's fault: that it is injected, the first step after it, and the first that is new."""
    return f"{check_path(training)}/game-day/{name_part(what)}.json"
