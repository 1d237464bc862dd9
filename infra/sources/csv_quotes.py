"""Finds what is wrong with the quotes of a CSV file, where Arrow and pandas would swallow rows without a word."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_contracts.errors import UsageError

_PIECE = 1 << 20  # bytes that are looked at together, so that they stay in the processor's cache


class Quotes:
    """Watches the bytes of a CSV file pass by, and raises UsageError if a quoted value does not end as it must.

    A quote that opens and is not closed makes all lines up to the next quote one value, which may be most of the file.

    Args:
        name: of the file, for the error.
        separator: the character between two values, of ASCII.
        quote: the character around a value that holds a separator or a line end, of ASCII.
        first: number of the first line.
    """

    def __init__(self, name: str, separator: str = ",", quote: str = '"', first: int = 1) -> None:
        self._name, self._quote, self._code = name, quote.encode(), ord(quote)
        self._opens, self._closes = np.zeros(256, bool), np.zeros(256, bool)
        self._opens[[ord(separator), *b"\r\n", self._code]] = True
        self._closes[[ord(separator), *b"\r\n \t", self._code]] = True
        self._rest = b"\n"  # the byte before what comes next, and quotes that were not looked at
        self._inside = False
        self._line, self._opened = first, 0

    def feed(self, block: bytes) -> None:
        """Take in the next bytes of the file."""
        for start in range(0, len(block), _PIECE):
            self._look(block[start : start + _PIECE])

    def finish(self) -> None:
        """The file has ended."""
        self.feed(b"\n")
        if self._inside:
            raise self._fault("has no closing quote")

    def _look(self, piece: bytes) -> None:
        data = self._rest + piece
        end = len(data.rstrip(self._quote))
        self._rest = data[end - 1 :]
        codes = np.frombuffer(data, np.uint8, end)
        quotes = np.flatnonzero(codes == self._code)
        if len(quotes) and not self._alternate(codes, quotes):
            self._follow(data, quotes.tolist())
        self._line += data.count(b"\n", 1, end)

    def _alternate(self, codes: NDArray[np.uint8], quotes: NDArray[np.int64]) -> bool:
        """Whether each second quote opens a value or is half of a pair, and each other one closes one or is such."""
        first = int(self._inside)
        opening, closing = quotes[first::2], quotes[1 - first :: 2]
        if not (self._opens[codes[opening - 1]].all() and self._closes[codes[closing + 1]].all()):
            return False
        if len(opening):
            self._opened = self._line + int(np.count_nonzero(codes[1 : opening[-1]] == ord("\n")))
        self._inside = bool(first + len(quotes) & 1)
        return True

    def _follow(self, data: bytes, quotes: list[int]) -> None:
        """Look at each quote in turn: there are some inside of values that are not quoted."""
        pair = -1
        for at in quotes:
            if at == pair:
                continue
            if not self._inside:
                if data[at - 1] != self._code and self._opens[data[at - 1]]:
                    self._inside, self._opened = True, self._line + data.count(b"\n", 1, at)
            elif data[at + 1] == self._code:
                pair = at + 1
            elif self._closes[data[at + 1]]:
                self._inside = False
            else:
                raise self._fault("goes on after its closing quote")

    def _fault(self, what: str) -> UsageError:
        return UsageError(
            f"{self._name}: a value in quotes that begins in line {self._opened} of the file {what}.",
            remedy="Close the quotes, and write a quote inside a quoted value twice; or write data.csv: {quote: none}"
            " if quotes are letters like others.",
        )
