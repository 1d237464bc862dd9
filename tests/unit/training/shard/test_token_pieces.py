"""Pieces of so many tokens: joined they are the document, however its bytes come; what cannot be starts is refused."""

from __future__ import annotations

import io
import random
import re
from typing import Any

import numpy as np
import pytest

from training.shard import cut_worker
from training.shard.cut_worker import BadStarts, NotText, TooLarge, checked_starts, cut_document, piece_ends


def words(text: str) -> np.ndarray:
    """A token is a word; space before it belongs to the token before."""
    return np.array([found.start() for found in re.finditer(r"\S+", text)], np.int64)


def characters(text: str) -> np.ndarray:
    return np.arange(len(text))


def utf8_bytes(text: str) -> np.ndarray:
    """A token is a byte, as of a byte-level tokenizer: all of a character start where it does."""
    return np.repeat(np.arange(len(text)), [len(one.encode()) for one in text])


def cut(data: bytes, starts: Any, most: int) -> list[tuple[str, int]]:
    """The text and the tokens of each piece."""
    pieces, at = [], 0
    for size, tokens in cut_document(io.BytesIO(data).read, starts, most):
        pieces.append((data[at : at + size].decode(), tokens))
        at += size
    assert at == len(data)
    return pieces


@pytest.mark.parametrize(
    ("starts", "size", "most", "ends", "tokens"),
    [
        ([], 3, 2, [3], [0]),  # blank
        ([0], 3, 1, [3], [1]),  # one token
        ([0, 2], 3, 2, [3], [2]),  # as many as a piece takes
        ([0, 2, 4], 6, 2, [4, 6], [2, 1]),
        ([1, 2, 4, 5], 6, 2, [4, 6], [2, 2]),  # what precedes the first token belongs to its piece
        ([0, 1, 1, 2], 3, 2, [1, 2, 3], [1, 2, 1]),  # tokens of one character stay together
        ([0, 0, 1], 2, 2, [1, 2], [2, 1]),
    ],
)
def test_where_pieces_end(starts: list[int], size: int, most: int, ends: list[int], tokens: list[int]) -> None:
    assert piece_ends(np.array(starts, np.int64), size, most) == (ends, tokens)


def test_a_character_of_more_tokens_than_a_piece_is_refused() -> None:
    with pytest.raises(BadStarts, match="more than 2 tokens start at character 1"):
        piece_ends(np.array([0, 1, 1, 1, 2]), 3, 2)


@pytest.mark.parametrize(("window", "block"), [(4, 1), (16, 3), (1 << 20, 1 << 20)])
@pytest.mark.parametrize("starts", [words, characters, utf8_bytes])
@pytest.mark.parametrize("most", [4, 5, 1000])
def test_the_pieces_are_the_document(
    starts: Any, most: int, window: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_worker, "WINDOW", window)
    monkeypatch.setattr(cut_worker, "_BLOCK", block)
    draw = random.Random(most)
    text = "\ufeff" + "".join(draw.choices("ab  \r\né€😀", k=400)) + "  "
    pieces = cut(text.encode(), starts, most)
    assert "".join(piece for piece, _ in pieces) == text
    for piece, tokens in pieces:
        assert tokens <= most
        # A piece that is cut alone has the tokens that it had in its document.
        assert tokens == len(starts(piece))
    full = [tokens for _, tokens in pieces[:-1]]
    assert all(tokens > most - 4 for tokens in full) if starts is utf8_bytes else set(full) <= {most}


def digits_by_three(text: str) -> np.ndarray:
    """Three digits are a token, counted from a number's end: where the text ends decides the tokens before."""
    return np.array([found.start() for found in re.finditer(r"\d{1,3}(?=(\d{3})*(?!\d))", text)], np.int64)


@pytest.mark.parametrize("window", [40, 47, 64, 91])
def test_where_a_window_ends_does_not_matter(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(7)
    data = " ".join(str(draw.randrange(10 ** draw.randint(1, 9))) for _ in range(300)).encode()
    whole = cut(data, digits_by_three, 4)
    monkeypatch.setattr(cut_worker, "WINDOW", window)
    assert cut(data, digits_by_three, 4) == whole


@pytest.mark.parametrize(
    ("text", "pieces"), [("", []), ("x", [("x", 1)]), (" \n", [(" \n", 0)]), ("a b", [("a b", 2)])]
)
def test_short_documents(text: str, pieces: list[tuple[str, int]]) -> None:
    def starts(window: str) -> np.ndarray:
        return checked_starts(words(window), window)

    assert cut(text.encode(), starts, 2) == pieces


@pytest.mark.parametrize(
    ("data", "at"), [(b"0123456789\xff and on", 10), (b"\xe9", 0), (b"0123456789" + "€".encode()[:2], 10)]
)
@pytest.mark.parametrize("block", [1, 4, 1 << 20])
def test_what_is_not_text(data: bytes, at: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_worker, "_BLOCK", block)
    with pytest.raises(NotText) as caught:
        cut(data, words, 2)
    assert caught.value.at == at


def test_a_piece_that_does_not_end_is_refused_before_the_document_is_read_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cut_worker, "WINDOW", 16)
    monkeypatch.setattr(cut_worker, "MOST", 64)
    monkeypatch.setattr(cut_worker, "_BLOCK", 16)
    blocks = iter([b"x" * 16] * 6)
    with pytest.raises(TooLarge):
        list(cut_document(lambda _: next(blocks), words, 1))
    # One piece in so many characters is enough.
    text = "x" * 60 + " " + "y" * 60
    assert cut(text.encode(), words, 1) == [("x" * 60 + " ", 1), ("y" * 60, 1)]


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        *(
            (value, f"a value of type {type(value).__name__}, not a list of whole numbers")
            for value in (
                None,
                7,
                "0 1",
                [0, 1.0],
                [0, float("nan")],
                [0, None],
                ["0"],
                [(0, 1), (1, 2)],
                np.array([0.5]),
            )
        ),
        ([], "no token for a text that is not blank"),
        ([0, 2**70], f"a token starts at character {2**70}, outside of the text of 4 characters"),
        ([-1, 0], "a token starts at character -1, outside of the text of 4 characters"),
        ([0, 5], "a token starts at character 5, outside of the text of 4 characters"),
        ([0, 2, 1], "token 2 starts at character 1, before token 1 at 2"),
        (np.array([3, 0], np.uint8), "token 1 starts at character 0, before token 0 at 3"),
    ],
)
def test_what_cannot_be_the_starts_of_tokens(returned: Any, why: str) -> None:
    with pytest.raises(BadStarts, match=re.escape(why)):
        checked_starts(returned, "text")


@pytest.mark.parametrize("returned", [[0, 2], (0, 2), np.array([0, 2], np.uint32), range(0, 4, 2)])
def test_what_can_be(returned: Any) -> None:
    assert checked_starts(returned, "text").tolist() == [0, 2]
    assert checked_starts([], " \n").tolist() == []
    assert checked_starts([0, 4], "text").tolist() == [0, 3]
