"""Which of our modules import a file, directly or through others: a trial imports them anew."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOMS = ("flows", "tasks", "training", "infra", "data_contracts")


def dependents(tree: Path, files: list[str]) -> set[str]:
    """Names of these files' modules and of every module that imports one of them, at any depth or inside a function."""
    names = {_name(path.relative_to(tree)): path for room in ROOMS for path in (tree / room).rglob("*.py")}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, path in names.items():
        # Whatever imports `a.b.c` imports `a` and `a.b`, too, and so does `a.b.c` itself.
        for imported in {name, *_imported(path)}:
            parts = imported.split(".")
            for end in range(1, len(parts) + 1):
                importers[".".join(parts[:end])].add(name)
    found: set[str] = set()
    waiting = [_name(Path(file)) for file in files]
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += importers[name]
    return found


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found
