"""Which files a path, a folder or a glob names, however odd the names are; and what is said if there are none."""

from __future__ import annotations

import os
import unicodedata
from typing import Any

import pytest

from data_contracts.errors import UsageError
from infra.sources.resolve import local_files
from tests.support.files import write_files
from tests.unit.infra.sources.conftest import Bucket, Raw

BESIDE = [
    "t/_SUCCESS", "t/_metadata", "t/_common_metadata", "t/k=1/.p.parquet.crc", "t/.hidden.parquet",
    "t/_temporary/0/task_1/p.parquet", "t/k=1/_started_17", "t/_backup/old.parquet", "t/.git/x.parquet",
]  # fmt: skip
DATA = ["t/k=1/p.parquet", "t/k=2/q.parquet", "t/k=2/r.parquet"]


class Place:
    """Files below a folder, or the same in a bucket on a server, and what a source names there."""

    def __init__(self, raw: Raw, bucket: Bucket | None = None) -> None:
        self.raw, self.bucket = raw, bucket
        self.start = f"s3://{bucket.name}/" if bucket else ""

    def write(self, name: str, data: bytes = b"a\n1\n") -> None:
        (self.bucket or self.raw).write(name, data)

    def source(self, uri: str, **more: Any) -> dict[str, Any]:
        return self.bucket.source(uri, **more) if self.bucket else {"uri": uri, **more}

    def names(self, uri: str) -> list[str]:
        found = [file.uri for file in self.raw.resolve(self.source(uri))]
        return [one.removeprefix(self.start) if self.start else os.path.relpath(one, self.raw.root) for one in found]


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.sweep)])
def place(request: pytest.FixtureRequest, raw: Raw) -> Place:
    return Place(raw, None if request.param == "folder" else request.getfixturevalue("bucket"))


def test_a_bucket_is_looked_through_as_a_folder_is(raw: Raw, bucket: Bucket) -> None:
    there = Place(raw, bucket)
    for name in [*DATA, *BESIDE[:3], BESIDE[4], ODD[0], "delta/p.parquet", "delta/_delta_log/0.json"]:
        there.write(name)
    assert there.names("t") == DATA
    assert raw.read(bucket.source(unicodedata.normalize("NFD", ODD[0]))).column("a").to_pylist() == [1]
    for uri, sentence in (
        ("Umsatz [v2]/*.csv", r"\[v2\] is a pattern for one character: write s3://.*/Umsatz \[\[\]v2\]/\*.csv"),
        ("delta/*.parquet", r"s3://.*/delta is a Delta table"),
    ):
        with pytest.raises(UsageError, match=sentence):
            there.names(uri)


@pytest.mark.parametrize("uri", ["t", "t/", "t/**/*.parquet", "t/k=*/*"])
def test_a_folder_is_its_data(uri: str, place: Place) -> None:
    for name in [*DATA, *(BESIDE if "**" not in uri else BESIDE[:-3])]:
        place.write(name)
    assert place.names(uri) == DATA


def test_a_folder_of_images_is_rows_by_their_path_in_it(place: Place) -> None:
    place.write("i/cats/1.png")
    for uri in ("i", "i/"):
        [file] = place.raw.resolve(place.source(uri, format="files"))
        assert file.columns == {"path": "cats/1.png"}


def test_files_of_a_source_that_is_a_folder_are_data_and_not_code(raw: Raw) -> None:
    write_files(raw.root, dict.fromkeys(("d/a.csv", "d/b/c.csv"), "a\n1\n"))
    assert [str(path.relative_to(raw.root)) for path in local_files(["d"], raw.root)] == ["d/a.csv", "d/b/c.csv"]


ODD = [
    "Umsatz [v2]/März + April #1.csv", "a b+c%20d.csv", "what?.csv", "star*.csv", "back\\slash.csv", "quote'\".csv",
    "{x}.csv", "k%3Dv/100%.csv", "a&b;c,d!~@$^().csv", "emoji 🎉.csv", "-rf.csv",
]  # fmt: skip


def test_a_path_that_exists_is_that_file(place: Place) -> None:
    for at, name in enumerate([*ODD, "Umsatz v/x.csv", "whatX.csv", "starX.csv"]):
        place.write(name, b"a\n%d\n" % at)
    for at, name in enumerate(ODD):
        assert place.names(name) == [name]
        assert place.raw.read(place.source(name)).column("a").to_pylist() == [at]
    assert sorted(place.names("**/*.csv")) == sorted([*ODD, "Umsatz v/x.csv", "whatX.csv", "starX.csv"])
    assert place.names("Umsatz [[]v2]/*.csv") == [ODD[0]]
    assert place.names("Umsatz [v2]") == [ODD[0]]


