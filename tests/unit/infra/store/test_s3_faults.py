"""S3 when answers are lost, refused or wrong: what landed is known, and what is raised says what to do."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import StorageUnavailable, UsageError
from infra.store import Store, open_store
from infra.store.s3 import S3Backend, is_transient, translate
from tests.support.approved import approve_here
from tests.support.s3 import S3Server


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries at once."""
    monkeypatch.setattr("infra.store.s3.time.sleep", lambda seconds: None)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0)


def test_a_lost_answer_to_a_create_that_did_not_land(s3: S3Server, s3_store: Store) -> None:
    s3_store.create("x/y", b"1")
    s3.fault("lose", method="PUT", match="x/y")
    with pytest.raises(FileExistsError):
        s3_store.create("x/y", b"1")  # the very same bytes, but not ours


def test_an_upload_that_was_given_up_is_made_again(
    s3: S3Server, s3_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part is not answered, so s3fs aborts the upload; the first abort arrives, and the second finds nothing."""
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize=None: 5 * 2**20)
    (tmp_path / "large").write_bytes(os.urandom(11 * 2**20))
    s3.fault("refuse", method="PUT", match="partNumber=1", status=403, code="AccessDenied")
    s3.fault("lose", method="DELETE", match="uploadId=")
    s3_store.writer("datasets/k-0").put("large", tmp_path / "large")
    assert s3_store.read("datasets/k-0/large") == (tmp_path / "large").read_bytes()


def test_the_endpoint_is_away(s3: S3Server) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    options = s3.options | {"endpoint_url": url}
    approve_here(url)
    words = r"^store\.json in the store s3://bucket/prefix does not answer.* Check that it is reachable"
    with pytest.raises(StorageUnavailable, match=words):
        open_store("s3://bucket/prefix", options)
    away = Store(S3Backend("s3://bucket/prefix", options), options)
    for use in (
        lambda: away.create("x", b""),
        lambda: away.exists("x"),
        lambda: away.list("x"),
        lambda: away.pointer("x").read(),
        lambda: away.manifest("x"),
        lambda: away._backend.delete("x"),
    ):
        with pytest.raises(StorageUnavailable):
            use()


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"])
def test_without_permission(s3: S3Server, s3_store: Store, code: str) -> None:
    s3.fault("refuse", status=403, code=code, times=1000)
    words = (
        "may not be used with these credentials.* Check the credentials that storage_options names and what they per"
    )
    for use in (
        lambda: open_store(s3_store.uri, s3.options),
        lambda: s3_store.create("x", b""),
        lambda: s3_store.exists("x"),
        lambda: s3_store.list("x"),
    ):
        with pytest.raises(UsageError, match=words) as raised:
            use()
        assert "a-secret-key" not in str(raised.value)
    s3.clear()


# Case: the bucket (none: one of the server's), options that are changed or left out (None), and the sentence.
UNUSABLE: dict[str, tuple[str, dict[str, Any], str]] = {
    "no such bucket": (
        "no-such-bucket", {}, r"^The bucket no-such-bucket does not exist\. Make it, or name another store\.$",
    ),
    "no credentials": ("", {"key": None, "secret": None}, "Unable to locate credentials"),
    "no such profile": (
        "", {"key": "profile:absent", "secret": None}, r"The config profile \(absent\) could not be found",
    ),
    "an address without its scheme": (
        "", {"endpoint_url": "localhost:9000"}, "^storage_options cannot be used: .*localhost:9000.* http://",
    ),
    "an unknown option": ("", {"no_such": 1}, "^storage_options cannot be used: .*no_such"),
}  # fmt: skip


@pytest.mark.parametrize(("bucket", "changes", "sentence"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_store_that_cannot_be_used_is_refused_with_its_reason(
    bucket: str, changes: dict[str, Any], sentence: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    approve_here(s3.url, "profile:default", "profile:absent")
    approve_here("localhost:9000")
    options = {name: value for name, value in {**s3.options, **changes}.items() if value is not None}
    with pytest.raises(UsageError, match=sentence):
        open_store(f"s3://{bucket or s3.bucket()}/x", options)


def test_what_a_server_does_not_know_is_not_asked_again(s3: S3Server, s3_store: Store) -> None:
    s3.fault("refuse", method="PUT", match="/x", status=501, code="NotImplemented", times=2)
    with pytest.raises(UsageError, match="x in the store .*: the server does not implement what was asked"):
        s3_store.create("x", b"1")
    assert [fault["times"] for fault in s3.clear()] == [1]


def test_another_refusal_is_told_as_it_is(s3: S3Server, s3_store: Store) -> None:
    for method, code in (("PUT", "InvalidRequest"), ("POST", "InvalidPart")):
        s3.fault("refuse", method=method, match="/.probe/", status=400, code=code)
        with pytest.raises(UsageError, match=r"\.probe/\w+ in the store .* cannot be used \(.*as asked\)"):
            open_store(f"{s3_store.uri}/new", s3.options)


def test_a_bug_is_not_taken_for_a_fault_of_the_store() -> None:
    with pytest.raises(KeyError), translate("x", "bucket"):
        raise KeyError("bug")
    assert not is_transient(KeyError("bug"))
