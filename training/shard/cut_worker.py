"""The child process that cuts documents by the user's tokenizer: the only place where it is imported. Torch-free.

Run as `python -m training.shard.cut_worker REQUEST ANSWER` by `infra.child`. It reads each document once, as a stream,
and cuts it into pieces of so many tokens; a tokenizer gets one window of the text after another. A window begins where
a piece begins, so its first tokens are those of the piece alone. Windows depend on the document only, and not on how
its bytes are read: the cut is the same on any machine.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.handoffs import SourceFile
from data_contracts.messages.raw_data import CUT, ChunkOffsets, CutRequest
from infra.processes.child_main import Report, advances, child_main
from infra.sources import Places
from infra.sources.documents import not_utf8, offsets_name, pack
from infra.sources.places import stream
from training.user.imports import add_project, make_object, user_code

REPORT_S = 0.5
# Characters that a tokenizer is given at once; more if they hold fewer than two pieces, up to the most.
WINDOW = 1 << 20
MOST = 1 << 24
_BLOCK = 1 << 20
# Where each token of a text starts, in characters: (tokens,), ascending.
Starts = Callable[[str], NDArray[np.int64]]
Read = Callable[[int], bytes]


def main(request: CutRequest, report: Report) -> ChunkOffsets:
    """The cut of each document of a request; documents of equal bytes are cut once.

    Raises:
        UsageError: the class is not there or has no method `starts`; a document is not UTF-8, or a piece is too large.
        UserCodeError: the class raises, or returns what cannot be the starts of tokens.
    """
    starts = _tokenizer(request, advances(report, REPORT_S))
    places = Places(request.sources, Path(request.root))
    documents: dict[str, str] = {}
    for file in request.files:
        name = offsets_name(file)
        if name not in documents:
            documents[name] = _cut(file, request, places, starts)
    return ChunkOffsets(documents=documents)


def _cut(file: SourceFile, request: CutRequest, places: Places, starts: Starts) -> str:
    assert request.pieces.tokens is not None
    assert request.pieces.tokenizer is not None
    what = f"{request.field} ({request.pieces.tokenizer.class_path})"
    try:
        with stream(file, places.of(file)) as opened:
            pairs = list(cut_document(opened.read, starts, request.pieces.tokens))
    except NotText as error:
        raise not_utf8(file, error.at) from error
    except TooLarge as error:
        raise UsageError(
            f"{file.uri}: {request.pieces.tokens} tokens are more than {MOST:,} characters.",
            remedy="Take fewer tokens, or cut the document by bytes.",
        ) from error
    except UserCodeError as error:
        error.message = f"{error.message.rstrip('.')}, on {file.uri}."
        raise
    except BadStarts as error:
        raise UserCodeError(f"{what}: for {file.uri}, {error}.", remedy="Correct its method starts.") from error
    return pack([size for size, _ in pairs], [tokens for _, tokens in pairs])


def _tokenizer(request: CutRequest, advanced: Callable[[], None]) -> Starts:
    """The user's method, whose answer is checked; `advanced` is called after each text."""
    assert request.pieces.tokenizer is not None
    root, called = add_project(request.project), request.pieces.tokenizer
    tokenizer = make_object(called.class_path, called.init_args, request.field, root)
    method = getattr(tokenizer, "starts", None)
    if not callable(method):
        raise UsageError(
            f"{request.field}: {called.class_path} has no method starts.",
            remedy="Write starts(self, text), which returns the character at which each token of the text starts.",
        )

    def starts(text: str) -> NDArray[np.int64]:
        with user_code(f"{request.field} ({called.class_path})", root):
            returned = listed(method(text))
        advanced()
        return checked_starts(returned, text)

    return starts


class BadStarts(ValueError):
    """A tokenizer's answer cannot be the starts of a text's tokens; why, as a clause in our words."""


class TooLarge(ValueError):
    """A piece of so many tokens would have more than the most characters."""


