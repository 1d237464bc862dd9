"""Requests to S3: each is counted in the class that price lists have for it, and the bytes that it moves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from botocore.hooks import HierarchicalEmitter
from fsspec.asyn import get_loop

from data_contracts.costs import Resources
from infra.files import CHUNK_BYTES
from infra.processes.this_process import Counters
from infra.store import s3
from infra.store.s3 import Body, S3Requests, count_requests

LIKE_PUT = (
    "PutObject",
    "CopyObject",
    "ListObjectsV2",
    "UploadPart",
    "CreateMultipartUpload",
    "CompleteMultipartUpload",
)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counters:
    """The counters of a process that has sent nothing yet."""
    counters = Counters()
    monkeypatch.setattr(s3, "COUNTERS", counters)
    return counters


def send(operation: str, **headers: str) -> None:
    """What botocore tells of a request, to a client that two file systems share."""
    events = HierarchicalEmitter()
    count_requests(events)
    count_requests(events)
    events.emit(f"before-send.s3.{operation}", request=SimpleNamespace(headers=headers))
    events.emit(f"after-call.s3.{operation}", parsed={"ContentLength": 7} if operation == "GetObject" else {})


@pytest.mark.parametrize("operation", LIKE_PUT)
def test_what_costs_as_a_put_does(operation: str, counted: Counters) -> None:
    send(operation, **{"Content-Length": "30"})
    assert counted.total() == Resources(put_requests=1, get_requests=0, written_bytes=30, read_bytes=0)


@pytest.mark.parametrize(("operation", "read"), [("GetObject", 7), ("HeadObject", 0)])
def test_what_costs_as_a_get_does(operation: str, read: int, counted: Counters) -> None:
    send(operation)
    assert counted.total() == Resources(put_requests=0, get_requests=1, written_bytes=0, read_bytes=read)


@pytest.mark.parametrize("operation", ["DeleteObject", "AbortMultipartUpload"])
def test_what_is_free(operation: str, counted: Counters) -> None:
    send(operation)
    assert counted.total() == Resources()


def test_the_bytes_are_the_bodys_own_without_chunks_and_checksums(counted: Counters) -> None:
    send("PutObject", **{"X-Amz-Decoded-Content-Length": "20", "Content-Length": "30"})
    send("PutObject")
    assert (counted.total().put_requests, counted.total().written_bytes) == (2, 20)


def test_an_answer_without_a_length_has_no_bytes(counted: Counters) -> None:
    events = HierarchicalEmitter()
    count_requests(events)
    events.emit("after-call.s3.GetObject", parsed={})
    assert counted.total() == Resources()


def test_a_whole_body_is_read_without_a_size_which_compares_its_checksum() -> None:
    asked: list[tuple[int, ...]] = []

    class Answer:
        async def read(self, *size: int) -> bytes:
            asked.append(size)
            return b"x"

    body = Body(SimpleNamespace(loop=get_loop()), Answer())
    assert [body.read(-1), body.read(0), body.read(5), body.read()] == [b"x"] * 4
    assert asked == [(), (0,), (5,), (CHUNK_BYTES,)]


@pytest.mark.parametrize(
    ("address", "bucket", "prefix", "uri"),
    [
        ("s3://b", "b", "", "s3://b"),
        ("s3://b/", "b", "", "s3://b"),
        ("s3://b/p", "b", "p/", "s3://b/p"),
        ("s3://b/p/q/", "b", "p/q/", "s3://b/p/q"),
    ],
)
def test_an_address_is_a_bucket_and_a_prefix(address: str, bucket: str, prefix: str, uri: str) -> None:
    place = S3Requests(address, {})
    assert (place.bucket, place.prefix, place.uri) == (bucket, prefix, uri)
