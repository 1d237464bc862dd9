"""Every path in a store, as pure functions; no other module builds one.

Paths are relative to the store's root, with `/`. A sealed directory is named by its URI, such as `datasets/<key>-0`.
"""

from __future__ import annotations

import re

from data_contracts.canonical import digest, valid_name
from infra.store.paths.model_paths import SIGNATURES as SIGNATURES
from infra.store.paths.model_paths import alias as alias
from infra.store.paths.model_paths import aliases as aliases
from infra.store.paths.model_paths import answer as answer
from infra.store.paths.model_paths import approvals as approvals
from infra.store.paths.model_paths import canaries as canaries
from infra.store.paths.model_paths import canary as canary
from infra.store.paths.model_paths import canary_ask as canary_ask
from infra.store.paths.model_paths import canary_end as canary_end
from infra.store.paths.model_paths import canary_night as canary_night
from infra.store.paths.model_paths import canary_nights as canary_nights
from infra.store.paths.model_paths import canary_rows as canary_rows
from infra.store.paths.model_paths import canary_seen as canary_seen
from infra.store.paths.model_paths import exposed_rows as exposed_rows
from infra.store.paths.model_paths import exposure as exposure
from infra.store.paths.model_paths import exposures as exposures
from infra.store.paths.model_paths import histories as histories
from infra.store.paths.model_paths import history as history
from infra.store.paths.model_paths import model as model
from infra.store.paths.model_paths import models as models
from infra.store.paths.model_paths import protection as protection
from infra.store.paths.model_paths import protections as protections
from infra.store.paths.model_paths import question as question
from infra.store.paths.model_paths import question_entry as question_entry
from infra.store.paths.model_paths import questions as questions
from infra.store.paths.model_paths import receipt as receipt
from infra.store.paths.model_paths import signature as signature
from infra.store.paths.model_paths import split_exposure as split_exposure
from infra.store.paths.path_parts import check_path as check_path
from infra.store.paths.path_parts import name_part as _name
from infra.store.paths.path_parts import number_part as _number
from infra.store.paths.run_paths import backfilled as backfilled
from infra.store.paths.run_paths import backfills as backfills
from infra.store.paths.run_paths import crash as crash
from infra.store.paths.run_paths import crashes as crashes
from infra.store.paths.run_paths import environment as environment
from infra.store.paths.run_paths import environments as environments
from infra.store.paths.run_paths import errands as errands
from infra.store.paths.run_paths import execution as execution
from infra.store.paths.run_paths import executions as executions
from infra.store.paths.run_paths import handed_over as handed_over
from infra.store.paths.run_paths import imported_from as imported_from
from infra.store.paths.run_paths import month_costs as month_costs
from infra.store.paths.run_paths import month_folder as month_folder
from infra.store.paths.run_paths import profiled as profiled
from infra.store.paths.run_paths import run_of_errand as run_of_errand
from infra.store.paths.run_paths import runs_with as runs_with
from infra.store.paths.run_paths import slot as slot
from infra.store.paths.run_paths import slots as slots
from infra.store.paths.run_paths import stages as stages
from infra.store.paths.run_paths import trainings as trainings
from infra.store.paths.training_paths import beat as beat
from infra.store.paths.training_paths import cancel as cancel
from infra.store.paths.training_paths import checkpoint as checkpoint
from infra.store.paths.training_paths import checkpoints as checkpoints
from infra.store.paths.training_paths import generation as generation
from infra.store.paths.training_paths import joined as joined
from infra.store.paths.training_paths import latest as latest
from infra.store.paths.training_paths import launch as launch
from infra.store.paths.training_paths import lease as lease
from infra.store.paths.training_paths import logger_files as logger_files
from infra.store.paths.training_paths import node as node
from infra.store.paths.training_paths import node_exit as node_exit
from infra.store.paths.training_paths import quarantined as quarantined
from infra.store.paths.training_paths import rank_log as rank_log
from infra.store.paths.training_paths import result as result
from infra.store.paths.training_paths import rollcall as rollcall
from infra.store.paths.training_paths import split_checkpoint as split_checkpoint
from infra.store.paths.training_paths import split_generation as split_generation
from infra.store.paths.training_paths import training as training
from infra.store.paths.training_paths import verified as verified

STORE = "store.json"
MANIFEST = "manifest.json"
_ATTEMPT = re.compile(r"(.+)-(0|[1-9][0-9]*)")


