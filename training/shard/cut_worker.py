"""The child process that cuts documents by the user's tokenizer: the only place where it is imported. Torch-free.

Run as `python -m training.shard.cut_worker REQUEST ANSWER` by `infra.child`. It reads each document once, as a stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.handoffs import SourceFile
from data_contracts.messages.children import Advanced
from data_contracts.messages.raw_data import CUT, CutRequest, TextCuts
from data_contracts.pipeline_spec import PiecesSpec
from infra.processes.child_main import Report, child_main
from infra.sources import Places
from infra.sources.documents import cut_name, not_utf8, pack
from infra.sources.places import stream
from training.shard.token_pieces import MOST, BadStarts, NotText, TooLarge, checked_starts, cut_document, listed
from training.user.imports import add_project, make_object, user_code

REPORT_S = 0.5


def main(request: CutRequest, report: Report) -> TextCuts:
    """The cut of each document of a request; documents of equal bytes are cut once.

    Raises:
        UsageError: the class is not there or has no method `starts`; a document is not UTF-8, or a piece is too large.
        UserCodeError: the class raises, or returns what cannot be the starts of tokens.
    """
    starts = _reporting(_tokenizer(request), report)
    places = Places(request.sources, Path(request.root))
    documents: dict[str, str] = {}
    for file in request.files:
        name = cut_name(file)
        if name not in documents:
            documents[name] = _cut(file, request, places, starts)
    return TextCuts(documents=documents)


def _cut(file: SourceFile, request: CutRequest, places: Places, starts: Callable[[str], NDArray[np.int64]]) -> str:
    assert request.pieces.tokens is not None
    what = f"{request.field} ({_class_of(request.pieces)})"
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
        raise UserCodeError(f"{what}: for {file.uri}, {error.why}.", remedy="Correct its method starts.") from error
    return pack([size for size, _ in pairs], [tokens for _, tokens in pairs])


def _class_of(pieces: PiecesSpec) -> str:
    assert pieces.tokenizer is not None
    return pieces.tokenizer.class_path


def _tokenizer(request: CutRequest) -> Callable[[str], NDArray[np.int64]]:
    """The user's method, whose answer is checked, the first one by asking for it again."""
    assert request.pieces.tokenizer is not None
    root, called = add_project(request.project), request.pieces.tokenizer
    tokenizer = make_object(called.class_path, called.init_args, request.field, root)
    method = getattr(tokenizer, "starts", None)
    if not callable(method):
        raise UsageError(
            f"{request.field}: {called.class_path} has no method starts.",
            remedy="Write starts(self, text), which returns the character at which each token of the text starts.",
        )
    what, compared = f"{request.field} ({called.class_path})", False

    def once(text: str) -> NDArray[np.int64]:
        with user_code(what, root):
            returned = listed(method(text))
        return checked_starts(returned, text)

    def starts(text: str) -> NDArray[np.int64]:
        nonlocal compared
        first = once(text)
        if not compared and not np.array_equal(first, once(text)):
            raise BadStarts("it returned other tokens when it was asked again for the same text")
        compared = True
        return first

    return starts


def _reporting(starts: Callable[[str], NDArray[np.int64]], report: Report) -> Callable[[str], NDArray[np.int64]]:
    """The same function, which also reports what is done, but not more than once in REPORT_S."""
    windows, reported = 0, time.monotonic()

    def call(text: str) -> NDArray[np.int64]:
        nonlocal windows, reported
        found, windows = starts(text), windows + 1
        if time.monotonic() - reported >= REPORT_S:
            reported = time.monotonic()
            report(Advanced(done=windows, long=True))
        return found

    return call


if __name__ == "__main__":
    child_main(CUT, main)
