"""Functions stay small: at most 50 lines, 4 levels of nesting, 7 parameters; in tests and benchmarks, too.

A source file has one idea and at most 300 lines. A folder of sources has at most 40 modules.

Nesting counts the blocks around a statement (`if`, `for`, `while`, `with`, `try`, `match`); `elif` is not a level, and
a function inside another begins anew. `self` and `cls` are not counted as parameters.
"""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

MOST = {"lines": 50, "levels": 4, "parameters": 7}
SOURCES = ("flows", "tasks", "training", "infra", "data_contracts")
FOLDERS = (*SOURCES, "tests", "benchmarks", "examples", ".ci")
MOST_IN_A_FILE = 300
MOST_IN_A_ROOM = 40
CATALOGUES = {"flows/commands"}  # one file for each command, looked up by the command's name
# (module, function) that is larger; none may be added. One loop over a message's bytes: in pieces, its state (a dozen
# numbers per column and entry) would be passed back and forth.
ALLOWED = {
    ("training.formats.kernels.read", "locate"),
}
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)


def _functions(node: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function below `node` with its name, which begins with those of the classes and functions around it."""
    for child in _blocks_in(node):
        name = inside
        if isinstance(child, _SCOPES):
            name = f"{inside}.{child.name}".lstrip(".")
        if isinstance(child, _FUNCTIONS):
            yield name, child
        yield from _functions(child, name)


def _blocks_in(node: ast.AST) -> list[ast.AST]:
    """What stands directly in a node and may hold statements: an expression, which most nodes are, holds none."""
    return [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def _levels(node: ast.AST) -> int:
    deepest = 0
    for child in _blocks_in(node):
        if not isinstance(child, _SCOPES):
            is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
            deepest = max(deepest, _levels(child) + (isinstance(child, _BLOCKS) and not is_elif))
    return deepest


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    named = [*given.posonlyargs, *given.args]
    unbound = named[1:] if named and named[0].arg in ("self", "cls") else named
    return len(unbound) + len(given.kwonlyargs) + (given.vararg is not None) + (given.kwarg is not None)


def too_large(source: str) -> dict[str, str]:
    """Functions of a source that are too large, each with what it has too much of: `has 51 lines`."""
    found = {}
    for name, function in _functions(ast.parse(source)):
        assert function.end_lineno is not None
        sizes = {
            "lines": function.end_lineno - function.lineno + 1,
            "levels": _levels(function),
            "parameters": _parameters(function),
        }
        over = [f"{sizes[what]} {what}" for what, most in MOST.items() if sizes[what] > most]
        if over:
            found[name] = f"has {', '.join(over)}"
    return found


def python_files(repository: Path) -> list[str]:
    """The Python files of all folders, by their paths below the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *(f"{folder}/*.py" for folder in FOLDERS)],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        return [name for name in listed.stdout.splitlines() if (repository / name).is_file()]
    # A copy without a repository.
    return [str(one.relative_to(repository)) for folder in FOLDERS for one in (repository / folder).rglob("*.py")]


def long_files(texts: dict[str, str]) -> dict[str, int]:
    """Number of lines of each source, by its path, that has more than a file may have."""
    sizes = {name: len(text.splitlines()) for name, text in texts.items() if name.startswith(SOURCES)}
    return {name: lines for name, lines in sizes.items() if lines > MOST_IN_A_FILE}


def test_no_source_file_is_longer_than_300_lines(repository: Path) -> None:
    found = long_files({name: (repository / name).read_text() for name in python_files(repository)})
    assert not found, "A file has one idea; find the second one in each of these and give it a file of its own."


def test_a_long_source_file_is_found() -> None:
    texts = {"infra/a.py": "x\n" * 300, "infra/b.py": "x\n" * 301, "tests/unit/infra/test_b.py": "x\n" * 301}
    assert long_files(texts) == {"infra/b.py": 301}


def full_rooms(names: list[str]) -> dict[str, int]:
    """Number of modules of each folder of sources that has more than a room may have, `__init__` not counted."""
    modules = (Path(name) for name in names if name.startswith(SOURCES) and not name.endswith("__init__.py"))
    rooms = Counter(str(path.parent) for path in modules)
    return {room: number for room, number in rooms.items() if number > MOST_IN_A_ROOM and room not in CATALOGUES}


def test_no_room_is_a_list_of_dozens_of_modules(repository: Path) -> None:
    found = full_rooms(python_files(repository))
    assert not found, "Divide each of these along the arrows of its imports (docs/adr/0079-rooms-within-rooms.md)."


def test_a_full_room_is_found() -> None:
    names = [f"infra/gc/module_{number}.py" for number in range(41)]
    assert full_rooms(names) == {"infra/gc": 41}
    assert full_rooms([*names[1:], "infra/gc/__init__.py"]) == {}
    assert full_rooms([name.replace("infra/gc", "flows/commands") for name in names]) == {}


def test_functions_are_small(repository: Path) -> None:
    names = python_files(repository)
    found = {
        (name.removesuffix(".py").replace("/", "."), function): f"{name}: {function} {sizes}"
        for name in names
        for function, sizes in too_large((repository / name).read_text()).items()
    }
    large = [sentence for where, sentence in sorted(found.items()) if where not in ALLOWED]
    most = f"at most {MOST['lines']} lines, {MOST['levels']} levels of nesting and {MOST['parameters']} parameters"
    assert not large, f"A function has {most}; split these:\n" + "\n".join(large)
    assert len(names) > 100
    assert not ALLOWED - found.keys(), "These are small now; take them out of ALLOWED."


BRANCHES = """
class A:
    def f(self, a, b, *c, d, e, f, g, **h):
        if a:
            pass
        elif b:
            for one in c:
                while d:
                    with e:
                        try:
                            pass
                        except ValueError:
                            pass

    @staticmethod
    def g(a, b, c, d, e, f, g):
        def inner():
            if a:
                pass
"""


def test_what_is_counted() -> None:
    assert too_large(BRANCHES) == {"A.f": "has 5 levels, 8 parameters"}
    assert too_large("def f():\n" + "    pass\n" * 49) == {}
    assert too_large("@decorated\ndef f():\n" + "    pass\n" * 50) == {"f": "has 51 lines"}
