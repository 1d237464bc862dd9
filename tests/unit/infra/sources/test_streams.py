"""Compressed files: damage is told as damage, and a full disk as a full disk."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from data_contracts.errors import CorruptError, StorageUnavailable, UsageError
from data_contracts.pipeline_spec import SourceSpec
from infra import scratch
from infra.sources import places
from infra.sources.read import file_facts
from tests.support.files import write_files
from tests.unit.infra.sources.conftest import Raw, parquet, zstd


@pytest.mark.parametrize(
    ("ending", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress), ("zst", zstd)]
)
def test_whatever_byte_is_damaged_it_is_told_or_does_not_matter(
    ending: str, compress: Callable[[bytes], bytes], raw: Raw
) -> None:
    """A decompressor has many ways to fail; none of them may look like a bug of ours."""
    plain = b"a,b\n" + b"".join(b"%d,%d\n" % (n * n, n) for n in range(20))
    whole = compress(plain)
    raw.write("whole.csv", plain)
    rows = raw.read("whole.csv")
    told = 0
    for place in range(0, len(whole), 3):
        raw.write(f"{place}.csv.{ending}", whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            # A zstd frame carries no checksum unless asked to: what it says is what was resolved.
            assert raw.read(f"{place}.csv.{ending}") == rows or ending == "zst"
        except UsageError as error:
            told += error.message.startswith(f"{raw.root}/{place}.csv.{ending} is not a whole .{ending} file (")
    assert told > len(whole) // 6


def test_a_full_disk_while_a_copy_is_made_is_told_as_that(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(raw.root, {"a.parquet": parquet({"a": [0]}), "a.parquet.gz": gzip.compress(parquet({"a": [0]}))})
    full = open("/dev/full", "w+b", buffering=0)  # noqa: SIM115 - closed by its reader
    monkeypatch.setattr(scratch.tempfile, "TemporaryFile", lambda **more: full)
    assert raw.read("a.parquet").num_rows == 1, "a local file is read where it lies"
    with pytest.raises(UsageError, match=r"^The folder .* on this machine cannot be used \(No space left on device\)"):
        raw.read("a.parquet.gz")


def test_a_small_compressed_file_does_not_fill_the_disk(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_FREE_BYTES", 1 << 24)
    written: list[int] = []
    monkeypatch.setattr(places, "writing", lambda file, folder: lambda piece: written.append(file.write(piece)))
    raw.write("a.parquet.gz", gzip.compress(bytes(1 << 26)))
    with pytest.raises(UsageError, match=r"a\.parquet\.gz is more than 100 times as large when it is decompressed"):
        raw.read("a.parquet.gz")
    assert sum(written) < 1 << 25


def test_a_disk_that_fails_is_no_damage(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Mock(read=Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    raw.write("a.csv.gz", gzip.compress(b"a\n1\n"))
    files = raw.resolve("a.csv.gz")
    monkeypatch.setattr(places.Folder, "open", lambda self, uri: failing)
    with pytest.raises(StorageUnavailable, match=r"a\.csv\.gz cannot be read now \(Input/output error\)"):
        raw.read("a.csv.gz", files=files)


@pytest.mark.parametrize("other_bytes", [True, False])
@pytest.mark.parametrize("begun", [False, True])
def test_a_parquet_file_whose_ctime_alone_is_new_is_hashed_again(other_bytes: bool, begun: bool, raw: Raw) -> None:
    """As after `rsync --inplace --times`, which leaves size, mtime and inode; or after a chmod."""
    path = raw.write("a.parquet", parquet({"a": range(100)}, use_dictionary=False, compression="none"))
    source, files = SourceSpec.model_validate("a.parquet"), raw.resolve("a.parquet")
    stamp = file_facts(files[0], [source], raw.root).stamp
    assert stamp is not None
    batches = raw.batches("a.parquet", files=files, stamp=stamp, batch_rows=10)
    if begun:
        next(batches)
    if not other_bytes:
        path.chmod(0o600)
        assert sum(batch.num_rows for batch in batches) == 100 - 10 * begun
        return
    before, data = path.stat(), path.read_bytes()
    with path.open("r+b") as file:
        file.write(data.replace((7).to_bytes(8, "little"), (8).to_bytes(8, "little")))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CorruptError, match="changed after this run resolved it"):
        list(batches)
