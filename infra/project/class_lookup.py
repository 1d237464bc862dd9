"""Checks in the sources' syntax trees, without importing anything, that the classes and functions of a spec exist."""

from __future__ import annotations

import ast
import difflib
import importlib.machinery
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from data_contracts.errors import UsageError
from data_contracts.expressions.syntax_trees import syntax_tree


def is_in_project(root: Path, dotted: str) -> bool:
    """Whether the first part of a dotted path is a module or package of the project."""
    first = dotted.partition(".")[0]
    return _is_package(root / first) or (root / f"{first}.py").is_file()


def require_class(root: Path, dotted: str, installed: Path | None = None) -> None:
    """Check, without importing anything, that `package.module.Name` names something in the project or installed.

    Args:
        installed: the folder of installed packages; default: those of this process.

    UsageError if the module's file or the name in it does not exist; a file that cannot be parsed passes, because only
    running it gives its author a traceback.
    """
    parts = dotted.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UsageError(
            f"{dotted!r} is not the path of a class or function.",
            remedy="Write it as module.Class or package.module.Class.",
        )
    located = _locate(parts, root, installed)
    if located is None:
        return
    source, module, rest = located
    if not rest:
        raise UsageError(f"{dotted!r} names a module.", remedy=f"Name a class in it, as in {dotted}.MyModel.")
    names = _top_level_names(source) if source is not None else set()
    if names is None or rest[0] in names:
        return
    near = difflib.get_close_matches(rest[0], names, n=1)
    hint = (
        f"Did you mean {module}.{near[0]}?" if near else "Check the spelling, and that the file is not ignored by Git."
    )
    if source is None or len(rest) > 1:
        raise UsageError(f"{dotted!r}: there is no module {module}.{rest[0]}.", remedy=hint)
    raise UsageError(f"{dotted!r}: there is no {rest[0]} in {source}.", remedy=hint)


def _locate(parts: list[str], root: Path, installed: Path | None) -> tuple[Path | None, str, list[str]] | None:
    """The source of the longest prefix of `parts` that is a module, its name and the rest; None if it has no source."""
    here = root
    if not is_in_project(root, parts[0]):
        places = None if installed is None or parts[0] in sys.stdlib_module_names else [str(installed)]
        found = importlib.machinery.PathFinder.find_spec(parts[0], places)
        if parts[0] in sys.builtin_module_names:
            return None
        if found is None:
            raise UsageError(
                f"{'.'.join(parts)!r}: there is no module {parts[0]} in {root}, and none is installed.",
                remedy="Write the path from the project's root, the folder named above.",
            )
        if found.submodule_search_locations:
            here = Path(next(iter(found.submodule_search_locations))).parent
        elif found.origin:
            here = Path(found.origin).parent
    source: Path | None = None
    for depth, part in enumerate(parts):
        if _is_package(here / part):
            here = here / part
            source = here / "__init__.py" if (here / "__init__.py").is_file() else None
        elif (here / f"{part}.py").is_file():
            return here / f"{part}.py", ".".join(parts[: depth + 1]), parts[depth + 1 :]
        elif any(here.glob(f"{part}.*")):
            return None  # a compiled module
        else:
            return source, ".".join(parts[:depth]), parts[depth:]
    return source, ".".join(parts), []


def _is_package(folder: Path) -> bool:
    return folder.is_dir() and ((folder / "__init__.py").is_file() or any(folder.rglob("*.py")))


def _top_level_names(source: Path) -> set[str] | None:
    """Names that a module's top level binds; None if its text does not show them."""
    try:
        tree = syntax_tree(source.read_bytes())
    except (SyntaxError, ValueError):
        return None
    names: set[str] = set()
    for node in _top_level(tree.body):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    return None if {"*", "__getattr__"} & names else names


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, part, [])
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from _top_level(inner)
