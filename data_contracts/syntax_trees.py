"""Parses Python source in a process with several threads.

CPython 3.11 and 3.12 count the depth of a tree in a variable that all threads share. So `ast.parse` may raise
SystemError if another thread parses meanwhile, as Prefect does (https://github.com/python/cpython/issues/106905).
"""

from __future__ import annotations

import ast
from typing import Literal, overload

TRIES = 20


@overload
def syntax_tree(source: str | bytes, mode: Literal["exec"] = "exec") -> ast.Module: ...


@overload
def syntax_tree(source: str | bytes, mode: Literal["eval"]) -> ast.Expression: ...


def syntax_tree(source: str | bytes, mode: str = "exec") -> ast.AST:
    """The tree of a module, or with `eval` of an expression; raises what `ast.parse` raises of the source itself."""
    for _ in range(TRIES - 1):
        try:
            return ast.parse(source, mode=mode)
        except SystemError:
            continue
    return ast.parse(source, mode=mode)


def expression_tree(text: str) -> ast.expr:
    """The tree of an expression, in which names are as they are written; Python itself reads `ﬁ` as `fi`."""
    tree = syntax_tree(text, mode="eval").body
    if not text.isascii():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                node.id = ast.get_source_segment(text, node) or node.id
    return tree
