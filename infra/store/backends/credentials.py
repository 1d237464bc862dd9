"""Replace the credentials that a spec's `storage_options` name by the values that s3fs needs.

`env:NAME` is read from the environment, `profile:NAME` is a profile of the AWS configuration files. The resolved values
are never written anywhere. They are sent to S3, or to an address for which this machine's user approved them.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from data_contracts.errors import UsageError
from infra.machine.approved_credentials import check_approved
from infra.machine.settings import known_stores

_KINDS = ("env:", "profile:", "block:")
# Options that decide who gets the requests, and who may read them on their way.
_ROUTES = frozenset({"endpoint_url", "use_ssl", "verify", "proxies", "proxies_config"})
_AWS = "https://s3.amazonaws.com"
# Of all that is below amazonaws.com, S3's own hosts alone: anybody can have a server there (`execute-api`).
_S3_HOST = re.compile(
    r"s3(?:-fips|-accelerate)?(?:\.dualstack)?(?:[.-][a-z]{2}(?:-[a-z]+)+-\d+)?\.amazonaws\.com(?:\.cn)?"
)
# Options with which AWS's libraries sign. What another names, such as `user_agent`, is in the logs of a bucket's owner.
_SIGNING = re.compile(
    r"storage_options\.(?:key|secret|token|username|password"
    r"|client_kwargs\.aws_(?:access_key_id|secret_access_key|session_token))"
)


def resolve(options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` with every named credential looked up.

    UsageError names a credential that is missing, or that may not be sent to the address in `options`.
    """
    if "session_vars" in options:
        raise UsageError(
            "storage_options.session_vars would let AWS's libraries read other variables and files.",
            remedy="Leave it out; name credentials as env:NAME or profile:NAME.",
        )
    fields, address = credentials_sent(options)
    check_approved(fields, address, _remembered() if fields else {})
    resolved: dict[str, Any] = {}
    for field, value in options.items():
        if isinstance(value, str) and value.startswith("profile:"):
            resolved["profile"] = value.removeprefix("profile:")
        else:
            resolved[field] = looked_up(f"storage_options.{field}", value)
    return resolved


def credentials_sent(options: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """The field of each credential that needs an approval, and the address that options send them to.

    S3 gets AWS's own credentials (`AWS_*` to sign with, and profiles) without one. Any other address needs one also for
    the credentials that AWS's libraries use where none is named: `profile:default`.
    """
    leaves = dict(_leaves("storage_options", options))
    fields: dict[str, str] = {}
    for field, value in leaves.items():
        if isinstance(value, str) and value.startswith(_KINDS):
            fields.setdefault(value, field)
    if profile := options.get("profile"):
        fields[f"profile:{profile}"] = "storage_options.profile"
    routes = [
        (field, value)
        for field, value in leaves.items()
        if not _ROUTES.isdisjoint(field.split(".")) and value not in (None, True)
    ]
    endpoint = next((str(value) for field, value in routes if field.endswith(".endpoint_url")), _AWS).rstrip("/")
    more = [
        f"{field.removeprefix('storage_options.')}={value}"
        for field, value in routes
        if str(value).rstrip("/") != endpoint
    ]
    if not more and _is_s3(endpoint):
        shown = {value for field, value in leaves.items() if isinstance(value, str) and not _SIGNING.fullmatch(field)}
        own = {name for name in fields if name.startswith("profile:")}
        own |= {name for name in fields if name.startswith("env:AWS_")} - shown
        return {name: field for name, field in fields.items() if name not in own}, endpoint
    has_profile = any(name.startswith("profile:") for name in fields)
    if not has_profile and not any(options.get(name) for name in ("anon", "key", "username")):
        fields["profile:default"] = "storage_options"
    return fields, " ".join([endpoint, *more])


def database_password(address: str) -> dict[str, str]:
    """The field of the password that a database of pointers is sent, by the password; {} if it gets none."""
    if not address.startswith("postgresql"):
        return {}
    import sqlalchemy  # the reader of the address that connects: another could find its password elsewhere

    password = sqlalchemy.make_url(address).password
    if not password and "PGPASSWORD" in os.environ:
        password = "env:PGPASSWORD"  # libpq sends it
    return {str(password): "store.pointers"} if password else {}


def check_database(address: str) -> None:
    """UsageError unless the password that a database of pointers is sent was approved for it."""
    fields = database_password(address)
    check_approved(fields, address, _remembered() if fields else {})


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


def _leaves(field: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{field}.{key}", inner)
    else:
        yield field, value


def _is_s3(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        return parts.scheme == "https" and _S3_HOST.fullmatch(parts.hostname or "") is not None
    except ValueError:
        return False


def _remembered() -> dict[str, list[str]]:
    """What the stores that were used from this machine were sent: earlier versions kept no other list."""
    approvals: dict[str, list[str]] = defaultdict(list)
    for entry in known_stores():
        fields, address = credentials_sent(entry["storage_options"])
        approvals[address] += fields
        if database := entry.get("pointers"):
            approvals[database] += database_password(database)
    return approvals
