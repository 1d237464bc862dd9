"""Where a tokenizer cut documents: packed into a text that travels with a resolved file, and read from it again.

A tokenizer is the user's code, and runs in one child process (`training.shard.cut_worker`). Each reader of the rows
cuts at the same bytes, and runs no code of the user's.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from data_contracts.errors import CorruptError
from data_contracts.handoffs import SourceFile
from infra.sources.streams import base_name, most_bytes

# A piece has at most as many characters as a tokenizer is given at once, of four bytes each.
MOST_PIECE_BYTES = 1 << 26
_BYTES_OF_PIECE = 8


class Unfit(ValueError):
    """A cut does not fit the document that is read; `why` is a clause in our words."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


@dataclass(frozen=True)
class TokenCut:
    """The pieces of one document: the byte after each, and its tokens; both (pieces,)."""

    ends: NDArray[np.int64]
    tokens: NDArray[np.int64]


def cut_name(file: SourceFile) -> str:
    """The name of a document's cut: of its bytes, and of how they are decompressed."""
    return file.blake3 + base_name(file.uri)[1]


def pack(sizes: list[int], tokens: list[int]) -> str:
    """Bytes and tokens of each piece as a text: about two to three characters a piece."""
    numbers = np.array([sizes, tokens], "<i4")
    return base64.b64encode(zlib.compress(numbers.tobytes())).decode()


@lru_cache(maxsize=8)
def unpack(cut: str, most: int) -> TokenCut:
    """What `pack` was given; Unfit for any other text, or for more than `most` pieces, which are not unpacked."""
    expanding = zlib.decompressobj()
    try:
        data = expanding.decompress(base64.b64decode(cut, validate=True), most * _BYTES_OF_PIECE + 1)
    except (ValueError, zlib.error) as error:
        raise Unfit("it cannot be unpacked") from error
    if len(data) > most * _BYTES_OF_PIECE:
        raise Unfit("it has more pieces than the document can have")
    if not expanding.eof or len(data) % _BYTES_OF_PIECE:
        raise Unfit("it has no pair of numbers for each piece")
    sizes, tokens = np.frombuffer(data, "<i4").reshape(2, -1).astype(np.int64)
    if (sizes <= 0).any() or (sizes > MOST_PIECE_BYTES).any() or (tokens < 0).any():
        raise Unfit("a piece has no bytes, too many, or less than no tokens")
    return TokenCut(np.cumsum(sizes), tokens)


def cut_of(file: SourceFile) -> TokenCut:
    """The cut that travels with a file; Unfit if it is damaged."""
    assert file.cut is not None, f"{file.uri} was not cut before it is read"
    return unpack(file.cut, most_bytes(file))


def unfit(file: SourceFile, error: Unfit) -> CorruptError:
    """The error for a cut that does not fit this document."""
    return CorruptError(
        f"The stored cut of {file.uri} into pieces does not fit it: {error.why}.",
        remedy="Remove the directory of kind text_cuts from contracts/ in the store, and run again.",
    )
