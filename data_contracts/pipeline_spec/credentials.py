"""Finds credentials that a spec holds where it must only name them (`env:NAME`, `profile:NAME`).

A spec is stored: with each run, and in Prefect as the parameters of flow runs, which are shown there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs

from data_contracts.pipeline_spec.base import FieldError
from data_contracts.secret_names import is_secret

_SECRET = re.compile(
    r"(?i).*key|username|auth|sig|.*signature|.*(secret|token|passw|access_key|credential|authorization|cookie).*"
)
_USER_INFO = re.compile(r"\w+://[^/]*@.*")
_ADDRESS = re.compile(r"([\w+.-]+)://(?:([^/?#\s]*)@)?([^\s]*)")
_NAMED = ("env:", "profile:")


def named_credentials(options: dict[str, Any]) -> dict[str, Any]:
    """`options`, if credentials are only named; FieldError, which does not repeat it, for a credential's value."""
    for name, value in options.items():
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                continue
            try:
                named_credentials(part)
            except FieldError as error:
                raise FieldError((name, *error.field), error.sentence) from None
        if isinstance(value, dict):
            continue
        if value is not None and _SECRET.fullmatch(name) and not str(value).startswith(_NAMED):
            raise FieldError(name, "must name a credential (env:NAME or profile:NAME), not hold one")
        if isinstance(value, str) and _USER_INFO.fullmatch(value):
            raise FieldError(name, "must not hold a user or password in its address; name them (env:NAME)")
    return options


def holds_credential(text: str) -> bool:
    """Whether an address in a text holds a password, a token as its user, or a secret after its `?`."""
    for scheme, user, rest in _ADDRESS.findall(text):
        _, colon, password = user.partition(":")
        # `git@` and the user of a database are no secrets; before `https://`, a user alone is a token.
        if (password and not password.startswith(_NAMED)) or (user and not colon and re.search("https?$", scheme)):
            return True
        if has_secret_query(rest.partition("?")[2]):
            return True
    return False


def has_secret_query(query: str) -> bool:
    """Whether the part of an address after its `?` has a field that is named like a secret."""
    return any(_SECRET.fullmatch(name) for name in parse_qs(query))


def tags_with_credentials(tags: Mapping[str, str]) -> list[str]:
    """The tags that are named like a secret, or whose value has an address with one."""
    return [
        name
        for name, value in tags.items()
        if (is_secret(PurePosixPath(name)) and not value.startswith(_NAMED)) or holds_credential(value)
    ]
