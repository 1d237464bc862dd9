"""The bytes of a CSV file as one reader understands them: in UTF-8, without skipped lines and comments; as a stream."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, Literal

from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import CsvSpec, SourceSpec
from data_contracts.pipeline_spec.csv_format import NO_QUOTE
from infra.sources.types import Notation

_BLOCK = 1 << 20
# The largest value or comment, and all lines that are skipped.
_MOST_BYTES = 1 << 23


@dataclass(frozen=True)
class CsvFile:
    """How a CSV file is read.

    Attributes:
        columns: the names of its columns, if they do not stand in its first line.
        tabs: whether values are separated by tabs if the settings do not say by what.
    """

    name: str
    columns: list[str] | None = None
    settings: CsvSpec = field(default_factory=CsvSpec)
    tabs: bool = False

    @classmethod
    def of(cls, file: SourceFile, sources: list[SourceSpec]) -> CsvFile:
        """As the file's source says."""
        source = sources[file.source]
        return cls(file.uri, source.columns, source.csv or CsvSpec(), file.format == "tsv")

    @property
    def separator(self) -> str:
        """What stands between two values."""
        return self.settings.separator or ("\t" if self.tabs else ",")

    @property
    def quote(self) -> str | None:
        """What encloses values."""
        return None if self.settings.quote == NO_QUOTE else self.settings.quote or '"'

    @property
    def notation(self) -> Notation:
        """How numbers are written."""
        return Notation(self.settings.decimal or ".", self.settings.thousands or "")

    def rows(self, text: str, separator: str | None = None) -> Any:
        """The rows of a text, perhaps with another separator: the reader of Python's module `csv`."""
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE
        lines = io.StringIO(text, newline="")
        return csv.reader(lines, delimiter=separator or self.separator, quotechar=self.quote, quoting=quoting)


def plain_lines(stream: BinaryIO, file: CsvFile) -> BinaryIO:
    """A CSV file's bytes as other programs write them, but for separator and quotes.

    Raises: UsageError, also while it is read, for bytes that the encoding does not have, and lines that are not there.
    """
    settings = file.settings
    if settings.encoding not in (None, "utf-8"):
        stream = joined(_decoded(stream, file.name, settings.encoding))
    if settings.skip_rows:
        stream = joined(_without_first(stream, file))
    if settings.comment is not None:
        stream = joined(_uncommented(stream, file, settings.comment))
    return stream


def _decoded(stream: BinaryIO, name: str, encoding: str) -> Iterator[bytes]:
    try:
        for text in codecs.iterdecode(pieces(stream), encoding):
            yield text.encode()
    except UnicodeError as error:
        raise UsageError(
            f"{name} is not {encoding}.", remedy="Correct data.csv.encoding, or convert the file to UTF-8."
        ) from error


def _without_first(stream: BinaryIO, file: CsvFile) -> Iterator[bytes]:
    """All but the first lines; as for pandas, a line end in quotes ends none of them."""
    quote, head, count = re.escape((file.quote or "").encode()), stream.read(_MOST_BYTES), file.settings.skip_rows
    inside = rb"(?:[^%b\r\n]++|%b[^%b]*+%b?+)*+" % (quote, quote, quote, quote) if quote else rb"[^\r\n]*+"
    match = re.match(rb"(?:%b(?:\r\n|\r|\n)){%d}" % (inside, min(count, len(head))), head)
    if match is None or match.end() == len(head):
        raise UsageError(
            f"{file.name} has no row after the lines that data.csv.skip_rows leaves out ({count}).",
            remedy="Correct skip_rows, and check that quotes in these lines are closed.",
        )
    return itertools.chain([head[match.end() :]], pieces(stream))


def _uncommented(stream: BinaryIO, file: CsvFile, mark: str) -> Iterator[bytes]:
    """The bytes without comments; a line that was a comment is left empty, so lines keep their numbers."""
    comment, separator, quote = (re.escape(one.encode()) for one in (mark, file.separator, file.quote or ""))
    # A quote encloses a value only if it stands at its beginning. It is looked for first, which is faster.
    quoted = rb"%b(?<![^%b\r\n]%b)(?:[^%b]++|%b%b)*+%b?|" % (quote, separator, *[quote] * 5)
    special = re.compile((quoted if quote else b"") + rb"(?P<comment>%b[^\r\n]*+)" % comment)
    before, rest = b"", b""  # the last byte that was given, and what may continue in the next piece
    while True:
        piece = stream.read(_BLOCK)
        data, kept = before + rest + piece, []
        done, end = len(before), len(data)
        for match in special.finditer(data, done):
            if match.end() == len(data) and piece:
                end = match.start()
                break
            if match["comment"] is not None:
                kept.append(data[done : match.start()])
                done = match.end()
        yield b"".join([*kept, data[done:end]])
        if not piece:
            return
        before, rest = data[end - 1 : end], data[end:]
        if len(rest) > _MOST_BYTES:
            raise UsageError(
                f"{file.name} has a value or a comment larger than {_MOST_BYTES >> 20} MiB.",
                remedy="Check that quotes are closed.",
            )


def pieces(stream: BinaryIO) -> Iterator[bytes]:
    """What is left of a stream."""
    return iter(partial(stream.read, _BLOCK), b"")


def joined(pieces: Iterator[bytes]) -> io.BufferedReader[Any]:
    """Pieces of bytes as one stream."""
    return io.BufferedReader(_Joined(pieces), _BLOCK)


class _Joined(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces, self._left = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left and (piece := next(self._pieces, None)) is not None:
            self._left = memoryview(piece)
        part, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)
