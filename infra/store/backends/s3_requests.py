"""Requests to one prefix of a bucket through s3fs; `infra.store.backends.s3` decides which ones a store needs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from infra.files.digests import PIECE_BYTES
from infra.processes.resources import PROCESS
from infra.store.backends.credentials import credentials_sent
from infra.store.backends.s3_connect import connect
from infra.store.backends.s3_errors import translate

# Classes of requests as price lists of S3 have them: the first two cost as PUT does, all others as GET.
_LIKE_PUT = ("Put", "Copy", "Post", "List", "Upload", "Create", "Complete")
_FREE = ("Delete", "Abort")


class S3Requests:
    """A prefix of a bucket; paths are relative to it.

    Attributes:
        uri: `s3://bucket/prefix`.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, Any]) -> None:
        self.bucket, _, prefix = uri.removeprefix("s3://").strip("/").partition("/")
        self.prefix = f"{prefix}/" if prefix else ""
        self.uri = f"s3://{self.bucket}/{prefix}".rstrip("/")
        self._options = storage_options
        self._owner_pid = 0
        self._filesystem: Any = None

    @property
    def _fs(self) -> Any:
        if self._owner_pid != os.getpid():  # s3fs' event loop does not survive a fork
            self._filesystem = connect(self._options, self._translated(""))
            count_requests(self._filesystem.s3.meta.events)
            self._owner_pid = os.getpid()
        return self._filesystem

    @property
    def server(self) -> str:
        """Who decides the conditional writes: the endpoint, and the bucket there."""
        return f"{credentials_sent(self._options)[1]} {self.bucket}"

    def _full(self, path: str) -> str:
        return f"{self.bucket}/{self.prefix}{path}"

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        return self._fs.call_s3(method, Bucket=self.bucket, Key=f"{self.prefix}{path}", **arguments)

    def _head(self, path: str) -> Any:
        return self._call("head_object", path)

    def _translated(self, path: str) -> contextlib.AbstractContextManager[None]:
        return translate(f"{path} in the store {self.uri}" if path else f"The store {self.uri}", self.bucket)

    def _keys(self, folder: str, starting: str, **arguments: Any) -> Iterator[str]:
        for page in self._pages(folder, starting, **arguments):
            for entry in page.get("Contents", []):
                yield entry["Key"].removeprefix(self.prefix)
            for entry in page.get("CommonPrefixes", []):
                yield entry["Prefix"].removeprefix(self.prefix)

    def _pages(self, folder: str, starting: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        token: dict[str, str] = {}
        while True:
            with self._translated(folder):
                page = self._fs.call_s3(
                    "list_objects_v2", Bucket=self.bucket, Prefix=f"{self.prefix}{starting}", **arguments, **token
                )
            yield page
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}


def count_requests(events: Any) -> None:
    """Count every request that a client of botocore sends, also repeated ones, and the bytes of the bodies."""
    # File systems with equal options share a client, which must count once.
    events.register("before-send.s3", _sent, unique_id="trainwright-sent")
    events.register("after-call.s3.GetObject", _answered, unique_id="trainwright-answered")


def _sent(request: Any, event_name: str, **_: Any) -> None:
    operation = event_name.rpartition(".")[2]
    if operation.startswith(_FREE):
        return
    if operation.startswith(_LIKE_PUT):
        # The body's own length, where the request wraps it in chunks with a checksum.
        sizes = (request.headers.get(name) for name in ("X-Amz-Decoded-Content-Length", "Content-Length"))
        PROCESS.put(int(next(filter(None, sizes), 0)))
    else:
        PROCESS.get()


def _answered(parsed: Mapping[str, Any], **_: Any) -> None:
    PROCESS.received(parsed.get("ContentLength", 0))


class Body:
    """s3fs' asynchronous body, read as a plain stream."""

    def __init__(self, filesystem: Any, body: Any) -> None:
        self._filesystem = filesystem
        self._body = body

    def read(self, size: int = PIECE_BYTES) -> bytes:
        """The next `size` bytes, or fewer at the end; all that are left if `size` is negative."""
        from fsspec.asyn import sync

        return sync(self._filesystem.loop, self._body.read, *(() if size < 0 else (size,)))

    def close(self) -> None:
        """Give the connection back."""
        from fsspec.asyn import sync

        sync(self._filesystem.loop, self._body.aclose)
