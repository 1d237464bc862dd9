"""Recipes in the store: sealed once under the digest of their content, and read again."""

from __future__ import annotations

import functools
import hashlib
import itertools
import platform
from typing import Any

from data_contracts.canonical import KEY_LENGTH, plain
from data_contracts.errors import CorruptError
from data_contracts.handoffs import Ref
from data_contracts.recipe import OwnRevision, Recipe
from data_contracts.resolved import Resolved
from infra import audit
from infra.processes.processes import CODE_ROOT
from infra.project.installed_versions import source_digest
from infra.store import Manifest, Store, layout

AREA, KIND, FILE = "recipes", "recipe", "recipe.json"


def seal_recipe(store: Store, resolved: Resolved, provenance: dict[str, Any]) -> Ref:
    """Seal the recipe of a run on this installation, unless it is sealed already."""
    packages = audit.lock()
    recipe = Recipe(
        # What is installed now, not when the run began: a run may be resumed after an upgrade.
        resolved=resolved.model_copy(update={"lock_digest": audit.lock_digest(packages)}),
        lock=packages,
        python=platform.python_version(),
        trainwright=own_revision(),
    )
    # Not in canonical form: the order of splits and of arguments counts.
    data = plain(recipe.to_json())
    for n in itertools.count():
        uri = layout.attempt(AREA, _name_of(data), n)
        if store.claim(uri):
            break  # else it was deleted, or is about to be
    writer = store.writer(uri, afresh=True)
    writer.put(FILE, data)
    return writer.seal(KIND, {}, {**provenance, "parents": []})


def read_recipe(store: Store, ref: Ref) -> Recipe:
    """A sealed recipe; CorruptError if its bytes, or what its name stands for, are not as sealed."""
    manifest = store.verify(ref)
    check_recipe(store, manifest)
    return store.read_sealed_as(manifest, FILE, Recipe.from_json)


def check_recipe(store: Store, manifest: Manifest) -> None:
    """Raise CorruptError unless a recipe is what its name, a digest, stands for."""
    name = manifest.uri.removeprefix(f"{AREA}/").rpartition("-")[0]
    path = f"{manifest.uri}/{FILE}"
    if manifest.kind != KIND or _name_of(store.read_sealed(manifest, FILE)) != name:
        raise CorruptError(f"{path} is not the recipe that its name stands for.", details={"file": path})
    recipe = store.read_sealed_as(manifest, FILE, Recipe.from_json)
    if recipe.resolved.lock_digest != audit.lock_digest(recipe.lock):
        raise CorruptError(f"{path} has a lock that is not the one whose digest it names.", details={"file": path})


def _name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:KEY_LENGTH]


@functools.cache
def own_revision() -> OwnRevision:
    """The Trainwright that runs in this process."""
    revision, dirty = audit.revision(CODE_ROOT)
    return OwnRevision(source=source_digest(), revision=revision, dirty=dirty)
