"""Counts texts that come as numbers of a dictionary, as Parquet stores them: each different text is looked at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.profile.numbers import as_arrow, without_nulls
from data_contracts.profile.samples import TextSample, as_texts
from data_contracts.profile.values import Values

Ints = NDArray[np.int64]


class CodedTexts:
    """Rows of each text of a dictionary; a sample gets them when the next dictionary begins."""

    def __init__(self, sample: TextSample) -> None:
        self._sample = sample
        self._dictionary: pa.Array | None = None
        self._texts: pa.Array | None = None
        self._lengths: Ints = np.empty(0, np.int64)
        self._counts: Ints = np.empty(0, np.int64)

    def add(self, column: pa.DictionaryArray, lengths: Values) -> bool:
        """Count texts, and their lengths in order; False, and nothing, if the column must be read as plain texts."""
        if self._dictionary is None or not column.dictionary.equals(self._dictionary):
            self.flush()
            self._open(column.dictionary)
        if self._texts is None:
            return False
        self._counts += lengths.add_coded(without_nulls(column.indices), self._lengths)
        return True

    def flush(self) -> None:
        """Hand the counts to the sample."""
        if self._texts is not None:
            used = np.flatnonzero(self._counts)
            if len(used):
                self._sample.add_counts(self._texts.take(as_arrow(used)), self._counts[used].tolist())
        self._dictionary = self._texts = None

    def _open(self, dictionary: pa.Array) -> None:
        self._dictionary = dictionary
        if dictionary.null_count or pc.count_distinct(dictionary).as_py() < len(dictionary):
            return
        try:
            self._texts = as_texts(dictionary)
        except pa.ArrowInvalid:  # perhaps in a text that no row has
            return
        self._lengths = without_nulls(pc.utf8_length(self._texts)).astype(np.int64)
        self._counts = np.zeros(len(dictionary), np.int64)
