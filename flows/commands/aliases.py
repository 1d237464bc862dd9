"""`rollback`, `release`: a person's decisions about an alias."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from flows.commands.guard import Answer
from flows.commands.queries import store_with
from infra import audit
from tasks.stages.rollback import release as lift
from tasks.stages.rollback import rollback as roll_back

# How long the mirrors may take after a rollback, which is done by then.
MIRRORS_S = 20.0


def rollback(arguments: argparse.Namespace) -> Answer:
    """The `rollback` command."""
    from tasks.mirrors.deliver import tell_quietly  # slow, and no other decision needs it

    model, _, alias = arguments.name.partition("@")
    about = provenance_of("rollback")
    store, alias = store_with(arguments), alias or "champion"
    receipt = roll_back(store, model, alias, arguments.to, about, arguments.reason, arguments.evidence)
    tell_quietly(store, MIRRORS_S)
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
