"""Reads a pipeline spec: YAML and `--set` overrides become a typed `PipelineSpec`, or an error with file and line.

Pydantic's errors about a model of ours become plain sentences, one for each mistake. Pydantic reports every branch of a
union. Here the branch that the user meant is kept; if no branch fits, one sentence names what would fit.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from data_contracts.errors import SpecError
from data_contracts.lightning_config import READ_IT, STORED, config_problems
from data_contracts.pipeline_spec import VERSION, PipelineSpec, StoreSpec
from data_contracts.pipeline_spec.base import FieldError, Shorthand, descriptions
from data_contracts.pipeline_spec.data import (
    TAGS_ARE_SHOWN,
    addresses_with_credentials,
    credential_in,
    tags_with_credentials,
)
from data_contracts.yaml_text import Document, FieldPath, Problem, dotted, parse, read_document, shown

_NO_VERSION = Problem(("version",), f"is missing; write `version: {VERSION}` as the first line")
# What a field expects, by pydantic's error type for a value of another kind.
_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
}
_BOUNDS = {"greater_than_equal": "ge", "greater_than": "gt", "less_than_equal": "le", "less_than": "lt"}
_BOUND_WORDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def load_spec(path: Path, overrides: Sequence[str] = ()) -> PipelineSpec:
    """Read the spec at `path`, with overrides such as `train.seed=3` (the value is read as YAML).

    Raises:
        SpecError: with a line `file:line: field: what; what to do` for each mistake.
    """
    advice = "`trainwright init DIR` writes a pipeline that runs as it is"
    document = read_document(Path(path), "a pipeline spec", advice)
    for override in overrides:
        _override(document, override, Path(path).parent)
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


def _credentials(document: dict[str, object], spec: PipelineSpec) -> list[Problem]:
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
        _override(document, override, Path())
    try:
        return StoreSpec.model_validate(document.value)
    except ValidationError as error:
        raise document.error(problems(error, StoreSpec, document.value)) from None


def _override(document: Document, text: str, folder: Path) -> None:
    """Replace a field by `field=value`; what a field of `train.lightning` is in, a file in `folder`, is read first."""
    field, equals, value = text.partition("=")
    parts = tuple(field.strip().split("."))
    if not equals or not all(parts):
        raise SpecError(f"--set {field}: write it as field=value, such as --set train.seed=3.")
    if what := credential_in(value):
        why = TAGS_ARE_SHOWN if parts[0] == "tags" else STORED
        raise SpecError(f"--set {field}: has an address with {what}; {why}.", remedy=_remedy(parts))
    if parts[0] == "tags" and len(parts) == 2 and (said := tags_with_credentials({parts[1]: value})):
        raise SpecError(f"--set {field}: {said[parts[1]]}")  # a later --set could hide it
    train = document.value.get("train")
    config = train.get("lightning") if isinstance(train, dict) else None
    if parts[:2] == ("train", "lightning") and len(parts) > 2 and isinstance(config, str):
        advice = "correct train.lightning in the spec, or write the file"
        document.override(("train", "lightning"), read_document(folder / config, "a LightningCLI config", advice))
    document.override(parts, parse(value, f"--set {field}", place="--set"))


def json_schema() -> dict[str, object]:
    """The spec's JSON Schema, for editors: every field with its description, shorthands included."""
    schema = PipelineSpec.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": f"Trainwright pipeline spec, version {VERSION}",
    }


_Errors = list[tuple[FieldPath, Any]]


@dataclass(frozen=True)
class _Found:
    problem: Problem
    missing: bool = False
    guess: str = ""
    """For an unknown key: the known one beside it that was probably meant."""


def problems(error: ValidationError, model: type[BaseModel], value: Any) -> list[Problem]:
    """The mistakes that `error` reports in `value`, which was to become a `model`."""
    pairs: _Errors = [(entry["loc"], entry) for entry in error.errors(include_url=False)]
    errors = list(_settle(pairs, (), value, model))
    # `batchsize` in place of a required `batch_size` is one mistake, not an unknown key and a missing key.
    meant = {(*one.problem.field[:-1], one.guess) for one in errors if one.guess}
    return [one.problem for one in errors if not (one.missing and one.problem.field in meant)]


def _settle(errors: _Errors, field: FieldPath, value: Any, model: type[BaseModel]) -> typing.Iterator[_Found]:
    """Follow the errors' paths through the user's values; a part that is not written there is a union's branch."""
    below: dict[str | int, _Errors] = {}
    branches: dict[str, _Errors] = {}
    same: _Errors = []
    for loc, entry in errors:
        if not loc or loc == ("[key]",):
            yield _sentence(entry, field, model)
        elif _written(value, loc[0]) or (loc[1:] == () and entry["type"] == "missing"):
            below.setdefault(loc[0], []).append((loc[1:], entry))
        elif isinstance(loc[0], int):
            same.append((loc[1:], entry))  # a single entry without a list around it
        else:
            branches.setdefault(loc[0], []).append((loc[1:], entry))
    if same:
        yield from _settle(same, field, value, model)
    for part, inner in below.items():
        inner_value = value[part] if _written(value, part) else None
        yield from _settle(inner, (*field, part), inner_value, model)
    if not branches:
        return
    fitting = [inner for inner in branches.values() if not all(_other_kind(loc, entry) for loc, entry in inner)]
    if fitting:
        yield from _settle(min(fitting, key=len), field, value, model)
        return
    entries = [entry for inner in branches.values() for _, entry in inner]
    wanted = list(dict.fromkeys(_wanted(entry) for entry in entries))
    yield _Found(Problem(field, f"must be {_listed(wanted, 'or')}, {_got(value, field)}"))


