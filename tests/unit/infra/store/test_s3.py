"""A store on S3 beside others in its bucket: what was left there, the server's time, and files from chunks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from data_contracts.errors import CorruptError, StorageUnavailable
from infra.store import Store, open_store
from infra.store import s3 as of_s3
from infra.store.backend import Leftover, Stale
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


def test_the_time_is_the_servers_and_leaves_nothing(s3_store: Store) -> None:
    assert abs(s3_store.now_s() - time.time()) < 600
    assert (s3_store.leftovers(), s3_store.list("")) == ([], ["store.json"])


def test_a_file_from_pieces_is_sent_whole_and_leaves_nothing_here(s3_store: Store, tmp_path: Path) -> None:
    writer = s3_store.writer("datasets/k-0")

    def chunks() -> Iterator[memoryview]:
        assert len(list(tmp_path.iterdir())) == 1, "they are joined in the folder that was named"
        yield from (memoryview(b"one"), memoryview(b"two"))

    entry = writer.put_chunks("data", chunks(), tmp_path)
    assert (s3_store.read("datasets/k-0/data"), entry.bytes) == (b"onetwo", 6)
    assert s3_store.verify(writer.seal("dataset", {}, {})).files == [entry]
    assert list(tmp_path.iterdir()) == []


def test_uploads_are_listed_to_the_last_page() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    asked: list[dict[str, str]] = []

    def call(method: str, **given: Any) -> dict[str, Any]:
        if method != "list_multipart_uploads":
            return {}
        asked.append({name: value for name, value in given.items() if name.endswith("Marker")})
        page = {"Uploads": [{"Key": f"p/x{len(asked)}", "Initiated": began, "UploadId": f"u{len(asked)}"}]}
        more = {
            "IsTruncated": len(asked) < 3,
            "NextKeyMarker": f"k{len(asked)}",
            "NextUploadIdMarker": f"m{len(asked)}",
        }
        return {**page, **more}

    found = place(call).leftovers()
    assert found == [Leftover(f"x{number}", 0, began.timestamp(), f"u{number}") for number in (1, 2, 3)]
    assert asked == [{}, *({"KeyMarker": f"k{number}", "UploadIdMarker": f"m{number}"} for number in (1, 2))]


def test_objects_are_listed_to_the_last_page_without_the_stores_own() -> None:
    written = datetime(2026, 1, 1, tzinfo=UTC)
    pages = {
        None: (["p/x/b", "p/.probe/1"], "2"),
        "2": ([], "3"),
        "3": (["p/x/a", "p/"], None),
    }

    def call(method: str, **given: Any) -> dict[str, Any]:
        keys, following = pages[given.get("ContinuationToken")]
        entries = [{"Key": key, "Size": 3, "LastModified": written} for key in keys]
        return {
            **({"Contents": entries} if entries else {}),
            **({"IsTruncated": True, "NextContinuationToken": following} if following else {}),
        }

    assert [(one.path, one.bytes, one.written_s) for one in place(call).stored("")] == [
        ("x/a", 3, written.timestamp()), ("x/b", 3, written.timestamp()),
    ]  # fmt: skip


def test_a_write_beside_another_one_waits_twice_as_long_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(of_s3.time, "sleep", slept.append)
    monkeypatch.setattr(of_s3.random, "uniform", lambda low, high: low + high)

    def put(nonce: str) -> str:
        raise refused(409)

    with pytest.raises(StorageUnavailable):
        place(lambda *_, **__: None)._conditional("x", put, Stale("x"))
    assert slept == pytest.approx([0.05 * 2**turn for turn in range(1, 8)])


@pytest.mark.parametrize(("status", "tries"), [(503, 4), (400, 1)])
def test_what_does_not_answer_is_read_four_times(status: int, tries: int) -> None:
    asked: list[str] = []

    def call(method: str, **given: Any) -> dict[str, Any]:
        asked.append(given["Key"])
        raise refused(status)

    with pytest.raises(Exception, match="x in the store s3://b/p"):
        place(call).read("x")
    assert asked == ["p/x"] * tries


def test_what_is_too_large_to_be_read_is_not_read() -> None:
    with pytest.raises(CorruptError, match="x is too large to be read as a whole"):
        place(lambda method, **given: {"ContentLength": 2**28 + 1}).read("x")


def test_a_large_upload_has_more_time() -> None:
    assert (of_s3._longest_s(0), of_s3._longest_s(2**28)) == (600, 600 + 2**10)


def test_no_file_of_it_is_on_this_machine(s3_store: Store) -> None:
    assert (s3_store.is_local, s3_store._backend.local("datasets/x-0")) == (False, None)


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


def test_another_failure_of_the_end_of_an_upload_says_nothing_of_the_condition() -> None:
    def call(method: str, **given: Any) -> dict[str, Any]:
        if method == "complete_multipart_upload":
            raise refused(503)
        return {"UploadId": "u", "ETag": "e"}

    with pytest.raises(StorageUnavailable, match="x in the store s3://b/p does not answer"):
        place(call).creates_large_once("x")


def test_uploads_that_cannot_be_listed_are_a_failure_of_the_store() -> None:
    def call(method: str, **given: Any) -> dict[str, Any]:
        if method == "list_multipart_uploads":
            raise refused(503)
        return {}

    with pytest.raises(StorageUnavailable, match="^The store s3://b/p does not answer"):
        place(call).leftovers()
