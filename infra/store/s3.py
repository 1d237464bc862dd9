"""A store under an S3 prefix: conditional PUTs through s3fs, whole reads only.

Every conditional write carries a nonce in the object's metadata. If the answer is lost, or a retry below us meets the
object that the first try wrote, the nonce shows whether the stored object is ours. A write that decides is read back
in any case: a server that checks a condition and writes in two steps confirms both of two writers.

A spec's `storage_options` name credentials: `env:NAME` is read from the environment, `profile:NAME` is a profile of the
AWS configuration files. The resolved values are never written anywhere. They are sent to S3, or to an address for which
this machine's user approved them.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from blake3 import blake3

from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError, UsageError
from infra.files import CHUNK_BYTES, Readable
from infra.processes.this_process import COUNTERS
from infra.settings import check_approved, known_stores
from infra.store.backend import (
    MAX_READ_BYTES,
    READERS,
    Leftover,
    NotImplementedThere,
    Overtaken,
    Stale,
    Stored,
    hash_and_copy,
    send_whole,
)

_KINDS = ("env:", "profile:", "block:")
# Options that decide who gets the requests, and who may read them on their way.
_ROUTES = frozenset({"endpoint_url", "use_ssl", "verify", "proxies", "proxies_config"})
_AWS = "https://s3.amazonaws.com"
# Of all that is below amazonaws.com, S3's own hosts alone: anybody can have a server there (`execute-api`).
_S3_HOST = re.compile(
    r"s3(?:-fips|-accelerate)?(?:\.dualstack)?(?:[.-][a-z]{2}(?:-[a-z]+)+-\d+)?\.amazonaws\.com(?:\.cn)?"
)
# Options with which AWS's libraries sign. What another names, such as `user_agent`, is in the logs of a bucket's owner.
_SIGNING = re.compile(
    r"storage_options\.(?:key|secret|token|username|password"
    r"|client_kwargs\.aws_(?:access_key_id|secret_access_key|session_token))"
)
NOT_IMPLEMENTED = 501
_SEND_AGAIN = (408, 409, 429)
# Classes of requests as price lists of S3 have them: the first two cost as PUT does, all others as GET.
_LIKE_PUT = ("Put", "Copy", "Post", "List", "Upload", "Create", "Complete")
_FREE = ("Delete", "Abort")
_TRIES = 4
_CONFLICT_TRIES = 8
_LONGEST_TRY_S = 600
_SLOWEST_BYTES_PER_S = 2**18
_ANSWER_UNKNOWN = (404, 412, None)


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

    def create_from(self, path: str, chunks: Iterable[memoryview], scratch: Path) -> tuple[int, str]:
        """Store the chunks once."""
        return send_whole(self, path, chunks, scratch)

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


class Body:
    """s3fs' asynchronous body, read as a plain stream."""

    def __init__(self, filesystem: Any, body: Any) -> None:
        self._filesystem = filesystem
        self._body = body

    def read(self, size: int = CHUNK_BYTES) -> bytes:
        """The next `size` bytes, or fewer at the end; all that are left if `size` is negative."""
        from fsspec.asyn import sync

        return sync(self._filesystem.loop, self._body.read, *(() if size < 0 else (size,)))

    def close(self) -> None:
        """Give the connection back."""
        from fsspec.asyn import sync

        sync(self._filesystem.loop, self._body.aclose)


def connect(options: Mapping[str, Any], translated: contextlib.AbstractContextManager[None], **settings: Any) -> Any:
    """The file system for these options and for our own `settings`; sends no request to the server yet.

    UsageError for options that are not allowed in `storage_options`. `translated` turns other failures into our errors.
    """
    import s3fs
    from botocore.handlers import add_expect_header

    given = resolve(options)
    config = {
        "connect_timeout": 10,
        "read_timeout": 30,  # as long as a lease waits; one stall of botocore's 60 s would outlast it
        "retries": {"mode": "standard", "max_attempts": 3},
        "max_pool_connections": READERS,  # of botocore's 10, further threads would wait for one
        **given.pop("config_kwargs", {}),
    }
    try:
        with translated:
            filesystem = s3fs.S3FileSystem(**given, config_kwargs=config, **settings)
            filesystem.connect()
            # No timeout applies while it waits for "100 Continue": a server that stalls would block us for ever.
            filesystem.s3.meta.events.unregister("before-call.s3", add_expect_header)
    except (TypeError, KeyError, ValueError) as error:
        raise UsageError(
            f"storage_options cannot be used: {error}.",
            remedy="Correct them; an endpoint_url begins with http:// or https://.",
        ) from error
    # s3fs adds retries around botocore's own; 5 times 3 tries would delay a lease's beat for minutes.
    filesystem.retries = 2
    return filesystem


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
        COUNTERS.put(int(next(filter(None, sizes), 0)))
    else:
        COUNTERS.get()


