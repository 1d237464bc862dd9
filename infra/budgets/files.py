"""Reads a file of budgets, or a policy on tags."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from data_contracts.budgets import VERSION, Budgets, Policy
from data_contracts.errors import UsageError
from data_contracts.validation_errors import problems
from data_contracts.yaml_document import Document, Problem
from data_contracts.yaml_text import read_document

F = TypeVar("F", Budgets, Policy)


def read_rules(path: Path, model: type[F]) -> F:
    """The file as `model`; UsageError with `file:line: field: what` for each mistake."""
    document = read_document(path, model.called, "write it as docs/budgets.md shows")
    version = document.value.get("version")
    if isinstance(version, int) and version > VERSION:
        sentence = f"{version} is newer than the {VERSION} that this Trainwright reads; upgrade Trainwright"
        raise _error(document, [Problem(("version",), sentence)])
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise _error(document, problems(error, model, document.value)) from None


def _error(document: Document, wrong: list[Problem]) -> UsageError:
    found = document.error(wrong)
    return UsageError(found.message, details=found.details)
