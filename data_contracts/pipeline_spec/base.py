"""The base classes and types that every section of the spec shares."""

from __future__ import annotations

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


class Section(BaseModel):
    """A frozen section of the spec; unknown keys are refused, and so is text where a number is wanted."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Shorthand(Section):
    """A section that a plain string may stand for: it is then the value of the field `short_for`."""

    short_for: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {cls.short_for: value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler.resolve_ref_schema(handler(schema))
        text = {"type": "string", "description": f"Short for `{cls.short_for}`."}
        return {"title": whole.get("title"), "description": whole.get("description"), "anyOf": [text, whole]}


class CallableSpec(Shorthand):
    """A function of yours, named `module.function`; a mapping adds keyword arguments."""

    short_for: ClassVar[str] = "call"

    call: DottedPath
    """Dotted path of the function, imported from the project's root."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments, passed after the batch; default none."""
