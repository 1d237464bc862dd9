"""No loop looks a name up in an Arrow schema's list of names, which is made anew, and searched, for each look.

With 10,000 columns, a loop over them would do it 10,000 times; with `set(schema.names)` before the loop, it is once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOMS = ("data_contracts", "infra", "training", "tasks", "flows")
LISTS = {"names", "column_names"}
LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def repeated(loop: ast.AST) -> Iterator[ast.AST]:
    """What a loop evaluates again in each turn."""
    match loop:
        case ast.For():
            yield from loop.body
        case ast.While():
            yield from [loop.test, *loop.body]
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            yield from [loop.key, loop.value] if isinstance(loop, ast.DictComp) else [loop.elt]
            for at, generator in enumerate(loop.generators):
                yield from generator.ifs
                if at:
                    yield generator.iter


def looked_up(source: str) -> list[int]:
    """Lines of loops in which a name is looked up in a list of names."""
    return sorted(
        {
            node.lineno
            for loop in ast.walk(ast.parse(source))
            if isinstance(loop, LOOPS)
            for part in repeated(loop)
            for node in ast.walk(part)
            if isinstance(node, ast.Compare)
            and any(isinstance(one, ast.In | ast.NotIn) for one in node.ops)
            and any(isinstance(one, ast.Attribute) and one.attr in LISTS for one in node.comparators)
        }
    )


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("[name for name in wanted if name in table.schema.names]", [1]),
        ("for name in wanted:\n    if name not in table.column_names:\n        pass", [2]),
        ("{name: name in schema.names for name in wanted}", [1]),
        ("any(name in one.names for one in tables)", [1]),
        ("column in schema.names", []),
        ("[name for name in schema.names if name in wanted]", []),
        ("names = set(schema.names)\n[name for name in wanted if name in names]", []),
    ],
)
def test_a_look_up_is_found(source: str, lines: list[int]) -> None:
    assert looked_up(source) == lines


def test_no_loop_looks_a_name_up_in_a_list_of_names(repository: Path) -> None:
    found = [
        f"{path.relative_to(repository)}:{line}"
        for room in ROOMS
        for path in sorted((repository / room).rglob("*.py"))
        for line in looked_up(path.read_text())
    ]
    assert not found, f"a name is looked up in a list in each turn of a loop: {', '.join(found)}"
