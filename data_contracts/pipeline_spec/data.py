"""`data` and `shards`: where the rows come from, how they are written, cut, split and stored.

`data.csv` says how CSV files are written, where they differ from commas, points and UTF-8. `data.source.pieces` are the
rows into which a document is cut, by bytes, by lines, or by a tokenizer of the user's.

Credentials that a spec holds where it must only name them (`env:NAME`, `profile:NAME`) are found here. A spec is
stored: with each run, and in Prefect as the parameters of flow runs, which are shown there. Only names of options and
tags, and addresses, are checked: a secret in another form under a harmless name is not recognized.
"""

from __future__ import annotations

import codecs
import itertools
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import parse_qs

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from data_contracts.canonical import Name
from data_contracts.pipeline_spec.base import (
    CallableSpec,
    DottedPath,
    FieldError,
    Runner,
    Section,
    Shorthand,
    check_one_of,
)

if TYPE_CHECKING:
    from data_contracts.yaml_text import FieldPath

# Files that are not CSV.
_OTHER = re.compile(r"\.(?:jsonl|ndjson|json|parquet)(?:\.gz|\.bz2|\.xz|\.zst)?$")
NO_QUOTE = "none"
_DEFAULTS = {"separator": ",", "quote": '"', "decimal": "."}
# Of names in the Internet: one lowers letters, the other reads a file in time that is quadratic.
_NOT_OF_FILES = ("idna", "punycode")
# Options of s3fs and botocore. Wider than `_WORD`: to name a harmless option as `env:NAME` costs little.
_OPTION = re.compile(r"(?i).*key|username|auth|.*(secret|token|passw|access_key|credential|authorization|cookie).*")
# Words in the names of tags and of fields in addresses. Narrower than `infra.project`, where files such
# as `deploy.env` are secret: here that is the name of a setting. The plural `tokens` is a count.
_WORD = re.compile(
    r"[a-z]*(?:passw(?:or[dt]|d)s?|secrets?|token|credentials?|creds|cookies?)|o?auth|authorization|bearer|jwt"
    r"|passphrase|pwd|sig|signature|(?:access|api|private)keys?(?:id)?"
)
_KEY = re.compile(r"(?:^| )(?:access|api|encryption|private|signing) keys?(?: |$)")
# `apiKey` is `api key`, `AWSAccessKeyId` is `AWS access key id`.
_BETWEEN = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_USER_INFO = re.compile(r"\w+://[^/]*@.*")
_ADDRESS = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]{0,30})://(\S*)")
_PLACE = re.compile(r"[^/?#]*")
_NAMED = ("env:", "profile:")
_FIELDS = ("key", "pass")
TAGS_ARE_SHOWN = "tags are stored with every result and shown in Prefect"
# Of the machine's memory, for a process that reads raw files and those that it starts.
MEMORY_SHARE = 0.8
# With these, libpq looks a password up for one host and connects to another, or reads it from another file.
_ELSEWHERE = ("hostaddr", "passfile", "service", "servicefile")
_PLACEHOLDER = re.compile(r"\{\{\s*(start|end)\s*\}\}")


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


class TokenizerSpec(Shorthand):
    """A class of yours whose method `starts(text)` says at which character of a text each token starts."""

    short_for: ClassVar[str] = "class_path"

    class_path: DottedPath
    """Dotted path of the class, imported from the project's root."""
    init_args: dict[str, object] = Field(default_factory=dict)
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


def is_named_like_secret(name: str) -> bool:
    """Whether a whole word of a tag's or field's name says that its value is a secret."""
    words = [word.casefold() for word in _BETWEEN.split(name) if word]
    return any(map(_WORD.fullmatch, words)) or _KEY.search(" ".join(words)) is not None


