"""A store on S3 beside others in its bucket: what was left there, the server's time, and files from chunks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.store import Store, open_store
from infra.store.s3 import S3Backend
from tests.support.s3 import S3Server


def place(call: Callable[..., Any]) -> S3Backend:
    """A place whose requests `call` answers, with no server."""
    found = S3Backend("s3://b/p", {})
    found._owner_pid, found._filesystem = os.getpid(), SimpleNamespace(call_s3=call)
    return found


def refused(status: int) -> OSError:
    """An answer with this status, as s3fs raises it."""
    error = OSError("refused")
    error.__cause__ = ClientError({"ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")
    return error


def test_leftovers_are_those_of_this_store(s3: S3Server) -> None:
    bucket = s3.bucket()
    mine, other = (open_store(f"s3://{bucket}/{prefix}", s3.options) for prefix in ("mine", "other"))
    for store in (mine, other):
        store._backend._call("create_multipart_upload", "datasets/x-0/part")
    mine._backend._call("put_object", ".probe/left", Body=b"123")
    left = mine.leftovers()
    assert [(one.path, one.bytes, bool(one.upload_id)) for one in left] == [
        (".probe/left", 3, False), ("datasets/x-0/part", 0, True),
    ]  # fmt: skip
    assert abs(left[0].written_s - time.time()) < 600
    for one in left:
        mine.drop(one)
    assert mine.leftovers() == []
    assert [one.path for one in other.leftovers()] == ["datasets/x-0/part"]


def test_a_file_from_pieces_is_sent_whole_and_leaves_nothing_here(s3_store: Store, tmp_path: Path) -> None:
    writer = s3_store.writer("datasets/k-0")

    def chunks() -> Iterator[memoryview]:
        assert len(list(tmp_path.iterdir())) == 1, "they are joined in the folder that was named"
        yield from (memoryview(b"one"), memoryview(b"two"))

    entry = writer.put_chunks("data", chunks(), tmp_path)
    assert (s3_store.read("datasets/k-0/data"), entry.bytes) == (b"onetwo", 6)
    assert s3_store.verify(writer.seal("dataset", {}, {})).files == [entry]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("status", "once"), [(None, False), (412, True)])
def test_whether_the_end_of_an_upload_honours_the_condition(status: int | None, once: bool) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def call(method: str, Bucket: str, Key: str, **given: Any) -> dict[str, Any]:
        asked.append((method, given))
        if method == "complete_multipart_upload" and status is not None:
            raise refused(status)
        return {"UploadId": "u", "ETag": "e"}

    assert place(call).creates_large_once("x") is once
    parts = {"Parts": [{"PartNumber": 1, "ETag": "e"}]}
    assert asked == [
        ("create_multipart_upload", {}),
        ("upload_part", {"PartNumber": 1, "Body": b"large", "UploadId": "u"}),
        ("complete_multipart_upload", {"MultipartUpload": parts, "IfNoneMatch": "*", "UploadId": "u"}),
        *([("abort_multipart_upload", {"UploadId": "u"})] if once else []),
    ]
