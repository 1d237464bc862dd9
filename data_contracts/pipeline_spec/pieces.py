"""`data.source.pieces`: the rows into which a document is cut, by bytes, by lines, or by a tokenizer of the user's."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from data_contracts.pipeline_spec.base import DottedPath, FieldError, Section, Shorthand


class TokenizerSpec(Shorthand):
    """A class of yours whose method `starts(text)` says at which character of a text each token starts."""

    short_for: ClassVar[str] = "class_path"

    class_path: DottedPath
    """Dotted path of the class, imported from the project's root."""
    init_args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class; default none."""


class PiecesSpec(Section):
    """The pieces into which a document is cut. Each is a row."""

    bytes: Annotated[int, Field(ge=4, le=2**24)] | None = None
    """Bytes of each piece; fewer where a character would be cut."""
    lines: Annotated[int, Field(ge=1)] | None = None
    """Instead of `bytes`: lines of each piece."""
    tokens: Annotated[int, Field(ge=1, le=2**20)] | None = Field(default=None, exclude_if=lambda tokens: tokens is None)
    """Instead of `bytes`: tokens of each piece, as `tokenizer` counts them; fewer where a character would be cut."""
    tokenizer: TokenizerSpec | None = Field(default=None, exclude_if=lambda tokenizer: tokenizer is None)
    """With `tokens`: your class that says where each token of a text starts; a string is its dotted path."""

    @model_validator(mode="after")
    def _one(self) -> PiecesSpec:
        if sum(unit is not None for unit in (self.bytes, self.lines, self.tokens)) != 1:
            raise ValueError("give one of bytes, lines and tokens")
        if self.tokens is not None and self.tokenizer is None:
            raise FieldError("tokens", "needs tokenizer: a class of yours that says where each token starts")
        if self.tokens is None and self.tokenizer is not None:
            raise FieldError("tokenizer", "needs tokens: how many make a piece")
        return self