def named_credentials(options: dict[str, object]) -> dict[str, object]:
    """`options`, if credentials are only named; FieldError, which does not repeat it, for a credential's value."""
    for name, value in options.items():
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                continue
            try:
                named_credentials(part)
            except FieldError as error:
                raise FieldError((name, *error.field), error.sentence) from None
        if isinstance(value, dict):
            continue
        if value is not None and _OPTION.fullmatch(name) and not str(value).startswith(_NAMED):
            raise FieldError(name, "must name a credential (env:NAME or profile:NAME), not hold one")
        if isinstance(value, str) and _USER_INFO.fullmatch(value):
            raise FieldError(name, "must not hold a user or password in its address; name them (env:NAME)")
    return options


def credential_in(text: str) -> str | None:
    """What an address in a text holds that is secret, in words such as `a password`; None if nothing."""
    for scheme, rest in _ADDRESS.findall(text) if "://" in text else ():
        place = _PLACE.match(rest)[0]  # type: ignore[index]
        user, at, _ = place.rpartition("@")
        name, colon, password = (user if at else place).partition(":")
        # What follows a host's colon is a port; anything else is a password in which a `/` was not escaped.
        is_cut = not at and "@" in rest and colon and not password.isdigit()
        if (at or is_cut) and password and not password.startswith(_NAMED):
            return "a password"
        # `git@` and the user of a database are not secrets; before `https://`, a user alone is a token.
        if at and name and not colon and scheme.casefold().endswith(("http", "https")):
            return "a user, which may be a token"
        # In an address of S3, `?` also stands for any character of a folder's name.
        fields = [part for part in re.split("[?#]", rest)[1:] if scheme.casefold() != "s3" or "/" not in part]
        if field := next(filter(None, map(secret_in_query, fields)), None):
            return f"a field {field} that looks like a secret"
    return None


def secret_in_query(query: str) -> str | None:
    """The first field that is named like a secret in the part of an address after its `?`; None if there is none."""
    # Google's interfaces take an API key as `key`; `sortKey` and `monkey` are other names.
    return next((name for name in parse_qs(query) if name.casefold() in _FIELDS or is_named_like_secret(name)), None)


