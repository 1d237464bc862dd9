"""`protect`: an alias whose promotions need an approval, whatever a spec says."""

from __future__ import annotations

import argparse

from data_contracts.canonical import is_name
from data_contracts.errors import UsageError
from flows.commands.guard import Answer
from infra import audit
from infra.approvals import public_pem
from infra.processes.environment import SIGNING_KEY
from infra.signing.moves import configured_key
from infra.store import Store, layout
from tasks.run.run import known_store_list, not_found
from tasks.stages.approval import protect as protect_alias
from tasks.stages.approval import unprotect


def protect(arguments: argparse.Namespace) -> Answer:
    """The `protect` command."""
    model, _, alias = arguments.name.partition("@")
    alias = alias or "champion"
    if not is_name(model) or not is_name(alias) or alias == "history":
        raise UsageError(f"{arguments.name} cannot be a model and its alias.", remedy="Write it as NAME@ALIAS.")
    store = _store(arguments.store, model)
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


def _store(uri: str | None, model: str) -> Store:
    """The named store, the known store that has the model, or the only known store: the model may not exist yet."""
    stores = known_store_list(uri)
    having = [store for store in stores if store.list(layout.models(model))]
    if having or len(stores) == 1:
        return (having or stores)[0]
    raise not_found(f"model {model}", stores)
