"""Reads a file of rules: budgets, a policy on tags, or objectives."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from data_contracts.costs.budgets import VERSION, Budgets, Policy, is_visible
from data_contracts.errors import UsageError
from data_contracts.operations.objectives import Objectives
from data_contracts.validation_errors import problems
from data_contracts.yaml_document import Document, Problem
from data_contracts.yaml_text import read_document

F = TypeVar("F", Budgets, Policy, Objectives)


def read_rules(path: Path, model: type[F]) -> F:
    """The file as `model`; UsageError with `file:line: field: what` for each mistake."""
    document = read_document(path, model.called, f"write it as {model.shown_in} shows")
    version = document.value.get("version")
    if isinstance(version, int) and version > VERSION:
        sentence = f"{version} is newer than the {VERSION} that this Trainwright reads; upgrade Trainwright"
        raise _error(document, [Problem(("version",), sentence)])
    try:
        rules = model.model_validate(document.value)
    except ValidationError as error:
        raise _error(document, problems(error, model, document.value)) from None
    if isinstance(rules, Policy) and (wrong := _without_values(rules)):
        raise _error(document, wrong)
    return rules


def _without_values(policy: Policy) -> list[Problem]:
    """Tags that no spec could have. A store may have such a policy of an earlier version, which still opens."""
    sentence = "allows no value, so it would refuse every spec; name values, or write any"
    wrong = [Problem(("tags", name), sentence) for name, allowed in policy.tags.items() if not allowed]
    wrong += [
        Problem(("tags", name, number), "is empty, and a tag needs a value that can be seen")
        for name, allowed in policy.tags.items()
        if allowed != "any"
        for number, value in enumerate(allowed)
        if not is_visible(value)
    ]
    return wrong


def _error(document: Document, wrong: list[Problem]) -> UsageError:
    found = document.error(wrong)
    return UsageError(found.message, details=found.details)
