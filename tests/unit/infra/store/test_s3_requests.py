"""Requests to S3: each is counted in the class that price lists have for it, and the bytes that it moves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from botocore.hooks import HierarchicalEmitter

from data_contracts.costs import Resources
from infra.processes.this_process import Counters
from infra.store import s3
from infra.store.s3 import count_requests

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
