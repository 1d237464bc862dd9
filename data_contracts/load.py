"""Reads a pipeline spec: YAML and `--set` overrides become a typed `PipelineSpec`, or an error with file and line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data_contracts.errors import SpecError
from data_contracts.lightning_config import READ_IT, STORED, check_lightning, config_problems, inline_lightning
from data_contracts.pipeline_spec import VERSION, PipelineSpec, StoreSpec
from data_contracts.pipeline_spec.data import (
    TAGS_ARE_SHOWN,
    addresses_with_credentials,
    credential_in,
    tags_with_credentials,
)
from data_contracts.validation_errors import problems
from data_contracts.yaml_document import Document, FieldPath, Problem
from data_contracts.yaml_text import parse, read_document

_NO_VERSION = Problem(("version",), f"is missing; write `version: {VERSION}` as the first line")

__all__ = ["check_lightning", "inline_lightning", "json_schema", "load_spec", "load_store"]


def load_spec(path: Path, overrides: Sequence[str] = ()) -> PipelineSpec:
    """Read the spec at `path`, with overrides such as `train.seed=3` (the value is read as YAML).

    Raises:
        SpecError: with a line `file:line: field: what; what to do` for each mistake.
    """
    advice = "`trainwright init DIR` writes a pipeline that runs as it is"
    document = read_document(Path(path), "a pipeline spec", advice)
    for override in overrides:
        _override(document, override)
    version = document.value.get("version")
    if isinstance(version, int) and version > VERSION:
        sentence = f"{version} is newer than the {VERSION} that this Trainwright reads; upgrade Trainwright"
        raise document.error([Problem(("version",), sentence)])
    try:
        spec = PipelineSpec.model_validate(document.value)
    except ValidationError as error:
        found = problems(error, PipelineSpec, document.value)
        if "version" not in document.value:
            found = [_NO_VERSION if one.field == ("version",) else one for one in found]
        raise document.error(found) from None
    # These checks are not in the model, so that the stored spec of an earlier run can still be read.
    if found := _credentials(document.value, spec):
        raise document.error(found)
    if isinstance(spec.train.lightning, dict):
        found = config_problems(spec.train.lightning, spec)
        if found:
            inline = ("train", "lightning")
            raise document.error(Problem((*inline, *problem.field), problem.sentence) for problem in found)
    return spec


def _credentials(document: dict[str, Any], spec: PipelineSpec) -> list[Problem]:
    """Tags that look like credentials, and addresses that hold one anywhere else in the spec."""
    tags = [Problem(("tags", name), sentence) for name, sentence in tags_with_credentials(spec.tags).items()]
    rest = {key: value for key, value in document.items() if key != "tags"}
    return tags + [
        Problem(field, f"has an address with {what}; {STORED}. {_remedy(field)}")
        for field, what in addresses_with_credentials(rest)
    ]


def _remedy(field: FieldPath) -> str:
    """How the value of a field does without the credential in its address."""
    if field[0] == "tags":
        return "Leave it out of the address."
    if "lightning" in field or "args" in field or "init_args" in field:
        return READ_IT
    if field[-1] == "pointers":
        return "Name the password (user:env:NAME@host)."
    return "Name it in storage_options (env:NAME or profile:NAME)."


def load_store(uri: str, pointers: str | None, overrides: Sequence[str] = ()) -> StoreSpec:
    """A spec's `store` section from a command line, with overrides such as `storage_options.anon=true`; SpecError if
    wrong.
    """
    section = {"uri": uri} if pointers is None else {"uri": uri, "pointers": pointers}
    document = Document("store", section, {})
    for override in overrides:
        _override(document, override)
    try:
        return StoreSpec.model_validate(document.value)
    except ValidationError as error:
        raise document.error(problems(error, StoreSpec, document.value)) from None


def _override(document: Document, text: str) -> None:
    field, equals, value = text.partition("=")
    parts = tuple(field.strip().split("."))
    if not equals or not all(parts):
        raise SpecError(f"--set {field}: write it as field=value, such as --set train.seed=3.")
    if what := credential_in(value):
        why = TAGS_ARE_SHOWN if parts[0] == "tags" else STORED
        raise SpecError(f"--set {field}: has an address with {what}; {why}.", remedy=_remedy(parts))
    if parts[0] == "tags" and len(parts) == 2 and (said := tags_with_credentials({parts[1]: value})):
        raise SpecError(f"--set {field}: {said[parts[1]]}")  # a later --set could hide it
    lightning = document.value.get("train", {}) if isinstance(document.value.get("train"), dict) else {}
    if parts[:2] == ("train", "lightning") and len(parts) > 2 and isinstance(lightning.get("lightning"), str):
        raise SpecError(
            f"--set: {field}: train.lightning names the file {lightning['lightning']}, which --set does not reach; "
            f"change the file, or write its content in the spec."
        )
    document.override(parts, parse(value, f"--set {field}", place="--set"))


def json_schema() -> dict[str, Any]:
    """The spec's JSON Schema, for editors: every field with its description, shorthands included."""
    schema = PipelineSpec.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": f"Trainwright pipeline spec, version {VERSION}",
    }
