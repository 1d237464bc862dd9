"""What a failure of S3 becomes, by its status, code and class, also where s3fs raises an error of its own for it."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import ClientPayloadError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

from data_contracts.errors import CorruptError, StorageUnavailable, UsageError
from infra.store.backend import NotImplementedThere, Stale
from infra.store.s3 import is_gone_upload, is_transient, status_of, translate


def answered(status: int | None, code: str = "", raised: type[Exception] | None = None) -> Exception:
    """Botocore's error for an answer, or s3fs' own error with that as its cause."""
    metadata = {} if status is None else {"HTTPStatusCode": status}
    error = ClientError({"ResponseMetadata": metadata, "Error": {"Code": code}}, "PutObject")
    if raised is None:
        return error
    wrapping = raised("as s3fs says it")
    wrapping.__cause__ = error
    return wrapping


class WithText(OSError):
    """An error whose `response` is no answer of botocore."""

    response = "text"


NO_ANSWER = (
    OSError("reset"),
    EndpointConnectionError(endpoint_url="http://x"),
    ReadTimeoutError(endpoint_url="http://x"),
    IncompleteReadError(actual_bytes=1, expected_bytes=2),
    ResponseParserError("cut"),
    ClientPayloadError("cut"),
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (answered(503), 503),
        (answered(412, raised=OSError), 412),
        (answered(None), None),
        (OSError("reset"), None),
        (WithText(), None),
    ],
    ids=["botocore", "s3fs", "no-status", "no-answer", "text"],
)
def test_the_status_is_that_of_the_answer(error: Exception, status: int | None) -> None:
    assert status_of(error) == status


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (answered(404, "NoSuchUpload"), True),
        (answered(404, "NoSuchUpload", FileNotFoundError), True),
        (answered(404, "NoSuchKey", FileNotFoundError), False),
        (FileNotFoundError("x"), False),
        (WithText(), False),
        (ClientError({"ResponseMetadata": {"HTTPStatusCode": 404}}, "PutObject"), False),
    ],
    ids=["botocore", "s3fs", "key", "no-answer", "text", "no-code"],
)
def test_an_upload_that_is_gone_is_known_by_its_code(error: Exception, gone: bool) -> None:
    assert is_gone_upload(error) is gone


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_what_may_succeed_later(status: int) -> None:
    assert is_transient(answered(status, raised=OSError))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 412, 499, 501])
def test_what_would_fail_again(status: int) -> None:
    assert not is_transient(answered(status, raised=OSError))


@pytest.mark.parametrize("error", NO_ANSWER, ids=lambda error: type(error).__name__)
def test_without_an_answer_it_may_succeed_later(error: Exception) -> None:
    assert is_transient(error)
    assert not is_transient(ValueError("a bug"))


@pytest.mark.parametrize(
    ("error", "becomes", "words"),
    [
        (answered(404, "NoSuchBucket", FileNotFoundError), UsageError, "The bucket b does not exist."),
        (answered(403, raised=PermissionError), UsageError, "p may not be used with these credentials (as s3fs says"),
        (PermissionError("no key"), UsageError, "p may not be used with these credentials (no key)."),
        (answered(401, raised=OSError), UsageError, "p may not be used with these credentials"),
        (answered(403, raised=OSError), UsageError, "p may not be used with these credentials"),
        (answered(501, raised=OSError), NotImplementedThere, "p: the server does not implement what was asked"),
        (answered(503, raised=OSError), StorageUnavailable, "p does not answer (HTTP status 503: as s3fs"),
        # Not what is missing: s3fs' class alone does not say so.
        (answered(503, raised=FileNotFoundError), StorageUnavailable, "p does not answer (HTTP status 503"),
        (answered(400, raised=OSError), UsageError, "p cannot be used (as s3fs says it)."),
        (NoCredentialsError(), UsageError, "p cannot be used (Unable to locate credentials)."),
        (BotoCoreError(), UsageError, "p cannot be used"),
        *((error, StorageUnavailable, f"p does not answer ({type(error).__name__}: ") for error in NO_ANSWER),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_it_is_told_as_one_of_ours(error: Exception, becomes: type[Any], words: str) -> None:
    with pytest.raises(becomes) as raised, translate("p", "b"):
        raise error
    assert type(raised.value) is becomes
    assert raised.value.message.startswith(words)
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        FileExistsError("x"),
        FileNotFoundError("x"),
        answered(404, "NoSuchKey", FileNotFoundError),
        Stale("x"),
        CorruptError("x"),
        KeyError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_it_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, translate("p", "b"):
        raise error
    assert raised.value is error
