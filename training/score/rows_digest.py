"""A digest of the rows that a data module gave, so that two models are compared only on the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from blake3 import blake3


class RowDigest:
    """Takes batch after batch; equal values in the same order give equal digests, however they are batched."""

    def __init__(self) -> None:
        self._hash = blake3()

    def update(self, value: Any) -> None:
        """Take a batch: tensors, texts and numbers in any nesting; anything else counts by its type."""
        match value:
            case torch.Tensor():
                plain = value.detach().cpu().contiguous().reshape(-1)
                self._hash.update(plain.view(torch.uint8).numpy().tobytes())
            case str() | bytes() | int() | float() | None:
                self._hash.update(repr(value).encode())
            case Mapping():
                for key, one in value.items():
                    self._hash.update(repr(key).encode())
                    self.update(one)
            case list() | tuple():
                for one in value:
                    self.update(one)
            case _:
                self._hash.update(type(value).__qualname__.encode())

    def hexdigest(self) -> str:
        """The digest of everything taken so far."""
        return self._hash.hexdigest()