def addresses_with_credentials(value: Any, field: FieldPath = ()) -> Iterator[tuple[FieldPath, str]]:
    """Each text below `value` with a credential in an address: its field, and what `credential_in` says."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from addresses_with_credentials(inner, (*field, key))
    elif isinstance(value, str) and (what := credential_in(value)):
        yield field, what


def tags_with_credentials(tags: Mapping[str, str]) -> dict[str, str]:
    """A sentence for each tag that is named like a secret, or whose value has an address with one."""
    sentences = {}
    for name, value in tags.items():
        if is_named_like_secret(name) and not value.startswith(_NAMED):
            sentences[name] = f"is named like a secret; {TAGS_ARE_SHOWN}. Leave it out, or rename it."
        elif what := credential_in(value) or credential_in(name):
            sentences[name] = f"has an address with {what}; {TAGS_ARE_SHOWN}. Leave it out of the address."
    return sentences


def _address(uri: str) -> str:
    if not uri.strip():
        raise ValueError("must not be empty")
    scheme, _, rest = uri.partition("://")
    if rest and scheme != "s3":
        raise ValueError(f"{scheme}:// is not supported; give a path or an s3:// address")
    if "@" in rest.partition("/")[0]:
        raise ValueError("must not hold credentials; name them in storage_options (env:NAME or profile:NAME)")
    return uri


def _database(address: str) -> str:
    scheme, _, rest = address.partition("://")
    if scheme == "sqlite":
        if not rest.startswith("//") or len(rest) < 3 or "?" in rest:
            raise ValueError("must give an absolute path, such as sqlite:////srv/names.db")
        return address
    # As SQLAlchemy reads it, for which a `?` or `#` does not end the user and the password.
    place, _, query = rest.partition("?")
    login, _, where = place.rpartition("@")
    user, colon, password = login.partition(":")
    if scheme != "postgresql" or not where.partition("/")[2] or "/" in user or "#" in address or "@" in query:
        raise ValueError("must be postgresql://[user[:env:NAME]@]host[:port]/database, or sqlite:////path")
    if colon and not re.fullmatch(r"env:\w+", password):
        raise ValueError("must name its password (postgresql://user:env:NAME@host/database), not hold it")
    if wrong := next((name for name in parse_qs(query, keep_blank_values=True) if name in _ELSEWHERE), None):
        raise ValueError(f"must not have {wrong} after its '?': the password of one host would be sent to another")
    if field := secret_in_query(query):
        raise ValueError(f"must not hold a credential after its '?' ({field}); name the password (user:env:NAME@host)")
    return address


Uri = Annotated[str, AfterValidator(_address)]
Database = Annotated[str, AfterValidator(_database)]
StorageOptions = Annotated[dict[str, object], AfterValidator(named_credentials)]


class SourceSpec(Shorthand):
    """One or more raw files; a plain string is short for `uri`."""

    short_for: ClassVar[str] = "uri"

    uri: Uri
    """Path (relative to the spec's folder), `s3://` address, or a glob of either; may hold `{{ start }}`, `{{ end
    }}`."""
    format: Literal["auto", "csv", "tsv", "jsonl", "parquet", "files", "text"] = "auto"
    """File format; `auto`: by extension (.csv, .tsv, .jsonl, .ndjson, .json, .parquet; also with .gz, .bz2, .xz or
    .zst). `tsv`: a CSV with tabs; `files`: each file is a row; `text`: each file is a document, and its pieces are the
    rows."""
    csv: CsvSpec | None = Field(default=None, exclude_if=lambda csv: csv is None)
    """For `csv` and `tsv`: how these files are written; default: as `data.csv` says."""
    pieces: PiecesSpec | None = Field(default=None, exclude_if=lambda pieces: pieces is None)
    """For `text`: how a document is cut into rows."""
    pattern: str | None = None
    """For `files` and `text`: the last parts of the path, with `{column}` placeholders: `{label}/{name}.png`; default
    none."""
    columns: list[str] | None = None
    """For `csv` without a header line: the column names; default: the names in the first line."""
    hive_partitioning: bool = Field(default=True, exclude_if=lambda taken: taken)
    """For `csv`, `jsonl` and `parquet`: whether folders named `key=value`, as Spark writes them, give the column `key`;
    default true."""
    rev: str | None = None
    """For a DVC-tracked file: the Git revision to read it at; default: the file in the working tree."""
    storage_options: StorageOptions = Field(default_factory=dict)
    """For `s3://`: options of s3fs. Credentials are named (`env:NAME`, `profile:NAME`), never written here."""

    @model_validator(mode="after")
    def _pieces_of_text(self) -> SourceSpec:
        if (self.format == "text") != (self.pieces is not None):
            sentence = "is for format: text" if self.pieces else "is missing; format: text needs it: {bytes: 2048}"
            raise FieldError("pieces", sentence)
        if self.csv is not None and not may_be_csv(self.uri, self.format):
            raise FieldError("csv", "is for CSV files; leave it out, or set format: csv")
        return self


def share_csv(sources: list[SourceSpec], csv: CsvSpec) -> bool:
    """Have the sources that may be CSV, and do not say how they are written, take `csv`; whether there are any."""
    for at, source in enumerate(sources):
        if source.csv is None and may_be_csv(source.uri, source.format):
            sources[at] = source.model_copy(update={"csv": csv})
    return any(source.csv == csv for source in sources)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) or value is None else [value]


Sources = Annotated[
    list[SourceSpec],
    Field(min_length=1),
    BeforeValidator(_listed, json_schema_input_type=Annotated[list[SourceSpec], Field(min_length=1)] | SourceSpec),
]


class WindowSpec(Section):
    """The part of the data that a run reads: START..END, END excluded. `--window` or the schedule gives it."""

    column: str | None = None
    """Column that holds a time; only rows with START <= time < END are read."""
    path: str | None = None
    """Instead of `column`: strftime format of `{{ start }}` and `{{ end }}` in the sources' URIs, such as
    `%Y-%m-%d`."""

    @model_validator(mode="after")
    def _one(self) -> WindowSpec:
        check_one_of(self, "column", "path")
        return self


