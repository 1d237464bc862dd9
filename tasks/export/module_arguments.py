"""The arguments that a module was made with, as they may leave: without credentials and places of this machine."""

from __future__ import annotations

import re
from typing import Any

from data_contracts.pipeline_spec.data import credential_in, is_named_like_secret

WITHHELD = "withheld"
_PLACE = re.compile(r"(?i)\s*(?:/|~|file:|[a-z]:[\\/]|\\\\)")
# Tokens whose first letters say whose they are, whatever the argument is called.
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20}|gh[a-z]_[A-Za-z0-9]{20}|github_pat_\w{20}|glpat-[\w-]{20}|AKIA[A-Z0-9]{16}|sk-[\w-]{20}"
    r"|xox[a-z]-[\w-]{10})"
)


def without_private(value: Any, name: str = "") -> tuple[Any, list[str]]:
    """The arguments with `withheld` in place of what stays, and the names of these arguments.

    A value stays if its name says that it is a secret, or if it is a text that holds a credential, a private key or an
    absolute path, or a mapping with such a text as a key.

    Args:
        name: of the argument that holds the value, such as `encoder.weights`.
    """
    last = name.rpartition(".")[2]
    if last and value is not None and not isinstance(value, bool) and is_named_like_secret(last):
        return WITHHELD, [name]
    if isinstance(value, str):
        return (WITHHELD, [name]) if _stays(value) else (value, [])
    if name and isinstance(value, dict) and any(isinstance(key, str) and _stays(key) for key in value):
        return WITHHELD, [name]
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        made = {key: without_private(one, f"{name}.{key}".lstrip(".")) for key, one in items}
        left = [one for _, names in made.values() for one in names]
        plain = {key: one for key, (one, _) in made.items()}
        return (plain if isinstance(value, dict) else list(plain.values())), left
    return value, []


def _stays(text: str) -> bool:
    return bool(_PLACE.match(text) or credential_in(text) or _TOKEN.search(text) or "PRIVATE KEY-----" in text)
