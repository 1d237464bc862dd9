"""The earlier data that `contract.drift` names, looked up once, and its profile."""

from __future__ import annotations

from pathlib import Path

from data_contracts.canonical import digest
from data_contracts.errors import CorruptError, SpecError, UsageError
from data_contracts.foreign_files import parse_json, read_plain
from data_contracts.handoffs import ModelVersion, Ref
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.profile.record import Profile
from data_contracts.resolved import DriftReference
from infra.contract.parts import read_profile
from infra.models import registry
from infra.store import Manifest, Store
from tasks.run.versions import find_version

_REMEDY = "Name a model as MODEL@ALIAS, a dataset as datasets/…, a report as contracts/…, or a profile's JSON file."


def resolve_drift(spec: PipelineSpec, path: Path, store: Store) -> DriftReference | None:
    """What the data is compared with; None without `contract.drift`. Without a champion, a reference with a note.

    Raises:
        UsageError: the named data does not exist or was deleted, or the file is not a profile that can be read.
        CorruptError: a byte on the way to the profile has changed.
    """
    wanted = None if spec.contract is None else spec.contract.drift
    if wanted is None:
        return None
    field, against = f"{path}: contract.drift.against", wanted.against
    if against.endswith(".json"):
        return DriftReference(
            name=against, path=against, digest=digest(_from_file(path.parent, against, field).to_json())
        )
    if against.startswith(("datasets/", "contracts/")):
        return _of_sealed(store, against, _existing(store, against, field))
    if against == "champion":
        pointer = registry.read_alias(store, spec.model_name, spec.promote.alias)
        name = f"{spec.model_name}@{spec.promote.alias}"
        if pointer is None:
            return DriftReference(name=name, note=f"there is no {name} yet, so the data is compared with nothing")
        return _of_version(
            store, name, registry.model_version(store, Ref.model_validate(pointer[0].value["model_version"]))
        )
    if "@" not in against:
        raise SpecError(f"{field}: {against!r} names no data.", remedy=_REMEDY)
    try:
        version, _ = find_version(store, against)
    except UsageError as error:
        raise UsageError(f"{field}: {error.message}", remedy=error.remedy) from error
    return _of_version(store, against, version)


def reference_profile(store: Store, reference: DriftReference, root: Path) -> Profile | None:
    """The profile that was looked up; None if the earlier data has none. CorruptError if it has changed since."""
    if reference.contract is not None:
        return read_profile(store, reference.contract)
    if reference.path is None:
        return None
    profile = _from_file(root, reference.path, "contract.drift.against")
    if digest(profile.to_json()) != reference.digest:
        raise CorruptError(f"{reference.path} has changed since the run was resolved.")
    return profile


def _from_file(root: Path, name: str, field: str) -> Profile:
    try:
        return Profile.from_json(parse_json(read_plain(root / name)))
    except FileNotFoundError as error:
        raise SpecError(f"{field}: there is no file {name} in {root}.", remedy=_REMEDY) from error
    except UsageError as error:
        raise UsageError(f"{field}: {name}: {error.message}", remedy=error.remedy) from error
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{field}: {name} is not a profile.", remedy="Copy profile.json of a contract report."
        ) from error


def _existing(store: Store, uri: str, field: str) -> Manifest:
    try:
        if store.claim(uri):
            return store.manifest(uri)
        why = "was deleted"
    except FileNotFoundError:
        why = f"is not in {store.uri}"
    raise UsageError(f"{field}: {uri} {why}.", remedy=_REMEDY)


def _of_version(store: Store, name: str, version: ModelVersion) -> DriftReference:
    try:
        dataset = store.manifest(version.checkpoint.ref).parent_in("datasets")
        if dataset is None:
            return DriftReference(name=name, note=f"{name} was trained on external data, which has no profile")
        return _of_sealed(store, name, store.manifest(dataset))
    except FileNotFoundError as error:
        raise CorruptError(f"What {name} was trained with is missing: {error}.") from error


def _of_sealed(store: Store, name: str, manifest: Manifest) -> DriftReference:
    """The reference to a contract report, or to the report that is a parent of a dataset."""
    contract = manifest.ref if manifest.uri.startswith("contracts/") else manifest.parent_in("contracts")
    if contract is None or read_profile(store, contract) is None:
        note = f"the data of {name} has no profile, because an earlier version of Trainwright validated it"
        return DriftReference(name=name, note=note)
    return DriftReference(name=name, contract=contract)
