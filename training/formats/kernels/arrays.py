"""The arrays that kernels take, one-dimensional unless stated otherwise, and named tuples of them.

Numba passes a named tuple to a kernel as it passes the arrays in it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ByteArray = NDArray[np.uint8]
# What counts or points: sizes, bounds, places in bytes; and the values of an Int64List.
Numbers = NDArray[np.int64]
# The bits of float32 values.
FloatBits = NDArray[np.uint32]


class Entries(NamedTuple):
    """The map entries of one column, to write.

    Attributes:
        key: the column's name, (bytes,).
        valid: (rows,); 0 for a null.
        sizes: (rows,); bytes of each row's values on the wire.
        rows: (rows + 1,); row i has the values `rows[i]` to `rows[i + 1]`.
    """

    key: ByteArray
    valid: ByteArray
    sizes: Numbers
    rows: Numbers


class Columns(NamedTuple):
    """The columns to look for in messages.

    Attributes:
        keys: the bytes of all names.
        bounds: (columns + 1,); name c is `keys[bounds[c]]` to `keys[bounds[c + 1]]`.
        kinds: (columns,); the kind of each column's list, 0 for a column that is skipped.
    """

    keys: ByteArray
    bounds: Numbers
    kinds: Numbers
