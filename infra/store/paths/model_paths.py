"""The paths of models, versions, aliases, canaries, approvals and the exposure ledger; `layout` has them, too.

`rows_id` stands for the rows of a test set.
"""

from __future__ import annotations

import re

from data_contracts.errors import UsageError
from infra.store.paths.path_parts import name_part, number_part

# Of the training, of the model's files, and of the receipt, which is written last.
SIGNATURES = ("provenance.dsse", "model.sig", "receipt.dsse")


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


def canaries(model_name: str | None = None) -> str:
    """Folder of a model's canaries, or of those of all models."""
    return "canaries" if model_name is None else f"canaries/{name_part(model_name)}"


def canary(model_name: str, k: int) -> str:
    """Folder of the canary that began with receipt `k` of the alias `canary`."""
    return f"{canaries(model_name)}/{number_part(k)}"


def canary_end(model_name: str, k: int) -> str:
    """How a canary ended."""
    return f"{canary(model_name, k)}/end.json"


def canary_ask(model_name: str, k: int, champion: int) -> str:
    """Record of the run that asks whether a canary may replace this version."""
    return f"{canary(model_name, k)}/asks/{number_part(champion)}.json"


def canary_nights(model_name: str, k: int, champion: int) -> str:
    """Folder of a canary's tallies beside a version: `<n>.json` from 0."""
    return f"{canary(model_name, k)}/nights/{number_part(champion)}"


def canary_night(model_name: str, k: int, champion: int, n: int) -> str:
    """Tally `n` of a canary beside a version."""
    return f"{canary_nights(model_name, k, champion)}/{number_part(n)}.json"


def canary_rows(model_name: str, k: int, rows_id: str) -> str:
    """The digests of some rows, named by what is in the file."""
    return f"{canary(model_name, k)}/rows/{name_part(rows_id)}"


def canary_seen(model_name: str, k: int, dataset: str) -> str:
    """Record of the file with the digests of all rows of a dataset that one of the models has seen."""
    return f"{canary(model_name, k)}/seen/{name_part(dataset)}.json"


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
