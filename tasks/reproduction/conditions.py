"""What is the same on this machine as when the model was made, and what is not."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from data_contracts.messages.gang import Segment
from data_contracts.resolved import Recipe
from infra import audit
from infra.models.registry import own_revision


def lock_differences(recipe: Recipe) -> list[str]:
    """How the packages and the Python of this installation differ from the recorded ones, in words."""
    here, there = (dict(line.split("==", 1) for line in lines) for lines in (audit.lock(), recipe.lock))
    changed = [
        f"{name} {here.get(name, 'is missing')} instead of {version}"
        for name, version in there.items()
        if here.get(name) != version
    ]
    more = [f"{name} {version} was not there" for name, version in here.items() if name not in there]
    python = platform.python_version()
    return [*([] if python == recipe.python else [f"Python {python} instead of {recipe.python}"]), *changed, *more]


def revision_difference(recipe: Recipe) -> str:
    """How this Trainwright differs from the one that trained, as a sentence; "" if it does not."""
    then, here = recipe.trainwright, own_revision()
    if then.source == here.source:
        return ""
    name = f"revision {then.revision[:12]}" if then.revision else f"source {then.source[:12]}"
    changed = ", with changes that were not committed" if then.dirty else ""
    checkout = f" Check it out (`git worktree add DIR {then.revision[:12]}`) to run the same." if then.revision else ""
    return f"The model was trained by another Trainwright ({name}{changed}); this one may give other ids.{checkout}"


def machine_differences(recorded: Sequence[Segment], made: Sequence[Segment]) -> list[str]:
    """How the machines of two trainings differ in what decides bits, in words; each difference once."""
    found: dict[str, None] = {}
    for before, after in zip(recorded, made, strict=False):
        old, new = before.facts.model_dump(), after.facts.model_dump()
        for name, value in old.items():
            if new[name] != value:
                found[f"{name} {new[name]} instead of {value}"] = None
    return list(found)
