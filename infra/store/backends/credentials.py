"""Replace the credentials that a spec's `storage_options` name by the values that s3fs needs.

`env:NAME` is read from the environment, `profile:NAME` is a profile of the AWS configuration files. The resolved values
are never written anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from data_contracts.errors import UsageError


def resolve(options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` with every named credential looked up; UsageError names a credential that is missing."""
    resolved: dict[str, Any] = {}
    for field, value in options.items():
        if isinstance(value, str) and value.startswith("profile:"):
            resolved["profile"] = value.removeprefix("profile:")
        else:
            resolved[field] = looked_up(f"storage_options.{field}", value)
    return resolved


def looked_up(field: str, value: Any) -> Any:
    """The value of a field, with the credential that it names looked up; UsageError if that is missing."""
    if isinstance(value, Mapping):
        return {key: looked_up(f"{field}.{key}", inner) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    kind, _, name = value.partition(":")
    if kind == "env":
        if name not in os.environ:
            raise UsageError(
                f"{field} names the environment variable {name}, which is not set.",
                remedy=f"Set {name}, or name another credential (env:NAME or profile:NAME).",
            )
        return os.environ[name]
    if kind == "block":
        raise UsageError(
            f"{field} names the Prefect block {name}, which cannot be read outside a flow.",
            remedy="Name the credential as env:NAME or profile:NAME.",
        )
    return value
