"""The stages of the line, as `LINE` in flows/retrain.py lists them.

This module reads that file as text and does not import it: it imports Prefect, which takes seconds, and `--help` must
list the stages at once.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts.expressions import syntax_tree

if TYPE_CHECKING:
    from tasks.stages.stage import Stage


def listed() -> dict[str, str]:
    """The stages' modules in order, each with a description of its stage."""
    tree = syntax_tree(Path(__file__).with_name("retrain.py").read_text())
    tables = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LINE"]
    return ast.literal_eval(tables[0].value)


def verbs() -> dict[str, str]:
    """The stages' names in order, each with a description."""
    return {stage_name(module): does for module, does in listed().items()}


def stage_name(module: str) -> str:
    """A stage's name: that of its module."""
    return module.rpartition(".")[2]


def stages(modules: Iterable[str] | None = None) -> list[Stage[..., Any]]:
    """The stages in these modules; by default all of the line, in order."""
    named = listed() if modules is None else modules
    return [getattr(importlib.import_module(module), stage_name(module)) for module in named]