def _written(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _other_kind(loc: FieldPath, entry: Any) -> bool:
    return not loc and (entry["type"] in _KINDS or entry["type"] == "literal_error")


def _wanted(entry: Any) -> str:
    return str(entry["ctx"]["expected"]) if entry["type"] == "literal_error" else _KINDS[entry["type"]]


def _sentence(entry: Any, field: FieldPath, model: type[BaseModel]) -> _Found:
    kind, value, ctx = entry["type"], entry["input"], entry.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(field, model)
    if kind == "missing":
        return _Found(Problem(field, f"is missing; add it ({_description(model, field)})"), missing=True)
    if kind == "value_error":
        cause = ctx["error"]
        if isinstance(cause, FieldError):
            return _Found(Problem((*field, *cause.field), cause.sentence))
        return _Found(Problem(field, str(cause)))
    if kind in _KINDS:
        short = any(_is_model(branch) and issubclass(branch, Shorthand) for branch in _branches(model, field))
        sentence = f"must be {'text or ' * short}{_KINDS[kind]}, {_got(value, field)}{_quotes(kind, value)}"
    elif kind == "literal_error":
        allowed = [part.strip("'") for part in ctx["expected"].replace(" or ", ", ").split(", ")]
        near = difflib.get_close_matches(str(value), allowed, 1) if str(value) not in allowed else []
        one_of = "one of " if len(allowed) > 2 else ""
        hint = (
            f"; did you mean {near[0]}?" if near and len(allowed) > 1 else "; take the quotes off" * (value in allowed)
        )
        sentence = f"must be {one_of}{_listed(allowed, 'or')}, {_got(value, field)}{hint}"
    elif kind in _BOUNDS:
        bound = ctx[_BOUNDS[kind]]
        number = f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
        sentence = f"must be {_BOUND_WORDS[_BOUNDS[kind]]} {number}, {_got(value, field)}"
    elif kind == "too_short":
        sentence = "must not be empty"
    else:
        sentence = f"{entry['msg'][:1].lower()}{entry['msg'][1:]}, {_got(value, field)}"
    return _Found(Problem(field, sentence))


def _got(value: Any, field: FieldPath) -> str:
    # A storage option may be a secret in the wrong place.
    if "storage_options" in field:
        return "and is something else"
    return "but nothing is written here" if value is None else f"got {shown(value)}"


def _quotes(kind: str, value: Any) -> str:
    if kind == "string_type" and isinstance(value, bool | int | float):
        return "; put quotes around it"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return ""
        return "; take the quotes off"
    return ""


def _unknown(field: FieldPath, model: type[BaseModel]) -> _Found:
    key, known = str(field[-1]), sorted(_known(model, field[:-1]))
    near = difflib.get_close_matches(key.lower().replace("-", "_"), known, 1)
    if near:
        return _Found(Problem(field, f"unknown key; did you mean {near[0]}?"), guess=near[0])
    elsewhere = [section for section in _sections(model) if key in _known(model, section)]
    if elsewhere:
        places = _listed([dotted((*section, key)) for section in elsewhere[:3]], "or")
        return _Found(Problem(field, f"unknown key here; did you mean {places}?"))
    here = f"{dotted(field[:-1])} has" if field[:-1] else f"{getattr(model, 'called', 'a spec')} has"
    return _Found(Problem(field, f"unknown key; {here} {_listed(known, 'and')}"))


def _listed(words: list[str], joint: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {joint} {words[-1]}"


def _known(model: type[BaseModel], field: FieldPath) -> set[str]:
    """The keys that a section of the spec may have, over all branches of a union there."""
    models = [branch for branch in _branches(model, field) if _is_model(branch)]
    return {name for branch in models for name in branch.model_fields}


def _description(model: type[BaseModel], field: FieldPath) -> str:
    branches = [branch for branch in _branches(model, field[:-1]) if _is_model(branch)]
    texts = [descriptions(branch).get(str(field[-1])) for branch in branches if field[-1] in branch.model_fields]
    return " ".join(str(texts[0]).split()).rstrip(".")


def _sections(model: type[BaseModel], above: FieldPath = ()) -> typing.Iterator[FieldPath]:
    yield above
    for name, info in model.model_fields.items():
        for branch in _flat(info.annotation):
            if _is_model(branch):
                yield from _sections(branch, (*above, name))


def _branches(model: type[BaseModel], field: FieldPath) -> list[Any]:
    """The types that may stand at `field`."""
    now: list[Any] = [model]
    for part in field:
        found: list[Any] = []
        for branch in now:
            # A single entry may be written without its list: then the path has no index.
            while typing.get_origin(branch) is list and not isinstance(part, int):
                branch = typing.get_args(branch)[0]
            if _is_model(branch):
                if part in branch.model_fields:
                    found += _flat(branch.model_fields[part].annotation)
            elif typing.get_origin(branch) in (list, dict):
                found += _flat(typing.get_args(branch)[-1])
        now = found
    return [typing.get_args(branch)[0] if typing.get_origin(branch) is list else branch for branch in now]


def _flat(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _flat(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [branch for part in typing.get_args(annotation) for branch in _flat(part)]
    return [annotation]


def _is_model(branch: Any) -> bool:
    return isinstance(branch, type) and issubclass(branch, BaseModel)
