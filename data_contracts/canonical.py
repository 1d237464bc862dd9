"""Canonical JSON and the digests taken over it: the same value gives the same bytes on any day and machine."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
KEY_LENGTH = 40


def canonical(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no white space; NaN and infinities are refused (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def plain(value: Any) -> bytes:
    """UTF-8 JSON in the order that the value has: what a person wrote in an order (splits, arguments) is read so."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """SHA-256 of `canonical(value)`, 64 hexadecimal digits."""
    return hashlib.sha256(canonical(value)).hexdigest()


def reuse_key(stage: str, stage_version: int, settings: Any, inputs: Any, code_digest: str | None) -> str:
    """The reuse key of a stage's result: the first 40 hexadecimal digits of the digest of what decides it."""
    return digest(
        {"stage": stage, "stage_version": stage_version, "settings": settings, "inputs": inputs, "code": code_digest}
    )[:KEY_LENGTH]


def valid_name(name: str) -> str:
    """`name`, if it may become a path: `[a-z0-9][a-z0-9._-]{0,62}`; else ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be a name: use 1 to 63 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"
        )
    return name


Name = Annotated[str, AfterValidator(valid_name)]
