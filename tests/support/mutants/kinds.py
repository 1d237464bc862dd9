"""Mutants of one source file: small mistakes on its syntax tree, each written as a text of the whole file.

Docstrings, annotations, decorators, formatted strings, the texts of errors and assertions and `__all__` stay as they
are. A mutant keeps the lines of all that follows, so a test reaches the same lines in every mutant.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
# Decorators of functions that Numba compiles; no tracer sees the lines of these.
COMPILED = ("compiled", "njit")
# Calls whose arguments are names for the type checker.
UNTOUCHED_CALLS = {"TypeVar", "NewType", "cast"}
# Calls whose first two arguments may stand in either order.
SYMMETRIC_CALLS = {"min", "max", "minimum", "maximum", "suppress"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)


@dataclass(frozen=True)
class Mutant:
    """One mistake. Its `id` names no line, so it stays the same when something else in the file changes."""

    id: str
    file: str
    lines: tuple[int, int]
    scope_lines: tuple[int, int]
    at_import: bool
    compiled: bool
    source: str

    @property
    def digest(self) -> str:
        """Digest of the whole mutated file: an earlier result counts only for the same text."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Place:
    scope: str
    lines: tuple[int, int]
    at_import: bool = True
    compiled: bool = False
    text_for_people: bool = False


# Kind, the node that changes, and what stands there instead.
Change = tuple[str, ast.AST, ast.AST]


def mutants_of(file: str, root: Path, errors: frozenset[str]) -> list[Mutant]:
    """Every mutant of a file, in the order of the source; `errors`: names of the classes of errors."""
    text = (root / file).read_text()
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    whole = _Place("", (1, len(text.splitlines())))
    for place, (kind, node, instead) in _changes(ast.parse(text), whole, errors | UNTOUCHED_CALLS):
        name = f"{file}::{place.scope or 'module'}::{kind}: {_short(node)} → {_short(instead)}"
        seen[name] += 1
        number = f" #{seen[name]}" if seen[name] > 1 else ""
        mutated = _spliced(text, node, instead)
        lines = (node.lineno, node.end_lineno)  # type: ignore[attr-defined]
        found.append(Mutant(name + number, file, lines, place.lines, place.at_import, place.compiled, mutated))
    return found


def _changes(node: ast.AST, place: _Place, texts: frozenset[str]) -> Iterator[tuple[_Place, Change]]:
    """The changes of a node and of all below it."""
    if isinstance(node, ast.stmt):
        yield from ((place, change) for change in _of_statement(node))
    if isinstance(node, _SCOPES):
        name, lines = f"{place.scope}.{node.name}".lstrip("."), (node.lineno, node.end_lineno or node.lineno)
        compiled = any(ast.unparse(decorator).endswith(COMPILED) for decorator in node.decorator_list)
        place = dataclasses.replace(place, scope=name, lines=lines, compiled=compiled)
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _called(node) in texts):
        place = dataclasses.replace(place, text_for_people=True)
    if isinstance(node, ast.expr):
        yield from ((place, change) for change in _of_expression(node, place.text_for_people))
    for child in _children(node):
        runs_later = isinstance(node, _FUNCTIONS) and isinstance(child, ast.stmt)
        yield from _changes(child, dataclasses.replace(place, at_import=False) if runs_later else place, texts)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """What stands below a node, without what no mutant changes."""
    names_all = isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]
    is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    if names_all or is_typing or isinstance(node, ast.JoinedStr | ast.pattern | ast.Import | ast.ImportFrom):
        return
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "bases"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            is_text = is_docstring or (isinstance(node, ast.Assert) and name == "msg")
            if isinstance(child, ast.AST) and not is_text:
                yield child


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    if isinstance(node, ast.If | ast.While):
        yield "negation", node.test, ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.AugAssign):
        yield "arithmetic", node, ast.AugAssign(node.target, COMPUTED[type(node.op)](), node.value)
        yield "removed", node, ast.Pass()
    elif isinstance(node, ast.Break):
        yield "loop", node, ast.Continue()
    elif isinstance(node, ast.Continue):
        yield "loop", node, ast.Break()
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "return none", node, ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Raise | ast.Delete) or _is_call(node) or _sets_part(node):
        yield "removed", node, ast.Pass()


def _of_expression(node: ast.expr, text_for_people: bool) -> Iterator[Change]:
    if isinstance(node, ast.Constant):
        yield from (("constant", node, ast.Constant(value)) for value in _constants(node.value, text_for_people))
    elif isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            for other in COMPARED[type(operator)]:
                operators = [*node.ops[:at], other(), *node.ops[at + 1 :]]
                yield "comparison", node, ast.Compare(node.left, operators, node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
        yield "arithmetic", node, ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield "and or", node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "negation", node, node.operand
    elif isinstance(node, ast.IfExp):
        yield "negation", node.test, ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Call) and not text_for_people:
        yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[Change]:
    plain = len(node.args) > 1 and not any(isinstance(each, ast.Starred) for each in node.args[:2])
    if plain and _called(node) not in SYMMETRIC_CALLS and ast.dump(node.args[0]) != ast.dump(node.args[1]):
        swapped = [node.args[1], node.args[0], *node.args[2:]]
        yield "swapped", node, ast.Call(node.func, swapped, node.keywords)
    for at, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            others = [*node.keywords[:at], *node.keywords[at + 1 :]]
            yield f"without {keyword.arg}", node, ast.Call(node.func, node.args, others)


def _constants(value: object, text_for_people: bool) -> list[object]:
    """What a constant becomes."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value - 1]
    if isinstance(value, str) and not text_for_people:
        return ["" if value else "mutant"]
    if isinstance(value, bytes):
        return [b"" if value else b"mutant"]
    return []


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).split(".")[-1]


def _is_call(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await | ast.Yield)


def _sets_part(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text if len(text) <= 90 else f"{text[:60]} … {text[-27:]}"


def _spliced(text: str, node: ast.AST, instead: ast.AST) -> str:
    """The text with another node in the place of one; as many lines as before."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
    end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
    data = text.encode()
    padding = "\n" * data[begin:end].count(b"\n")
    becomes = ast.unparse(ast.fix_missing_locations(instead))
    written = f"({becomes}{padding})" if isinstance(instead, ast.expr) else becomes + padding
    return (data[:begin] + written.encode() + data[end:]).decode()