def _answered(parsed: Mapping[str, Any], **_: Any) -> None:
    COUNTERS.received(parsed.get("ContentLength", 0))


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


def resolve(options: Mapping[str, object]) -> dict[str, Any]:
    """`options` with every named credential looked up.

    UsageError names a credential that is missing, or that may not be sent to the address in `options`.
    """
    if "session_vars" in options:
        raise UsageError(
            "storage_options.session_vars would let AWS's libraries read other variables and files.",
            remedy="Leave it out; name credentials as env:NAME or profile:NAME.",
        )
    fields, address = credentials_sent(options)
    check_approved(fields, address, _remembered() if fields else {})
    resolved: dict[str, object] = {}
    for field, value in options.items():
        if isinstance(value, str) and value.startswith("profile:"):
            resolved["profile"] = value.removeprefix("profile:")
        else:
            resolved[field] = looked_up(f"storage_options.{field}", value)
    return resolved


def credentials_sent(options: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """The field of each credential that needs an approval, and the address that options send them to.

    S3 gets AWS's own credentials (`AWS_*` to sign with, and profiles) without one. Any other address needs one also for
    the credentials that AWS's libraries use where none is named: `profile:default`.
    """
    leaves = dict(_leaves("storage_options", options))
    fields: dict[str, str] = {}
    for field, value in leaves.items():
        if isinstance(value, str) and value.startswith(_KINDS):
            fields.setdefault(value, field)
    if profile := options.get("profile"):
        fields[f"profile:{profile}"] = "storage_options.profile"
    routes = [
        (field, value)
        for field, value in leaves.items()
        if not _ROUTES.isdisjoint(field.split(".")) and value not in (None, True)
    ]
    endpoint = next((str(value) for field, value in routes if field.endswith(".endpoint_url")), _AWS).rstrip("/")
    more = [
        f"{field.removeprefix('storage_options.')}={value}"
        for field, value in routes
        if str(value).rstrip("/") != endpoint
    ]
    if not more and _is_s3(endpoint):
        shown = {value for field, value in leaves.items() if isinstance(value, str) and not _SIGNING.fullmatch(field)}
        own = {name for name in fields if name.startswith("profile:")}
        own |= {name for name in fields if name.startswith("env:AWS_")} - shown
        return {name: field for name, field in fields.items() if name not in own}, endpoint
    has_profile = any(name.startswith("profile:") for name in fields)
    if not has_profile and not any(options.get(name) for name in ("anon", "key", "username")):
        fields["profile:default"] = "storage_options"
    return fields, " ".join([endpoint, *more])


def database_password(address: str) -> dict[str, str]:
    """The field of the password that a database of pointers is sent, by the password; {} if it gets none."""
    if not address.startswith("postgresql"):
        return {}
    import sqlalchemy  # the reader of the address that connects: another could find its password elsewhere

    password = sqlalchemy.make_url(address).password
    if not password and "PGPASSWORD" in os.environ:
        password = "env:PGPASSWORD"  # libpq sends it
    return {str(password): "store.pointers"} if password else {}


def check_database(address: str) -> None:
    """UsageError unless the password that a database of pointers is sent was approved for it."""
    fields = database_password(address)
    check_approved(fields, address, _remembered() if fields else {})


def looked_up(field: str, value: Any) -> Any:
    """The value of a field, with the credential that it names looked up; UsageError if that is missing."""
    if isinstance(value, Mapping):
        return {key: looked_up(f"{field}.{key}", inner) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    kind, _, name = value.partition(":")
    if kind == "env":
        if name not in os.environ:
            raise UsageError(
                f"{field} names the environment variable {name}, which is not set.",
                remedy=f"Set {name}, or name another credential (env:NAME or profile:NAME).",
            )
        return os.environ[name]
    if kind == "block":
        raise UsageError(
            f"{field} names the Prefect block {name}, which cannot be read outside a flow.",
            remedy="Name the credential as env:NAME or profile:NAME.",
        )
    return value


def _leaves(field: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{field}.{key}", inner)
    else:
        yield field, value


def _is_s3(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        return parts.scheme == "https" and _S3_HOST.fullmatch(parts.hostname or "") is not None
    except ValueError:
        return False


def _remembered() -> dict[str, list[str]]:
    """What the stores that were used from this machine were sent: earlier versions kept no other list."""
    approvals: dict[str, list[str]] = defaultdict(list)
    for entry in known_stores():
        fields, address = credentials_sent(entry["storage_options"])
        approvals[address] += fields
        if database := entry.get("pointers"):
            approvals[database] += database_password(database)
    return approvals
