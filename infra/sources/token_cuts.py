"""Where a tokenizer cut documents: packed into a text that travels with a resolved file, and read from it again.

A tokenizer is the user's code, and runs in one child process (`training.shard.cut_worker`). Each reader of the rows
cuts at the same bytes, and runs no code of the user's.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from data_contracts.errors import CorruptError
from data_contracts.handoffs import SourceFile
from infra.sources.resolve import base_name


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
def unpack(cut: str) -> TokenCut:
    """What `pack` was given; Unfit for any other text."""
    try:
        numbers = np.frombuffer(zlib.decompress(base64.b64decode(cut, validate=True)), "<i4")
    except (binascii.Error, zlib.error) as error:
        raise Unfit("it cannot be unpacked") from error
    if len(numbers) % 2 or (numbers < 0).any():
        raise Unfit("it has no pair of numbers for each piece")
    sizes, tokens = numbers.reshape(2, -1).astype(np.int64)
    if not sizes.all():
        raise Unfit("a piece has no bytes")
    return TokenCut(np.cumsum(sizes), tokens)


def cut_of(file: SourceFile) -> TokenCut:
    """The cut that travels with a file; Unfit if it is damaged."""
    assert file.cut is not None, f"{file.uri} was not cut before it is read"
    return unpack(file.cut)


def unfit(file: SourceFile, error: Unfit) -> CorruptError:
    """The error for a cut that does not fit this document."""
    return CorruptError(
        f"The stored cut of {file.uri} into pieces does not fit it: {error.why}.",
        remedy="Remove the directory of kind text_cuts from contracts/ in the store, and run again.",
    )
