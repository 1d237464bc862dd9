"""Finds model versions by number or by alias, and checks each against the receipts that name it."""

from __future__ import annotations

from data_contracts.alias_moves import ALIAS
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import ModelVersion, Ref
from infra.models import registry
from infra.models.canaries import refuse_ended
from infra.store import Store, layout


def existing_version(store: Store, model: str, number: int) -> ModelVersion:
    """A version of a model by its number; UsageError if it does not exist, CorruptError if it is not the promoted
    version.
    """
    try:
        version = registry.read_version(store, model, number)
        _check_promoted(store, model, number, version)
        return version
    except FileNotFoundError as error:
        raise UsageError(
            f"{model} has no version {number} in {store.uri}.",
            remedy="`trainwright status` lists models, `trainwright show` their versions.",
        ) from error


def _check_promoted(store: Store, model: str, number: int, version: ModelVersion) -> None:
    """CorruptError unless the version stored under a number is the one that its promotion receipts name."""
    aliases = [name for name in store.list(layout.aliases(model)) if name != "history"]
    receipts = [receipt for alias in aliases for receipt in registry.history(store, model, alias)]
    named = [one.candidate for one in receipts if one.candidate and one.candidate.uri == version.ref.uri]
    if (version.name, version.version) != (model, number) or any(ref != version.ref for ref in named):
        path = layout.manifest(version.ref.uri)
        raise CorruptError(
            f"{path} is whole, but is not the version {number} that was promoted.", details={"file": path}
        )


def find_version(store: Store, name: str) -> tuple[ModelVersion, str | None]:
    """The version that `model`, `model@alias` or `model@3` names (default alias: champion), and the alias."""
    model, _, which = name.partition("@")
    if which.isdigit():
        return existing_version(store, model, int(which)), None
    alias = which or "champion"
    pointer = registry.read_alias(store, model, alias)
    if pointer is None:
        raise UsageError(
            f"There is no {model}@{alias} in {store.uri}.", remedy="`trainwright status` lists models and aliases."
        )
    if alias == ALIAS:
        refuse_ended(store, model)
    return registry.model_version(store, Ref.model_validate(pointer[0].value["model_version"])), alias
