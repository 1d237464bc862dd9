"""Translate S3 failures: not allowed (UsageError), not reachable (StorageUnavailable), or not found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from data_contracts.errors import StorageUnavailable, TrainwrightError, UsageError
from infra.store.backends.backend import NotImplementedThere, Stale

NOT_IMPLEMENTED = 501
_SEND_AGAIN = (408, 409, 429)


def status_of(error: BaseException) -> int | None:
    """HTTP status of the answer in `error`; None if there was no answer."""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    return response["ResponseMetadata"].get("HTTPStatusCode") if isinstance(response, dict) else None


def _code_of(error: BaseException) -> str:
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    return response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""


def is_gone_upload(error: BaseException) -> bool:
    """Whether a multipart upload does not exist any more; s3fs says it as FileNotFoundError, as of an object."""
    return _code_of(error) == "NoSuchUpload"


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed when it is sent again."""
    status = status_of(error)
    if status is not None:
        return (status >= 500 and status != NOT_IMPLEMENTED) or status in _SEND_AGAIN
    from aiohttp import ClientError
    from botocore.exceptions import ConnectionError, HTTPClientError, IncompleteReadError
    from botocore.parsers import ResponseParserError

    return isinstance(
        error, (ConnectionError, HTTPClientError, IncompleteReadError, ResponseParserError, ClientError, OSError)
    )


@contextlib.contextmanager
def translate(where: str, bucket: str) -> Iterator[None]:
    """Raise one of our errors for errors of s3fs, botocore or the network; a missing file stays FileNotFoundError."""
    from aiohttp import ClientError
    from botocore.exceptions import BotoCoreError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except (TrainwrightError, Stale):
        raise
    except (OSError, BotoCoreError, ResponseParserError, ClientError) as error:
        if _code_of(error) == "NoSuchBucket":
            raise UsageError(
                f"The bucket {bucket} does not exist.", remedy="Make it, or name another store."
            ) from error
        status = status_of(error)
        if isinstance(error, FileExistsError) or (isinstance(error, FileNotFoundError) and status in (404, None)):
            raise
        if isinstance(error, PermissionError) or status in (401, 403):
            raise UsageError(
                f"{where} may not be used with these credentials ({error}).",
                remedy="Check the credentials that storage_options names and what they permit.",
            ) from error
        if status == NOT_IMPLEMENTED:
            raise NotImplementedThere(
                f"{where}: the server does not implement what was asked ({error}).",
                remedy="Name a store on a server that does, or a folder.",
            ) from error
        if is_transient(error):
            how = f"{type(error).__name__}: {error}" if status is None else f"HTTP status {status}: {error}"
            raise StorageUnavailable(f"{where} does not answer ({how}).") from error
        raise UsageError(
            f"{where} cannot be used ({error}).", remedy="Check storage_options and the store's address."
        ) from error