@pytest.mark.parametrize("typed", ["NFC", "NFD"])
@pytest.mark.parametrize("stored", ["NFC", "NFD", "mixed"])
def test_a_name_is_found_in_either_form_of_its_characters(stored: str, typed: str, place: Place) -> None:
    folder, file = ("NFC", "NFD") if stored == "mixed" else (stored, stored)
    name = f"{unicodedata.normalize(folder, 'Käufe')}/{unicodedata.normalize(file, 'März.csv')}"
    place.write(name)
    for pattern in ("Käufe/März.csv", "Käufe/Mä*.csv", "**/März.csv", "Käufe"):
        assert place.names(unicodedata.normalize(typed, pattern)) == [name]


def test_two_files_whose_names_look_the_same_are_two(place: Place) -> None:
    names = sorted(f"d/{unicodedata.normalize(form, 'März.csv')}" for form in ("NFC", "NFD"))
    for name in names:
        place.write(name)
    assert [place.names(name) for name in names] == [[names[0]], [names[1]]]
    assert place.names("d/*.csv") == place.names("d/M*.csv") == place.names("d") == names
    assert place.names("d/Mä*.csv") == names


NEAREST = {
    "brackets": ("Umsatz [v2]/*.csv", r"\[v2\] is a pattern for one character: write {0}Umsatz \[\[\]v2\]/\*\.csv\."),
    "deeper": ("data/*.CSV.gz", r"; {0}data/\*\*/\*\.CSV\.gz does, such as {0}data/2026/a\.CSV\.gz\."),
    "case of the ending": ("data/2026/*.csv.gz", r"; the nearest name is {0}data/2026/a\.CSV\.gz\."),
    "case of the name": ("Data/Orders.csv", r"; the nearest name is {0}data/orders\.csv\."),
    "misspelt": ("data/oders.csv", r"; the nearest name is {0}data/orders\.csv\."),
    "folder misspelt": ("dta/orders.csv", r"; the nearest name is {0}data/orders\.csv\."),
    "two stars in a name": ("data/**.parquet", r"from [^;]*\)\. Correct"),
    "nothing in a range": ("data/[z-a].csv", r"; the nearest name is {0}data/orders\.csv\."),
    "nothing near": ("zzzzzzzzzz", r"from [^;]*\)\. Correct"),
    "nothing in a folder": ("d", r"from [^;]*\)\. Correct"),
}


@pytest.mark.parametrize("case", NEAREST)
def test_what_matches_nothing_names_what_is_near(case: str, place: Place) -> None:
    for name in ("Umsatz [v2]/a.csv", "data/2026/a.CSV.gz", "data/orders.csv", "d/_SUCCESS"):
        place.write(name)
    uri, sentence = NEAREST[case]
    words = r"data\.source\.0\.uri: no file matches .*" + sentence.replace("{0}", place.start)
    with pytest.raises(UsageError, match=words):
        place.names(uri)


def test_a_glob_with_many_stars_that_matches_nothing_is_refused_at_once(raw: Raw) -> None:
    for number in range(20):  # a search that goes back would take years
        raw.write(f"{'a_' * 60}{number}", "a\n1\n")
    with pytest.raises(UsageError, match="no file matches"):
        raw.resolve(f"{'*_' * 20}z")


TABLES = {
    "Delta": (["_delta_log/00000000000000000000.json"], "d=1/p.parquet"),
    "Delta without partitions": (["_delta_log/00000000000000000000.json"], "p.parquet"),
    "Iceberg": (["metadata/v1.metadata.json"], "data/d=1/p.parquet"),
    "Hudi": ([".hoodie/hoodie.properties"], "d=1/p.parquet"),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_whose_files_hold_deleted_rows_is_refused(case: str, place: Place) -> None:
    beside, data = TABLES[case]
    for name in [*beside, data]:
        place.write(f"t/{name}")
    for uri in ("t", "t/**/*.parquet", f"t/{data}"):
        with pytest.raises(UsageError, match=rf"data\.source\.0\.uri: .*/t is an? {case.split()[0]} table,"):
            place.names(uri)


def test_a_file_of_two_sources_is_read_twice_and_an_empty_one_is_refused(raw: Raw) -> None:
    raw.write("d/a.csv", "a\n1\n")
    assert raw.read("d", "d/a.csv").column("a").to_pylist() == [1, 1]
    raw.write("d/b.csv", "")
    with pytest.raises(UsageError, match=r"data\.source\.0\.uri: .*d/b\.csv is empty\."):
        raw.resolve("d")
