"""A store on S3 beside others in its bucket: what was left there, the server's time, and files from chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from infra.store import Store, open_store
from tests.support.s3 import S3Server


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
