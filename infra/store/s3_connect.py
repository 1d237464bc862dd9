"""An s3fs file system from `storage_options`: credentials looked up, few tries, mistakes found at once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from data_contracts.errors import UsageError
from infra.store.credentials import resolve


def connect(options: Mapping[str, Any], translated: AbstractContextManager[None], **settings: Any) -> Any:
    """The file system of these options, and of `settings` that are ours; nothing is asked of the server yet.

    UsageError for what `storage_options` must not say. `translated` turns other failures into our errors.
    """
    import s3fs
    from botocore.handlers import add_expect_header

    given = resolve(options)
    config = {
        "connect_timeout": 10,
        "read_timeout": 30,  # as long as a lease waits: in botocore's 60 s a beat would be overtaken by one stall
        "retries": {"mode": "standard", "max_attempts": 3},
        **given.pop("config_kwargs", {}),
    }
    try:
        with translated:
            filesystem = s3fs.S3FileSystem(**given, config_kwargs=config, **settings)
            filesystem.connect()
            # While it waits for "100 Continue" no timeout holds: a server that stalls would stop us for good.
            filesystem.s3.meta.events.unregister("before-call.s3", add_expect_header)
    except (TypeError, KeyError, ValueError) as error:
        raise UsageError(
            f"storage_options cannot be used: {error}.",
            remedy="Correct them; an endpoint_url begins with http:// or https://.",
        ) from error
    # s3fs tries again around botocore's own tries; 5 times 3 would hold a lease's beat for minutes.
    filesystem.retries = 2
    return filesystem
