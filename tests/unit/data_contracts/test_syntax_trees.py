"""Parsing beside other threads that parse."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from data_contracts.contract import suites
from data_contracts.expressions import TRIES, expression_tree, read_condition, syntax_tree
from tests.support.refusals import refusal


@pytest.mark.parametrize(("failures", "is_parsed"), [(0, True), (1, True), (TRIES - 1, True), (TRIES, False)])
def test_a_parse_that_another_thread_disturbed_is_repeated(
    failures: int, is_parsed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, left = ast.parse, [failures]

    def disturbed(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch (before=63, after=72)")
        return parse(*args, **kwargs)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert bool(refusal(SystemError, syntax_tree, "a = 1")) is not is_parsed


def test_what_is_not_python_is_refused_at_once() -> None:
    with pytest.raises(SyntaxError):
        syntax_tree("a =")
    assert isinstance(syntax_tree("1 + 1", mode="eval").body, ast.BinOp)


@pytest.mark.parametrize("name", ["e\u0301", "ﬁ", "ａ", "ſ", "é"])
def test_a_name_in_an_expression_is_the_name_that_is_written(name: str) -> None:
    """Python reads it in another form, which may be another column."""
    for text in (f"1 < {name}", f"(x == 1 and\n {name} < 2)"):
        names = [node.id for node in ast.walk(expression_tree(text)) if isinstance(node, ast.Name)]
        assert name in names
    assert set(read_condition(f"{name} > 1").columns) == {name}
    assert suites.read_condition(f"{name} > 1 and not {name} == 3").columns == (name,)
