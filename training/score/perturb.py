"""Sets that are scored on batches changed by a function of the user's, to see how robust a model is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SetSpec
from training.loader.loaders import rows_of
from training.user.imports import borrowed, load_callable

Perturbation = Callable[[Any], Any]


def perturbations(sets: Mapping[str, SetSpec], project: Path, other: Path) -> dict[str, Perturbation]:
    """The perturbation of each set that has one; they come from the current code, also when the champion is scored.

    Args:
        project: root of the code that they are taken from.
        other: root of the code that the module is taken from, which may have modules of the same names.

    Raises: as `load_callable`.
    """
    wanted = {name: one.perturb for name, one in sets.items() if one.perturb is not None}
    if not wanted:
        return {}
    with borrowed(project, other):
        return {
            name: _kept_rows(name, load_callable(path, {}, f"evaluate.sets.{name}.perturb", project.resolve()))
            for name, path in wanted.items()
        }


def then(first: Callable[[Any], Any] | None, second: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """Both functions one after the other; None if there are none."""
    if first is None or second is None:
        return first or second
    return lambda batch: second(first(batch))


def _kept_rows(name: str, call: Perturbation) -> Perturbation:
    def perturb(batch: Any) -> Any:
        before = rows_of(batch, None, 0)
        changed = call(batch)
        after = rows_of(changed, None, 0) if type(changed) is type(batch) else None
        if after is None or after != before:
            returned = type(changed).__name__ if after is None else f"{after} rows"
            raise UsageError(
                f"evaluate.sets.{name}.perturb: for a {type(batch).__name__} of {before} rows it returns {returned}.",
                remedy="Return a batch of the same form with the same rows.",
            )
        return changed

    return perturb
