"""Where rows are handled, only `data_contracts.quoting` turns exceptions that are not ours into text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SEE_ROWS = (
    "training",
    "infra/sources",
    "infra/contract/contract_worker.py",
    "infra/child.py",
    "infra/processes/child_main.py",
    "infra/gang/rank_bootstrap.py",
)
ENGINE = (
    "data_contracts/contract/engine.py",
    "data_contracts/contract/findings.py",
    "data_contracts/contract/frames.py",
    "data_contracts/contract/great_expectations_engine.py",
    "data_contracts/contract/scan.py",
    "data_contracts/contract/translation.py",
)
# Errors of ours, whose words hold no value of the data.
OURS = {
    "BadStarts",
    "Malformed",
    "Mismatch",
    "NotExtended",
    "TrainwrightError",
    "UnheldTime",
    "UnusableKey",
    "UsageError",
}
# Where an exception becomes text all the same, and why that reveals no value.
KNOWN = {
    ("infra/sources/tables.py", "'UTF8' in str(error)"): "asks for the kind of error, and says nothing of it",
    ("infra/sources/tables.py", "text = str(error)"): "takes the column and the kinds from Arrow's text",
    ("infra/sources/resolve.py", "f'The window {text!r} cannot be read: {error}.'"): "a command's own argument",
    ("training/fit/failures.py", "in str(error)"): "asks for the kind of error, and says nothing of it",
    ("training/fit/failures.py", "_NO_MEMORY.search(str(error))"): "asks for the kind of error, and says nothing of it",
    ("training/fit/failures.py", "text = str(error)"): "asks for the kind of error, and says nothing of it",
    ("training/formats/schema.py", "raise Mismatch(str(error)"): "names types",
    ("training/shard/splitter.py", "self.notes.bad_name ="): "masked where it is told",
    ("training/user/ready.py", "said = _sentence(str(error))"): "withheld where the user's code raised it",
}


def _sources(repository: Path) -> Iterator[Path]:
    for name in (*SEE_ROWS, *ENGINE):
        path = repository / name
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def _quotes(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements in which an exception, caught or handed on as `error`, becomes text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name is not None and _name(node.type) not in OURS:
            name = node.name
        elif isinstance(node, ast.FunctionDef) and any(
            one.arg == "error" and _name(one.annotation) not in OURS for one in node.args.args
        ):
            name = "error"
        else:
            continue
        for statement in (one for part in node.body for one in ast.walk(part) if isinstance(one, ast.stmt)):
            if any(_is_text_of(one, name) for one in _own(statement)):
                yield statement


def _name(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node).rpartition(".")[2]


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without those of statements inside."""
    waiting: list[ast.AST] = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]


def _is_text_of(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.FormattedValue):
        return isinstance(node.value, ast.Name) and node.value.id == name
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
        return any(isinstance(one, ast.Name) and one.id == name for one in node.args)
    return isinstance(node, ast.Attribute) and node.attr == "args" and ast.unparse(node.value) == name


def test_exceptions_become_text_through_one_module(repository: Path) -> None:
    found, met = [], set()
    for path in _sources(repository):
        file = str(path.relative_to(repository))
        for statement in _quotes(ast.parse(path.read_text())):
            line = ast.unparse(statement)
            known = {one for one in KNOWN if one[0] == file and one[1] in line}
            met |= known
            if not known:
                found.append(f"{file}: {line}")
    assert not found, "use text_of, type_and_text or describe of data_contracts/quoting.py:\n" + "\n".join(found)
    assert met == set(KNOWN), "these are gone"
