"""The base classes and types that every section of the spec shares."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class FieldError(ValueError):
    """A rule between fields is broken; the error of `load_spec` names `field` (a path below the section)."""

    def __init__(self, field: str | tuple[str | int, ...], sentence: str) -> None:
        self.field = (field,) if isinstance(field, str) else field
        self.sentence = sentence
        super().__init__(f"{'.'.join(map(str, self.field))}: {sentence}")


def dotted_path(text: str) -> str:
    """`text`, if it is a dotted path to an object in a module (`module.name`); else ValueError."""
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{text!r} is not a dotted path; write it as module.name")
    return text


DottedPath = Annotated[str, AfterValidator(dotted_path)]


@cache
def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """What stands below each field of a section in its source; read when it is asked for, not at each import."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base is BaseModel or not issubclass(base, BaseModel):
            continue
        [section] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(section, ast.ClassDef)
        for field, below in itertools.pairwise(section.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and (text := _text(below)):
                found[field.target.id] = inspect.cleandoc(text)
    return found


def _text(statement: ast.stmt) -> str | None:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


class Section(BaseModel):
    """A frozen section of the spec; unknown keys are refused, and so is text where a number is wanted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler(schema)
        properties = handler.resolve_ref_schema(whole).get("properties", {})
        for name, text in descriptions(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return whole


class Shorthand(Section):
    """A section that a plain string may stand for: it is then the value of the field `short_for`."""

    short_for: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {cls.short_for: value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler.resolve_ref_schema(super().__get_pydantic_json_schema__(schema, handler))
        text = {"type": "string", "description": f"Short for `{cls.short_for}`."}
        return {"title": whole.get("title"), "description": whole.get("description"), "anyOf": [text, whole]}


class CallableSpec(Shorthand):
    """A function of yours, named `module.function`; a mapping adds keyword arguments."""

    short_for: ClassVar[str] = "call"

    call: DottedPath
    """Dotted path of the function, imported from the project's root."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments, passed after the batch; default none."""
