"""Raw files on an S3 server: the same rows as from a folder, and what a server that fails means."""

from __future__ import annotations

import gzip
import socket
from unittest.mock import Mock

import pytest
from blake3 import blake3

from data_contracts.errors import CorruptError, StorageUnavailable, UsageError
from infra.sources import resolve
from tests.support.approved import approve_here
from tests.support.fault_proxy import Fault, FaultProxy
from tests.unit.infra.sources.conftest import Bucket, Raw, parquet

PARQUET = parquet({"a": [3, 4]})
FILES = {"d/1.csv": b"a\n1\n2\n", "d/2.parquet": PARQUET, "d/3.jsonl.gz": gzip.compress(b'{"a": 5}\n')}


def test_a_bucket_reads_as_a_folder_does(bucket: Bucket, raw: Raw) -> None:
    for name, data in FILES.items():
        bucket.write(name, data)
        raw.write(name, data)
    bucket.files.touch(f"{bucket.name}/d/")  # what consoles show a folder by
    there, here = raw.resolve(bucket.source("d/*")), raw.resolve("d/*")
    assert [file.uri for file in there] == [f"s3://{bucket.name}/{name}" for name in FILES]
    facts = ("bytes", "blake3", "format", "columns", "source")
    assert [[getattr(file, fact) for fact in facts] for file in there] == [
        [getattr(file, fact) for fact in facts] for file in here
    ]
    assert raw.read(bucket.source("d/*")).column("a").to_pylist() == [1, 2, 3, 4, 5]
    assert raw.read(bucket.source("d/1.csv")).equals(raw.read("d/1.csv"))
    assert raw.read(bucket.source("**/2.parquet"), columns=["a"]).num_rows == 2
    # The index that pandas hides is seen there, too.
    bucket.write("d/hidden.parquet", parquet({"a": [1, 2], "__index_level_0__": [0, 7]}))
    assert [file.hidden_index for file in raw.resolve(bucket.source("d/*.parquet"))] == [False, True]
    assert raw.read(bucket.source("d/hidden.parquet")).column_names == ["a"]


def test_objects_are_rows(bucket: Bucket, raw: Raw) -> None:
    bucket.write("i/cats/1.png", b"meow")
    source = bucket.source("i/**/*.png", format="files", pattern="{label}/{name}.png")
    assert raw.read(source).to_pylist() == [{"path": "cats/1.png", "label": "cats", "name": "1", "bytes": b"meow"}]


def test_an_object_is_hashed_again_only_when_its_etag_changes(
    bucket: Bucket, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = Mock(side_effect=resolve._hash)
    monkeypatch.setattr(resolve, "_hash", hashed)
    for data, times in ((b"a\n1\n", 1), (b"a\n2\n", 2)):
        bucket.write("a.csv", data)
        first = raw.resolve(bucket.source("a.csv"))
        assert raw.resolve(bucket.source("a.csv")) == first
        assert first[0].blake3 == blake3(data).hexdigest()
        assert hashed.call_count == times


@pytest.mark.parametrize(("name", "data"), [("a.csv", b"a\n1\n"), ("a.parquet", PARQUET), ("a.bin", b"x")])
def test_an_object_that_changed_since_is_corrupt(name: str, data: bytes, bucket: Bucket, raw: Raw) -> None:
    source = bucket.source(name, **({"format": "files"} if name == "a.bin" else {}))
    bucket.write(name, data)
    files = raw.resolve(source)
    bucket.write(name, b"a\n2\n")
    with pytest.raises(CorruptError, match=f"{name} changed after this run resolved it"):
        raw.read(source, files=files)


@pytest.mark.parametrize("flips", [8, pytest.param(200, marks=pytest.mark.sweep)])
def test_flipped_bits_in_ranged_reads_are_never_accepted(bucket: Bucket, raw: Raw, flips: int) -> None:
    """What is read in ranges has no checksum of the server's: the digest that was resolved refuses it."""
    rows = 20_000
    bucket.write("ranged.csv", b"a\n" + b"".join(b"%07d\n" % row for row in range(rows)))
    proxy = FaultProxy(bucket.server.url)
    source = bucket.source("ranged.csv")
    source["storage_options"] = {**source["storage_options"], "endpoint_url": proxy.url}
    files = raw.resolve(source)
    for flip in range(flips):
        proxy.clear()
        proxy.faults.append(fault := Fault("flip", "GET", "ranged.csv", at=flip / flips))
        with pytest.raises((CorruptError, UsageError)):
            raw.read(source, files=files)
        assert fault.fired == 1
        assert all("Range" in headers for method, _, headers in proxy.requests if method == "GET")
    proxy.clear()
    assert raw.read(source, files=files).num_rows == rows
    proxy.stop()


BAD = {
    "no object": ("none.csv", {}, UsageError, r"data.source.0.uri: no file matches s3://.*/none.csv"),
    "no match": ("none/*.csv", {}, UsageError, r"data.source.0.uri: no file matches"),
    "empty": ("empty.csv", {}, UsageError, r"data.source.0.uri: s3://.*empty.csv is empty"),
    "no credential": (
        "a.csv", {"key": "env:NO_SUCH_NAME"}, UsageError,
        r"storage_options.key names the environment variable NO_SUCH_NAME, which is not set",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_sentence(case: str, bucket: Bucket, raw: Raw) -> None:
    bucket.write("empty.csv", b"")
    name, options, kind, sentence = BAD[case]
    approve_here(bucket.server.url, "env:NO_SUCH_NAME")
    source = bucket.source(name)
    with pytest.raises(kind, match=sentence):
        raw.resolve({**source, "storage_options": {**source["storage_options"], **options}})


def test_a_server_that_is_not_there_is_unavailable(bucket: Bucket, raw: Raw) -> None:
    bucket.write("a.csv", b"a\n1\n")
    files = raw.resolve(bucket.source("a.csv"))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: every connection is refused
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        approve_here(address)
        source = {**bucket.source("a.csv"), "storage_options": {**bucket.server.options, "endpoint_url": address}}
        for use in (lambda: raw.resolve(source), lambda: raw.read(source, files=files)):
            with pytest.raises(StorageUnavailable, match=r"s3://.* does not answer"):
                use()
