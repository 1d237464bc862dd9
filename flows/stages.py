"""The stages of the line, in order. Without Prefect, whose import takes seconds: `--help` lists the stages at once."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.stages.stage import Stage


# Each stage is in a module of its own. It takes hand-offs of stages above it, which its module names.
LINE = {
    "tasks.stages.validate": "check the raw data against its contract",
    "tasks.stages.shard": "split, transform and shuffle the rows, and store them as shards",
    "tasks.stages.train": "train the module, or reuse an earlier training",
    "tasks.stages.verify": "verify the checkpoint that train handed over",
    "tasks.stages.evaluate": "score the checkpoint and the champion on the same rows",
    "tasks.stages.promote": "move the alias if the gates are met",
}


def verbs() -> dict[str, str]:
    """The stages' names in order, each with a description."""
    return {stage_name(module): does for module, does in LINE.items()}


def stage_name(module: str) -> str:
    """A stage's name: that of its module."""
    return module.rpartition(".")[2]


def stages(modules: Iterable[str] = tuple(LINE)) -> list[Stage[..., Any]]:
    """The stages in these modules; by default all of the line, in order."""
    return [getattr(importlib.import_module(module), stage_name(module)) for module in modules]