def attempt(area: str, key: str, n: int) -> str:
    """Attempt `n` (from 0) of reuse key `key` in `contracts`, `datasets`, `evaluations` or `trainings`."""
    return f"{_name(area)}/{_name(key)}-{_number(n)}"


def split_attempt(name: str) -> tuple[str, int] | None:
    """`<key>-<n>` as (key, n); None for another name."""
    match = _ATTEMPT.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def manifest(uri: str) -> str:
    """The manifest of a sealed directory."""
    return f"{uri}/{MANIFEST}"


def tombstone(uri: str) -> str:
    """The record of what was deleted at `uri`, why and by whom."""
    return f"tombstones/{check_path(uri)}.json"


def uses(uri: str) -> str:
    """Folder of the days on which `uri` was claimed for use."""
    return f"uses/{check_path(uri)}"


def use(uri: str, day: str) -> str:
    """Mark: claimed for use on `day` (ISO, UTC), created once."""
    return f"{uses(uri)}/{_name(day)}"


def code(code_digest: str, n: int = 0) -> str:
    """Sealed bundle of a user's code; number `n` of the same files, after `n` deleted bundles."""
    return f"code/{_name(code_digest)}" + (f"-{_number(n)}" if n else "")


def imported(content_digest: str) -> str:
    """Sealed weights from outside."""
    return f"imports/{_name(content_digest)}"


# Runs.


def trigger(idempotency_key: str) -> str:
    """Record of what an idempotency key started; a key that is not a valid name is replaced by its digest."""
    try:
        return f"triggers/{valid_name(idempotency_key)}"
    except ValueError:
        return f"triggers/{digest(idempotency_key)}"


def pipeline(slug: str) -> str:
    """Record of the pipeline that owns a page name, created once."""
    return f"pipelines/{_name(slug)}"


def runs() -> str:
    """Folder of all runs, named by their ids, which sort by time."""
    return "runs"


def run(run_id: str) -> str:
    """Folder of a run."""
    return f"runs/{_name(run_id)}"


def resolved(run_id: str) -> str:
    """A run's inputs, resolved once at its start."""
    return f"{run(run_id)}/resolved.json"


def inputs_signature(run_id: str) -> str:
    """The signature of a run's inputs."""
    return f"{run(run_id)}/resolved.dsse"


def stage(run_id: str, stage_name: str) -> str:
    """Record of how a stage of a run ended."""
    return f"{run(run_id)}/stages/{_name(stage_name)}.json"


def report(run_id: str) -> str:
    """A run's report."""
    return f"{run(run_id)}/report.json"


def page(run_id: str, n: int | None = None) -> str:
    """The page of a run's report; or of attempt `n`, which is not beside its record, because attempts are counted."""
    return f"{run(run_id)}/report.html" if n is None else f"{run(run_id)}/pages/{_number(n)}.html"


def run_attempts(run_id: str) -> str:
    """Folder of the attempts (Prefect's flow runs) of a run."""
    return f"{run(run_id)}/attempts"


def run_attempt(run_id: str, n: int) -> str:
    """One attempt of a run."""
    return f"{run_attempts(run_id)}/{_number(n)}.json"


def usages(run_id: str, execution: str | None = None) -> str:
    """Folder of what a run's executions used; or of one execution."""
    return f"{run(run_id)}/usage" + (f"/{_name(execution)}" if execution is not None else "")


def usage(run_id: str, execution: str, what: str) -> str:
    """Record of an execution: `began`, `ended`, or a numbered part such as `gang-0`."""
    return f"{usages(run_id, execution)}/{_name(what)}.json"


def usage_beat(run_id: str, execution: str) -> str:
    """Pointer: until when an execution is known to have worked."""
    return f"{usages(run_id, execution)}/beat"


def mirrored(run_id: str | None = None, mirror: str | None = None) -> str:
    """Folder of the updates that mirrors got about a run or a rollback; of one mirror; or of all runs."""
    parts = [_name(part) for part in (run_id, mirror) if part is not None]
    return "/".join(["mirrored", *parts])


def delivery(run_id: str, mirror: str, what: str, n: int) -> str:
    """Record of attempt `n` from 0 to tell a mirror `what`: `final`, `alias`, or the number of the run's attempt."""
    return f"{mirrored(run_id, mirror)}/{_name(what)}-{_number(n)}.json"


def telling() -> str:
    """Pointer: which process sends updates to the mirrors of this store."""
    return "mirrored/lease"


def errand(run_id: str, name: str) -> str:
    """Folder of a job that a node elsewhere does for a run; its layout is that of a training."""
    return f"{run(run_id)}/errands/{_name(name)}"
