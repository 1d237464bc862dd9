"""Names of our modules that stand in strings lead to a module."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("flows", "tasks", "training", "infra", "data_contracts")
MODULE = re.compile(rf"(?:{'|'.join(ROOMS)})(?:\.[a-z][a-z0-9_]*)+")


def strings(repository: Path) -> Iterator[tuple[str, str]]:
    """Each string of the sources and tests that is the name of a module or of something in one, and where it stands."""
    for path in (
        path for room in (*ROOMS, "tests", "benchmarks") for path in sorted((repository / room).rglob("*.py"))
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for name in names(node.value):
                    yield f"{path.relative_to(repository)}:{node.lineno}", name


def names(value: str) -> list[str]:
    """Names of modules: the whole string, or what stands in backquotes in a text."""
    found = [value, *(re.findall(r"`([^` ]+)`", value) if "`" in value else ())]
    return [name for name in found if MODULE.fullmatch(name) and not name.endswith(".py")]


@functools.cache
def leads_somewhere(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.util.find_spec(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        if found is not None and found.origin is not None:
            rest = parts[end:]
            return not rest or re.search(rf"\b{re.escape(rest[0])}\b", Path(found.origin).read_text()) is not None
    return False


def test_every_name_of_a_module_in_a_string_leads_to_it(repository: Path) -> None:
    assert [f"{place}: {name}" for place, name in strings(repository) if not leads_somewhere(name)] == []
