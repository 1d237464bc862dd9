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


CHARGED = [
    *((name, {"Content-Length": "30"}, Resources(put_requests=1, written_bytes=30)) for name in LIKE_PUT),
    ("GetObject", {}, Resources(get_requests=1, read_bytes=7)),
    ("HeadObject", {}, Resources(get_requests=1)),
    ("DeleteObject", {}, Resources()),
    ("AbortMultipartUpload", {}, Resources()),
    # The body's own bytes, without chunks and checksums.
    (
        "PutObject",
        {"X-Amz-Decoded-Content-Length": "20", "Content-Length": "30"},
        Resources(put_requests=1, written_bytes=20),
    ),
    ("PutObject", {}, Resources(put_requests=1)),
]


@pytest.mark.parametrize(("operation", "headers", "expected"), CHARGED)
def test_a_request_is_counted_in_its_class(
    operation: str, headers: dict[str, str], expected: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As botocore announces it to a client that two file systems share."""
    counters, events = Counters(), HierarchicalEmitter()
    monkeypatch.setattr(s3, "COUNTERS", counters)
    for _ in range(2):
        count_requests(events)
    events.emit(f"before-send.s3.{operation}", request=SimpleNamespace(headers=headers))
    events.emit(f"after-call.s3.{operation}", parsed={"ContentLength": 7} if operation == "GetObject" else {})
    assert counters.total() == expected
