"""A store under an S3 prefix: conditional PUTs through s3fs, whole reads only.

Every conditional write carries a nonce in the object's metadata. If the answer is lost, or a retry below us meets the
object that the first try wrote, the nonce shows whether the stored object is ours. A write that decides is read back
in any case: a server that checks a condition and writes in two steps confirms both of two writers.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from blake3 import blake3

from data_contracts.errors import CorruptError
from infra.files.digests import Readable
from infra.store.backends.backend import MAX_READ_BYTES, Leftover, Overtaken, Stale, Stored, hash_and_copy, send_whole
from infra.store.backends.s3_errors import NOT_IMPLEMENTED, is_gone_upload, is_transient, status_of
from infra.store.backends.s3_requests import Body, S3Requests

_TRIES = 4
_CONFLICT_TRIES = 8
_LONGEST_TRY_S = 600
_SLOWEST_BYTES_PER_S = 2**18
_ANSWER_UNKNOWN = (404, 412, None)


class S3Backend(S3Requests):
    """A prefix of a bucket on a server that honours conditional writes (see `Backend` for the methods)."""

    is_local = False

    def create(self, path: str, data: bytes) -> str:
        """Store `data` once, by If-None-Match."""

        def put(nonce: str) -> str:
            about = {"mode": "create", "timeout": _longest_s(len(data)), "Metadata": _about(nonce, data)}
            answer = self._fs.pipe_file(self._full(path), data, **about)
            return (answer or self._head(path))["ETag"]  # a multipart upload gives no answer

        return self._conditional(path, put, FileExistsError(path))

    def create_file(self, path: str, source: Path, *, private: bool = False) -> None:
        """Store a file's bytes once, by If-None-Match on the PUT or on the end of the multipart upload."""

        def put(nonce: str) -> str:
            about = {"mode": "create", "timeout": _longest_s(source.stat().st_size), "Metadata": {"nonce": nonce}}
            self._fs.put_file(str(source), self._full(path), **about)
            return ""

        self._conditional(path, put, FileExistsError(path), decides=False)

    def create_from(self, path: str, pieces: Iterable[memoryview], scratch: Path) -> tuple[int, str]:
        """Store the pieces once."""
        return send_whole(self, path, pieces, scratch)

    def read(self, path: str) -> tuple[bytes, str]:
        """All bytes; the tag is the ETag."""

        def whole(body: Readable) -> tuple[bytes, str]:
            data = body.read(-1)
            return data, blake3(data).hexdigest()

        return self._get(path, whole, MAX_READ_BYTES)

    def replace(self, path: str, data: bytes, tag: str) -> str:
        """Overwrite by If-Match."""

        def put(nonce: str) -> str:
            # One PUT, never a multipart upload, which drops the condition and overwrites.
            return self._call("put_object", path, Body=data, IfMatch=tag, Metadata=_about(nonce, data))["ETag"]

        return self._conditional(path, put, Stale(path))

    def digest(self, path: str, copy: Path | None = None, most: float = math.inf) -> tuple[int, str]:
        """Size and BLAKE3 of one whole GET."""

        def whole(body: Readable) -> tuple[tuple[int, str], str]:
            found = hash_and_copy(body, copy, most)
            return found, found[1]

        return self._get(path, whole)[0]

    def exists(self, path: str) -> bool:
        """Whether an object is there."""
        try:
            with self._translated(path):
                self._head(path)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str, starting: str = "") -> list[str]:
        """Sorted names without those that begin with a dot."""
        base = f"{folder}/" if folder else ""
        keys = self._keys(folder, f"{base}{starting}", Delimiter="/")
        found = {key.removeprefix(base).rstrip("/") for key in keys}
        return sorted(name for name in found if name and not name.startswith("."))

    def walk(self, folder: str, *, links: bool = False) -> list[str]:
        """Sorted paths of all objects; S3 has no links."""
        # Consoles represent a folder by a key that ends in '/'; it holds nothing.
        names = [name for name in self._keys(folder, f"{folder}/") if not name.endswith("/")]
        return sorted(name.removeprefix(f"{folder}/") for name in names)

    def delete(self, path: str) -> None:
        """Remove an object."""
        with self._translated(path):
            self._call("delete_object", path)

    def stored(self, folder: str) -> list[Stored]:
        """All objects below `folder`, sorted."""
        pages = self._pages(folder, f"{folder}/" if folder else "")
        found = [self._stored(entry) for page in pages for entry in page.get("Contents", [])]
        return sorted((one for one in found if one.path[:1] not in ("", ".")), key=lambda one: one.path)

    def leftovers(self) -> list[Leftover]:
        """Unfinished multipart uploads, and what a probe left."""
        found = [self._stored(entry) for page in self._pages("", ".probe/") for entry in page.get("Contents", [])]
        left = [Leftover(one.path, one.bytes, one.written_s) for one in found]
        marker: dict[str, str] = {}
        while True:
            with self._translated(""):
                page = self._fs.call_s3("list_multipart_uploads", Bucket=self.bucket, Prefix=self.prefix, **marker)
            for entry in page.get("Uploads", []):
                path = entry["Key"].removeprefix(self.prefix)
                left.append(Leftover(path, 0, entry["Initiated"].timestamp(), entry["UploadId"]))
            if not page.get("IsTruncated"):
                return left
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def now_s(self) -> float:
        """The time with which the server dates an object written now."""
        path = f".probe/{uuid.uuid4().hex}"
        with self._translated(path):
            self._call("put_object", path, Body=b"?")
            try:
                return self._head(path)["LastModified"].timestamp()
            finally:
                self._call("delete_object", path)

    def drop(self, leftover: Leftover) -> None:
        """Abort an upload, or remove an object."""
        with self._translated(leftover.path), contextlib.suppress(FileNotFoundError):
            if leftover.upload_id:
                self._call("abort_multipart_upload", leftover.path, UploadId=leftover.upload_id)
            else:
                self._call("delete_object", leftover.path)

    def local(self, uri: str) -> Path | None:
        """None: no object is on this machine."""
        return None

    def creates_large_once(self, path: str) -> bool:
        """Whether the end of a multipart upload honours If-None-Match."""
        with self._translated(path):
            upload = {"UploadId": self._call("create_multipart_upload", path)["UploadId"]}
            part = self._call("upload_part", path, PartNumber=1, Body=b"large", **upload)
            parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
            try:
                self._call("complete_multipart_upload", path, MultipartUpload=parts, IfNoneMatch="*", **upload)
            except OSError as error:
                if status_of(error) != 412:
                    raise
                self._call("abort_multipart_upload", path, **upload)
                return True
        return False

    def _conditional(self, path: str, put: Callable[[str], str], lost: Exception, *, decides: bool = True) -> str:
        nonce = uuid.uuid4().hex
        tag = self._put(path, put, lost, nonce)
        with self._translated(path), contextlib.suppress(FileNotFoundError):
            if decides and self._head(path)["Metadata"].get("nonce") != nonce:
                raise Overtaken(path)
        return tag

    def _put(self, path: str, put: Callable[[str], str], lost: Exception, nonce: str) -> str:
        for tries_left in reversed(range(_CONFLICT_TRIES)):
            with self._translated(path):
                try:
                    return put(nonce)
                except Exception as error:
                    status = status_of(error)
                    # Another conditional write is under way: S3 asks for a retry. Or s3fs gave an upload up, because a
                    # part was not answered in time, and the upload is gone.
                    if tries_left and (status == 409 or is_gone_upload(error)):
                        time.sleep(random.uniform(0, 0.05) * 2 ** (_CONFLICT_TRIES - tries_left))
                        continue
                    if status not in _ANSWER_UNKNOWN and (status < 500 or status == NOT_IMPLEMENTED):
                        raise
                    landed = self._landed(path, nonce)
                    if landed:
                        return landed
                    if status == 412 or (status == 404 and isinstance(lost, Stale)):
                        raise lost from error
                    raise
        raise AssertionError("unreachable")

    def _landed(self, path: str, nonce: str) -> str:
        try:
            head = self._head(path)
        except FileNotFoundError:
            return ""
        return head["ETag"] if head["Metadata"].get("nonce") == nonce else ""

    def _stored(self, entry: dict[str, Any]) -> Stored:
        return Stored(entry["Key"].removeprefix(self.prefix), entry["Size"], entry["LastModified"].timestamp())

    def _get(
        self, path: str, consume: Callable[[Readable], tuple[Any, str]], most: float = math.inf
    ) -> tuple[Any, str]:
        from botocore.exceptions import FlexibleChecksumError

        for tries_left in reversed(range(_TRIES)):
            with self._translated(path):
                try:
                    # A whole GET: s3fs' open() reads ranges, where a flipped bit goes unnoticed.
                    answer = self._call("get_object", path)
                    if answer["ContentLength"] > most:
                        raise CorruptError(f"{path} is too large to be read as a whole.", details={"file": path})
                    with contextlib.closing(Body(self._fs, answer["Body"])) as body:
                        value, found = consume(body)
                    if answer["Metadata"].get("blake3") not in (None, found):
                        raise _Changed
                    return value, answer["ETag"]
                except (FlexibleChecksumError, _Changed) as error:
                    if not tries_left:
                        raise CorruptError(
                            f"{path} in the store {self.uri} does not match the checksum that is kept with it.",
                            details={"file": path},
                        ) from error
                except Exception as error:
                    if not tries_left or not is_transient(error):
                        raise
        raise AssertionError("unreachable")


class _Changed(Exception):
    """The bytes that were read are not the bytes that were written."""


def _about(nonce: str, data: bytes) -> dict[str, str]:
    """Metadata of a small object: not every server keeps a checksum."""
    return {"blake3": blake3(data).hexdigest(), "nonce": nonce}


def _longest_s(num_bytes: int) -> float:
    """Longest time for an upload: the layers below apply no timeout while a server does not accept our data."""
    return _LONGEST_TRY_S + num_bytes / _SLOWEST_BYTES_PER_S
