"""What a raw file's bytes are now: gone is only what is gone, and each source's place is made once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from data_contracts.errors import StorageUnavailable, UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra.sources import Places, digest_now, places
from tests.support.files import write_files
from tests.support.s3 import S3Server
from tests.unit.infra.sources.conftest import Raw

SOURCE = SourceSpec.model_validate("a.csv")


@pytest.fixture
def file(raw: Raw) -> SourceFile:
    raw.write("d/a.csv", "a\n1\n")
    return raw.resolve("d/a.csv")[0]


def now(file: SourceFile, raw: Raw) -> str | None:
    return digest_now(file, Places([SOURCE], raw.root))


def below_a_file(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("")


GONE: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "replaced by a folder": lambda path: (path.unlink(), path.mkdir()),
    "below a file": below_a_file,
}


@pytest.mark.parametrize("change", GONE)
def test_the_digest_is_that_of_the_bytes_as_they_are_and_what_is_gone_has_none(
    change: str, file: SourceFile, raw: Raw
) -> None:
    assert now(file, raw) == file.blake3
    raw.write("d/a.csv", "a\n2\n")
    assert now(file, raw) == blake3(b"a\n2\n").hexdigest()
    GONE[change](Path(file.uri))
    assert now(file, raw) is None
    # As /proc/self/pagemap, of which there are 256 GiB: a file that says that it is empty is not read.
    assert now(file.model_copy(update={"uri": "/proc/self/status"}), raw) == blake3().hexdigest()


READ = """
import sys
from pathlib import Path
from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra.sources import Places, digest_now
source = SourceSpec.model_validate("a.csv")
for root in (Path(sys.argv[1]) / name for name in ("pipe", "device")):
    file = SourceFile(source=0, uri=str(root / "a.csv"), bytes=1, blake3="", format="csv", rev=None, columns={})
    places = Places([source], root)
    for look in (lambda: places.of(file).find("a.csv"), lambda: digest_now(file, places)):
        try:
            look()
        except UsageError as error:
            print(error)
"""


def test_what_is_not_a_regular_file_is_neither_waited_for_nor_read(tmp_path: Path) -> None:
    for name in ("pipe", "device"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe/a.csv")
    (tmp_path / "device/a.csv").symlink_to("/dev/zero")
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    sentence = " is not a regular file. Name a file, or copy what it gives into one."
    assert done.stdout.splitlines() == [
        f"{tmp_path}/{name}/a.csv{sentence}" for name in ("pipe", "device") for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("error", "kind"), [(PermissionError(13, "Permission denied"), UsageError), (OSError(5, "I/O"), StorageUnavailable)]
)
def test_what_cannot_be_read_is_told(
    error: OSError, kind: type[Exception], file: SourceFile, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(places, "open_plain", refuse)
    with pytest.raises(kind, match=r"a\.csv"):
        now(file, raw)


def test_a_bucket_that_refuses_is_told_and_one_that_lost_the_object_is_not(s3_server: S3Server, raw: Raw) -> None:
    source = SourceSpec.model_validate(
        {"uri": f"s3://{s3_server.bucket()}/a.csv", "storage_options": s3_server.options}
    )
    file = SourceFile(uri=source.uri, bytes=1, blake3="ab" * 32, format="csv", columns={}, source=0, rev=None)
    assert digest_now(file, Places([source], raw.root)) is None
    s3_server.fault("refuse", match="a.csv", status=403, code="AccessDenied", times=9)
    for use in (lambda: digest_now(file, Places([source], raw.root)), lambda: raw.resolve(source.model_dump())):
        with pytest.raises(UsageError, match="may not be used with these credentials"):
            use()
    s3_server.clear()


def test_each_sources_place_is_made_once(file: SourceFile, raw: Raw) -> None:
    sources, other = Places([SOURCE, SOURCE], raw.root), file.model_copy(update={"source": 1})
    assert sources.of(file) is sources.of(file) is not sources.of(other)


def test_a_folder_with_signs_of_a_pattern_in_its_name_is_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = Raw(tmp_path / "run[1]*")
    write_files(raw.root, {name: name for name in ("a.csv", "sub/b.csv", "../c.csv")})
    assert [os.path.relpath(file.uri, raw.root) for file in raw.resolve("**/*.csv", "../*.csv")] == [
        "a.csv", "sub/b.csv", "../c.csv",
    ]  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(raw.resolve("~/*.csv")) == 1
    assert len(raw.resolve(f"{tmp_path}/*.csv")) == 1