class NotText(ValueError):
    """A document is not UTF-8 from the byte `at` on."""

    def __init__(self, at: int) -> None:
        self.at = at
        super().__init__(f"byte {at}")


def cut_document(read: Read, starts: Starts, most: int) -> Iterator[tuple[int, int]]:
    """Bytes and tokens of each piece of a document in order, at most `most` tokens each.

    Args:
        read: returns up to so many of the next bytes, b"" at the end.

    Raises: BadStarts, TooLarge, NotText.
    """
    texts, text, ended, size = _decoded(read), "", False, WINDOW
    while not ended or text:
        while not ended and len(text) <= size:
            more = next(texts, None)
            ended = more is None
            text += more or ""
        last = ended and len(text) <= size
        window = text if last else text[:size]
        if not window:
            return
        ends, tokens = piece_ends(starts(window), len(window), most)
        if not last:
            if len(ends) < 3 and size < MOST:
                size = min(size * 2, MOST)
                continue
            if len(ends) < 2:
                raise TooLarge
            # The window ends before the text does, so its last tokens may differ from the text's tokens.
            whole = max(1, len(ends) - 2)
            ends, tokens = ends[:whole], tokens[:whole]
        yield from zip(_byte_sizes(window, ends), tokens, strict=True)
        text, size = text[ends[-1] :], WINDOW


def piece_ends(starts: NDArray[np.int64], size: int, most: int) -> tuple[list[int], list[int]]:
    """The character after each piece of a text, and how many tokens start in it.

    A piece ends where a token starts. Tokens that start at one character stay together; BadStarts if they are too many.
    """
    ends, tokens, first = [], [], 0
    while len(starts) - first > most:
        end = int(starts[first + most])
        following = int(np.searchsorted(starts, end))
        if following <= first:
            raise BadStarts(f"more than {most} tokens start at character {end}")
        ends.append(end)
        tokens.append(following - first)
        first = following
    return [*ends, size], [*tokens, len(starts) - first]


def listed(returned: Any) -> Any:
    """A tokenizer's answer as a list of its items; unchanged if it has none.

    The user's code may give the items one by one, and so may raise here.
    """
    return list(returned) if hasattr(returned, "__iter__") else returned


def checked_starts(returned: Any, text: str) -> NDArray[np.int64]:
    """What a tokenizer returned for a text that is not empty, as numbers; BadStarts says what is wrong with it."""
    values = listed(returned)
    if values == [] and text.isspace():
        return np.zeros(0, np.int64)
    if values == []:
        raise BadStarts("it returned no token for a text that is not blank")
    if not isinstance(values, list) or not all(isinstance(value, int | np.integer) for value in values):
        raise BadStarts(f"it returned a value of type {type(returned).__name__}, not a list of whole numbers")
    outside = [value for value in values if value < 0 or value > len(text)]
    if outside:
        raise BadStarts(f"a token starts at character {outside[0]}, outside of the text of {len(text)} characters")
    # A token without characters at the text's end, such as SentencePiece's last space, belongs to the last character.
    starts = np.minimum(np.array(values, np.int64), len(text) - 1)
    if len(falls := np.flatnonzero(np.diff(starts) < 0)):
        at = int(falls[0])
        raise BadStarts(f"token {at + 1} starts at character {starts[at + 1]}, before token {at} at {starts[at]}")
    return starts


def _byte_sizes(text: str, ends: list[int]) -> Iterator[int]:
    begin = 0
    for end in ends:
        yield len(text[begin:end].encode())
        begin = end


def _decoded(read: Read) -> Iterator[str]:
    """A document's text, some at a time; a byte order mark and carriage returns stay."""
    decoder, before = codecs.getincrementaldecoder("utf-8")(), 0
    while True:
        data = read(_BLOCK)
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise NotText(before - pending + error.start) from error
        before += len(data)
        yield text
        if not data:
            return


if __name__ == "__main__":
    child_main(CUT, main)