# It hides a method of pydantic's first version, which nothing calls.
warnings.filterwarnings("ignore", 'Field name "schema" in "DataSpec" shadows')


class DataSpec(Section):
    """The raw data."""

    source: Sources
    """Files or globs, read in this order, the files of a glob by name. A single source needs no list."""
    csv: CsvSpec | None = Field(default=None, exclude_if=lambda csv: csv is None)
    """How CSV files are written, also those of `evaluate.sets`; default: commas, points and UTF-8."""
    window: WindowSpec | None = None
    """The part of the data that a run reads; default all."""
    schema: Literal["union", "strict"] = Field(  # type: ignore[assignment]
        default="union", exclude_if=lambda schema: schema == "union"
    )
    """Files with other columns or types than the others: with `union`, a column that a file lacks is null in its rows,
    and a column has the type that holds the values of all files; with `strict`, they are refused. Default union."""
    sensitive: list[str] = Field(default_factory=list)
    """Columns whose values never appear in an artifact, a log or a report (row numbers may); default none."""
    memory_share: float = Field(default=MEMORY_SHARE, gt=0, le=1, exclude_if=lambda share: share == MEMORY_SHARE)
    """The largest share of the machine's memory (or of its control group's limit) that reading these files may take,
    between 0 and 1; default 0.8. With more, the stage ends and names the file. Never changes the result."""

    @model_validator(mode="after")
    def _window_is_used(self) -> DataSpec:
        by_path = self.window is not None and self.window.path is not None
        windowed = [index for index, source in enumerate(self.source) if _PLACEHOLDER.search(source.uri)]
        if by_path and not windowed:
            raise FieldError(("window", "path"), "fills {{ start }} and {{ end }}, but no data.source.uri has either")
        if windowed and not by_path:
            sentence = "has {{ start }} or {{ end }}, which data.window.path must say how to write (such as %Y-%m-%d)"
            raise FieldError(("source", windowed[0], "uri"), sentence)
        return self


class SplitSpec(Section):
    """Which rows go to train, val and test: by hash of a key, by time, by an existing column, or by position."""

    key: str | list[str] | None = None
    """Column or columns whose hash decides. With `time` or `column`: a key that occurs in two splits is refused."""
    time: str | None = None
    """Column that holds a time: the oldest rows go to train, the newest to test."""
    column: str | None = None
    """Column whose values name the splits."""
    by: Literal["position"] | None = Field(default=None, exclude_if=lambda by: by is None)
    """`position`: the first pieces of each document go to train, the last to test; needs `format: text`."""
    fractions: dict[Name, float] = Field(default_factory=lambda: {"train": 0.8, "val": 0.1, "test": 0.1})
    """Share of each split, in order; the shares must add up to 1. Not used with `column`."""
    boundaries: dict[Name, str] = Field(default_factory=dict)
    """With `time`: ISO time at which each split after train begins, such as {val: 2026-01-01, test: 2026-02-01}."""
    gap_s: float = Field(default=0.0, ge=0)
    """With `time`: rows within this many seconds before a boundary are left out and counted; default 0."""
    gap: int = Field(default=0, ge=0, exclude_if=lambda gap: not gap)
    """With `by: position`: as many pieces before each boundary are left out and counted; default 0."""
    seed: int = 0
    """Seed of the hash; default 0."""

    @field_validator("by", mode="before")
    @classmethod
    def _not_the_name_of_a_field(cls, by: Any) -> Any:
        if by in ("key", "time", "column"):
            raise ValueError(f"must be position, got {by!r}; to split by {by}, leave by out and write {by}: COLUMN")
        return by

    @property
    def names(self) -> list[str] | None:
        """The splits in order; None where a column's values name them."""
        if self.column is not None:
            return None
        return ["train", *self.boundaries] if self.boundaries else list(self.fractions)

    @model_validator(mode="after")
    def _consistent(self) -> SplitSpec:
        if self.time is not None and self.column is not None:
            raise FieldError("column", "and time exclude each other; keep one")
        if self.by is not None and (self.key or self.time is not None or self.column is not None):
            raise FieldError("by", "excludes key, time and column; keep one")
        if self.time is None and self.column is None and not self.key and self.by is None:
            raise ValueError("does not say how to split; give key, time, column, or by: position")
        if self.gap and self.by is None:
            raise FieldError("gap", "needs by: position; add it, or leave gap out (gap_s is for time)")
        for name in ("boundaries", "gap_s"):
            if self.time is None and getattr(self, name):
                raise FieldError(name, "needs time; add shards.split.time, or leave it out")
        if self.boundaries:
            self._check_boundaries()
        elif self.column is None:
            self._check_fractions()
        return self

    def _check_fractions(self) -> None:
        for name, share in self.fractions.items():
            if not 0 <= share <= 1:
                raise FieldError(("fractions", name), f"must be a share between 0 and 1, got {share:g}")
        total = sum(self.fractions.values())
        if abs(total - 1) > 1e-9:
            raise FieldError("fractions", f"must add up to 1, but adds up to {total:g}")
        if not self.fractions.get("train"):
            raise FieldError("fractions", "leaves nothing for train; give it a share")

    def _check_boundaries(self) -> None:
        before: datetime | None = None
        for name, text in self.boundaries.items():
            field = ("boundaries", name)
            if name == "train":
                raise FieldError(field, "train is what comes before the first boundary; name the later splits only")
            try:
                moment = datetime.fromisoformat(text)
            except ValueError:
                raise FieldError(field, f"must be an ISO time such as 2026-01-31T12:00:00, got {text!r}") from None
            if before is not None and (moment.tzinfo is None) != (before.tzinfo is None):
                raise FieldError(field, "must have a time zone if the one before has one, and none if it has none")
            if before is not None and moment <= before:
                raise FieldError(field, "must be later than the boundary before it")
            before = moment


