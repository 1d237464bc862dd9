"""Make an s3fs file system from `storage_options`: look up credentials, limit retries, report mistakes at once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from data_contracts.errors import UsageError
from infra.store.backends.credentials import resolve


def connect(options: Mapping[str, Any], translated: AbstractContextManager[None], **settings: Any) -> Any:
    """The file system for these options and for our own `settings`; sends no request to the server yet.

    UsageError for options that are not allowed in `storage_options`. `translated` turns other failures into our errors.
    """
    import s3fs
    from botocore.handlers import add_expect_header

    given = resolve(options)
    config = {
        "connect_timeout": 10,
        "read_timeout": 30,  # as long as a lease waits; one stall of botocore's 60 s would outlast it
        "retries": {"mode": "standard", "max_attempts": 3},
        **given.pop("config_kwargs", {}),
    }
    try:
        with translated:
            filesystem = s3fs.S3FileSystem(**given, config_kwargs=config, **settings)
            filesystem.connect()
            # No timeout applies while it waits for "100 Continue": a server that stalls would block us for ever.
            filesystem.s3.meta.events.unregister("before-call.s3", add_expect_header)
    except (TypeError, KeyError, ValueError) as error:
        raise UsageError(
            f"storage_options cannot be used: {error}.",
            remedy="Correct them; an endpoint_url begins with http:// or https://.",
        ) from error
    # s3fs adds retries around botocore's own; 5 times 3 tries would delay a lease's beat for minutes.
    filesystem.retries = 2
    return filesystem
