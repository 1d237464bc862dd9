"""`data.csv`: how CSV files are written, where they differ from commas, points and UTF-8."""

from __future__ import annotations

import codecs
import itertools
import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from data_contracts.pipeline_spec.base import FieldError, Section

# Files that are not CSV.
_OTHER = re.compile(r"\.(?:jsonl|ndjson|json|parquet)(?:\.gz|\.bz2|\.xz|\.zst)?$")
NO_QUOTE = "none"
_DEFAULTS = {"separator": ",", "quote": '"', "decimal": "."}


def _tab(value: Any) -> Any:
    return "\t" if value in ("\\t", "tab") else value


def _one_of(*others: str) -> AfterValidator:
    """One ASCII character that stands in no number, or one of the others."""

    def check(text: str) -> str:
        if text not in others and (len(text) != 1 or not text.isascii() or text.isalnum() or text in "+-\r\n\0"):
            raise ValueError(f"must be one ASCII character that is no letter, digit or sign, got {text!r}")
        return text

    return AfterValidator(check)


Mark = Annotated[str, BeforeValidator(_tab), _one_of()]
Quote = Annotated[str, BeforeValidator(_tab), _one_of(NO_QUOTE)]
Grouping = Annotated[str, BeforeValidator(_tab), _one_of("\u00a0", "\u202f", "\u2019")]
# Of names in the Internet: one lowers letters, the other reads a file in time that is quadratic.
_NOT_OF_FILES = ("idna", "punycode")


def _encoding(name: str) -> str:
    try:
        "a".encode(name)
        codec = codecs.lookup(name)
        codecs.getincrementaldecoder(name)
        if codec.name in _NOT_OF_FILES:
            raise LookupError(name)
    except (LookupError, ValueError):
        raise ValueError(f"{name!r} is not an encoding of Python, such as cp1252, latin-1 or utf-16") from None
    return codec.name


class CsvSpec(Section):
    """How CSV files are written. What is not given is as in most files: commas, points, UTF-8."""

    separator: Mark | None = None
    r"""What stands between two values: `;`, `|`, `\t`; default: a comma, in .tsv files a tab. Without it, a file whose
    first line has another separator is refused."""
    decimal: Literal[".", ","] | None = None
    """The decimal mark of numbers; default a point. Without it, a file with another separator than the comma is refused
    if all values of a column have a decimal comma."""
    thousands: Grouping | None = None
    """What groups the digits of numbers by three (in India by two), such as `.` in 1.234,50; default nothing."""
    encoding: Annotated[str, AfterValidator(_encoding)] | None = None
    """The encoding, such as `cp1252`, `latin-1` or `utf-16`; default UTF-8. A byte order mark is skipped."""
    skip_rows: int = Field(default=0, ge=0)
    """Lines before the first line that counts, such as a title or `sep=;`; default 0."""
    comment: Mark | None = None
    """A character that begins a comment outside quotes, up to the end of its line; default none."""
    quote: Quote | None = None
    """What encloses a value that has a separator or a line end; `none`: nothing does; default a double quote."""

    @model_validator(mode="after")
    def _apart(self) -> CsvSpec:
        given = {name: getattr(self, name) for name in ("separator", "quote", "decimal", "thousands", "comment")}
        for one, other in itertools.combinations(given, 2):
            # In a file with commas, numbers with commas may stand in quotes.
            quoted = one == "separator" and other in ("decimal", "thousands")
            marks = [given[name] or (None if quoted else _DEFAULTS.get(name)) for name in (one, other)]
            if marks[0] is not None and marks[0] == marks[1]:
                at, before = (one, other) if given[other] is None else (other, one)
                raise FieldError(at, f"and {before} must differ, but both are {marks[0]!r}")
        return self

    def __str__(self) -> str:
        """The fields that are given, as YAML on one line."""
        given = self.model_dump(exclude_defaults=True)
        plain = ("encoding", "skip_rows")
        return f"{{{', '.join(f'{name}: {one if name in plain else json.dumps(one)}' for name, one in given.items())}}}"


def may_be_csv(uri: str, format_: str) -> bool:
    """Whether a source's files may be CSV, by its format and its address."""
    return format_ in ("csv", "tsv") or (format_ == "auto" and not _OTHER.search(uri.lower()))
