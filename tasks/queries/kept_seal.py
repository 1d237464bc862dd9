"""A receipt's seal that a person kept outside of the store: it shows that no older store was put back."""

from __future__ import annotations

import re
from collections.abc import Sequence

from data_contracts.errors import CorruptError, UsageError
from infra.store import Store

_SEAL = re.compile(r"[0-9a-f]{16,64}")


def checked_seal(seal: str) -> str:
    """A receipt's seal, or its first 16 digits or more, as a person gives it; else UsageError."""
    if not _SEAL.fullmatch(seal):
        raise UsageError(
            f"--at-least: {seal!a} is not a receipt's seal.",
            remedy="Give the 64 hexadecimal digits that `prove --key` prints, or at least the first 16.",
        )
    return seal


def require_seal(store: Store, model: str, alias: str, seals: Sequence[str], at_least: str) -> None:
    """CorruptError if none of the seals of an alias's receipts is the one that a person kept."""
    if at_least and not any(seal.startswith(at_least) for seal in seals):
        raise CorruptError(
            f"{model}@{alias} in {store.uri} has no receipt with the seal {at_least[:16]}…: an older store was "
            "put back, or its history was replaced.",
            remedy="Find the store that had it; do not use this one.",
        )
