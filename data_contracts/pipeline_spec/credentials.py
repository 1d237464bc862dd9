"""Finds credentials that a spec holds where it must only name them (`env:NAME`, `profile:NAME`).

A spec is stored: with each run, and in Prefect as the parameters of flow runs, which are shown there. Only names of
options and tags, and addresses, are checked: a secret in another form under a harmless name is not recognized.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs

from data_contracts.pipeline_spec.base import FieldError
from data_contracts.yaml_document import FieldPath

# Options of s3fs and botocore. Wider than `_WORD`: to name a harmless option as `env:NAME` costs little.
_OPTION = re.compile(r"(?i).*key|username|auth|.*(secret|token|passw|access_key|credential|authorization|cookie).*")
# Words in the names of tags and of fields in addresses. Narrower than `data_contracts.secret_names`, where files such
# as `deploy.env` are secret: here that is the name of a setting. The plural `tokens` is a count.
_WORD = re.compile(
    r"[a-z]*(?:passw(?:or[dt]|d)s?|secrets?|token|credentials?|creds|cookies?)|o?auth|authorization|bearer|jwt"
    r"|passphrase|pwd|sig|signature|(?:access|api|private)keys?(?:id)?"
)
_KEY = re.compile(r"(?:^| )(?:access|api|encryption|private|signing) keys?(?: |$)")
# `apiKey` is `api key`, `AWSAccessKeyId` is `AWS access key id`.
_BETWEEN = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_USER_INFO = re.compile(r"\w+://[^/]*@.*")
_ADDRESS = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]{0,30})://(\S*)")
_PLACE = re.compile(r"[^/?#]*")
_NAMED = ("env:", "profile:")
_FIELDS = ("key", "pass")
TAGS_ARE_SHOWN = "tags are stored with every result and shown in Prefect"


def is_named_like_secret(name: str) -> bool:
    """Whether a whole word of a tag's or field's name says that its value is a secret."""
    words = [word.casefold() for word in _BETWEEN.split(name) if word]
    return any(map(_WORD.fullmatch, words)) or _KEY.search(" ".join(words)) is not None


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
        if value is not None and _OPTION.fullmatch(name) and not str(value).startswith(_NAMED):
            raise FieldError(name, "must name a credential (env:NAME or profile:NAME), not hold one")
        if isinstance(value, str) and _USER_INFO.fullmatch(value):
            raise FieldError(name, "must not hold a user or password in its address; name them (env:NAME)")
    return options


def credential_in(text: str) -> str | None:
    """What an address in a text holds that is secret, in words such as `a password`; None if nothing."""
    for scheme, rest in _ADDRESS.findall(text) if "://" in text else ():
        place = _PLACE.match(rest)[0]  # type: ignore[index]
        user, at, _ = place.rpartition("@")
        name, colon, password = (user if at else place).partition(":")
        # What follows a host's colon is a port; anything else is a password in which a `/` was not escaped.
        is_cut = not at and "@" in rest and colon and not password.isdigit()
        if (at or is_cut) and password and not password.startswith(_NAMED):
            return "a password"
        # `git@` and the user of a database are not secrets; before `https://`, a user alone is a token.
        if at and name and not colon and scheme.casefold().endswith(("http", "https")):
            return "a user, which may be a token"
        # In an address of S3, `?` also stands for any character of a folder's name.
        fields = [part for part in re.split("[?#]", rest)[1:] if scheme.casefold() != "s3" or "/" not in part]
        if field := next(filter(None, map(secret_in_query, fields)), None):
            return f"a field {field} that looks like a secret"
    return None


def secret_in_query(query: str) -> str | None:
    """The first field that is named like a secret in the part of an address after its `?`; None if there is none."""
    # Google's interfaces take an API key as `key`; `sortKey` and `monkey` are other names.
    return next((name for name in parse_qs(query) if name.casefold() in _FIELDS or is_named_like_secret(name)), None)


def addresses_with_credentials(value: Any, field: FieldPath = ()) -> Iterator[tuple[FieldPath, str]]:
    """Each text below `value` with a credential in an address: its field, and what `credential_in` says."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from addresses_with_credentials(inner, (*field, key))
    elif isinstance(value, str) and (what := credential_in(value)):
        yield field, what


def tags_with_credentials(tags: Mapping[str, str]) -> dict[str, str]:
    """A sentence for each tag that is named like a secret, or whose value has an address with one."""
    sentences = {}
    for name, value in tags.items():
        if is_named_like_secret(name) and not value.startswith(_NAMED):
            sentences[name] = f"is named like a secret; {TAGS_ARE_SHOWN}. Leave it out, or rename it."
        elif what := credential_in(value) or credential_in(name):
            sentences[name] = f"has an address with {what}; {TAGS_ARE_SHOWN}. Leave it out of the address."
    return sentences