class ShardsSpec(Section):
    """How the rows are stored for training."""

    format: Literal["parquet", "tfrecord"] = "parquet"
    """File format; default parquet."""
    target_size_bytes: int = Field(default=64 * 2**20, ge=1024)
    """Approximate size of a shard, in bytes; default 64 MiB."""
    split: SplitSpec
    """Which rows go to which split."""
    seed: int = 0
    """Seed of the shuffle when shards are written; default 0."""
    transform: CallableSpec | None = None
    """A function of yours that maps a pyarrow RecordBatch to a RecordBatch, after rows are split; default none."""
    append: bool = False
    """Whether new source files become new shards beside those of an earlier dataset; default no."""
    workers: int | None = Field(default=None, ge=1)
    """Processes that do the work; default: one per CPU, at most 4, but 1 for little data. Never changes the result."""
    memory_bytes: int = Field(default=384 * 2**20, ge=2**20)
    """Maximum memory for rows, in bytes: all processes together (with Dask: each thread); default 384 MiB. Never
    changes the result."""
    runner: Runner = "local"
    """Where the work is done: `local` (this machine) or a Dask cluster; default local. Never changes the result."""

    UNKEYED: ClassVar[frozenset[str]] = frozenset({"workers", "memory_bytes", "runner"})
    """Fields that do not change the result, and so are no part of its reuse key."""

    @model_validator(mode="after")
    def _append_decides_rows_alone(self) -> ShardsSpec:
        if self.append and self.split.time is not None and not self.split.boundaries:
            sentence = "and split.time with split.fractions exclude each other: new rows would move the boundaries;"
            raise FieldError("append", f"{sentence} give split.boundaries")
        if self.append and self.split.key is not None and (self.split.time or self.split.column):
            other = "time" if self.split.time else "column"
            sentence = (
                f"and split.key beside split.{other} exclude each other: the keys of old rows are not read again;"
            )
            raise FieldError("append", f"{sentence} leave one out")
        return self

    @model_validator(mode="after")
    def _cluster_has_workers_of_its_own(self) -> ShardsSpec:
        if self.workers is not None and self.runner != "local":
            sentence = (
                "and runner.dask exclude each other: the cluster decides how many work at once; leave workers out"
            )
            raise FieldError("workers", sentence)
        return self
