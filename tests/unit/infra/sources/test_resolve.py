"""What a run reads is looked up once: which files, what they hold, and one sentence for what is wrong."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from blake3 import blake3

from data_contracts.errors import UsageError
from infra.sources import Window, places, resolve
from tests.support.files import write_files
from tests.unit.infra.sources.conftest import Raw

JANUARY = Window(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC))


def test_files_come_in_the_order_of_the_sources_and_then_of_their_names(raw: Raw) -> None:
    for name in ("b/2.csv", "b/1.csv", "b/sub/0.csv", "a.jsonl.gz", "c.PARQUET", ".hidden.csv", "b/.hidden.csv"):
        raw.write(name, name)
    files = raw.resolve("b/**/*.csv", "a.jsonl.gz", {"uri": str(raw.root / "c.PARQUET")}, "b/1.csv")
    names = [os.path.relpath(file.uri, raw.root) for file in files]
    assert names == ["b/1.csv", "b/2.csv", "b/sub/0.csv", "a.jsonl.gz", "c.PARQUET", "b/1.csv"]
    assert [file.source for file in files] == [0, 0, 0, 1, 2, 3]
    assert [file.format for file in files] == ["csv", "csv", "csv", "jsonl", "parquet", "csv"]
    assert files[0].blake3 == blake3(b"b/1.csv").hexdigest()
    assert files[0].bytes == len("b/1.csv")
    assert all(file.rev is None for file in files)


LINKS = {
    "circle": ("b/**/*.csv", "b/deep/again", "..", "b/deep/again is a link to a folder"),
    "out of the folder": ("b/**", "b/out", "../a", "b/out is a link to a folder"),
    "at the root": ("**/*.csv", "out", "a", "out is a link to a folder"),
    "below a wildcard": ("*/deep/**/*.csv", "b/deep/out", "../../a", "b/deep/out is a link"),
    "named": ("link/**/*.csv", "link", "b", ["link/1.csv", "link/deep/2.csv"]),
    "by a wildcard": ("*/*.csv", "link", "a", ["a/3.csv", "b/1.csv", "link/3.csv"]),
    "hidden": ("b/**/*.csv", "b/.out", "../a", ["b/1.csv", "b/deep/2.csv"]),
    "a file": ("b/**/*.csv", "b/deep/4.csv", "../1.csv", ["b/1.csv", "b/deep/2.csv", "b/deep/4.csv"]),
    "a file by its name": ("4.csv", "4.csv", "a/3.csv", ["4.csv"]),
    "a file by a wildcard": ("b/*.csv", "b/4.csv", "../a/3.csv", ["b/1.csv", "b/4.csv"]),
    "a folder at the end": ("b/*", "b/out", "../a", ["b/1.csv"]),
    "dangling by a wildcard": ("b/*.csv", "b/gone.csv", "gone", ["b/1.csv"]),
    "dangling": ("b/**/*.csv", "b/deep/gone", "../gone", ["b/1.csv", "b/deep/2.csv"]),
}


@pytest.mark.parametrize("name", LINKS)
def test_a_wildcard_of_any_depth_follows_no_link(name: str, raw: Raw) -> None:
    pattern, link, target, expected = LINKS[name]
    write_files(raw.root, {path: path for path in ("a/3.csv", "b/1.csv", "b/deep/2.csv")})
    (raw.root / link).symlink_to(target)
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            raw.resolve(pattern)
    else:
        assert [os.path.relpath(file.uri, raw.root) for file in raw.resolve(pattern)] == expected


BAD: dict[str, tuple[Any, str]] = {
    "missing": ("none.csv", r"data.source.0.uri: no file matches none.csv \(from .*\)"),
    "no match": ("*.parquet", r"data.source.0.uri: no file matches \*.parquet"),
    "empty": ("empty.csv", r"data.source.0.uri: .*empty.csv is empty"),
    "only empty texts": ({"uri": "empty.*", "format": "files"}, r"data.source.0.uri: .*empty.csv is empty"),
    "empty folder": ("folder", r"data.source.0.uri: no file matches folder"),
    "ending": ("a.txt", r"data.source.0.format: the format of .*a.txt is not clear from its name. Set format to csv"),
    "pattern without files": ({"uri": "a.csv", "pattern": "{x}.csv"}, r"data.source.0.pattern has an effect only with"),
    "pattern that fits nothing": (
        {"uri": "a.txt", "format": "files", "pattern": "{x}.png"},
        r"data.source.0.pattern: the path .*a.txt does not end in \{x\}.png",
    ),
    "pattern without columns": (
        {"uri": "a.txt", "format": "files", "pattern": "a.txt"},
        r"pattern: a.txt must name at least one col",
    ),
    "pattern with a column twice": ({"uri": "a.txt", "format": "files", "pattern": "{x}/{x}"}, r"none of them twice"),
    "pattern with our column": (
        {"uri": "a.txt", "format": "files", "pattern": "{path}.txt"},
        r"none that always exists",
    ),
    "placeholder without window": ("{{ start }}.csv", r"data.source.0.uri: .* data.window.path is not set"),
    "rev without repository": ({"uri": "a.csv", "rev": "v1"}, r"rev v1 is given, but .* is not in a DVC repository"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_sentence(case: str, raw: Raw) -> None:
    write_files(raw.root, {"a.csv": "x\n1\n", "a.txt": "text", "empty.csv": ""})
    (raw.root / "folder").mkdir()
    source, sentence = BAD[case]
    with pytest.raises(UsageError, match=sentence):
        raw.resolve(source)


def test_a_window_in_the_path_is_filled_in(raw: Raw) -> None:
    write_files(raw.root, {f"day/{day}/a.csv": "x\n1\n" for day in ("2026-01-01", "2026-02-01")})
    for pattern, day in (("day/{{ start }}/*.csv", "2026-01-01"), ("day/{{end}}/*.csv", "2026-02-01")):
        (file,) = raw.resolve(pattern, window=JANUARY, window_path="%Y-%m-%d")
        assert file.uri.endswith(f"day/{day}/a.csv")


def test_columns_are_taken_from_the_end_of_the_path(raw: Raw) -> None:
    write_files(raw.root, {f"images/{name}": name for name in ("cats/1.png", "cats/old/2.png", "dogs/1.png")})
    files = raw.resolve({"uri": "images/**/*.png", "format": "files", "pattern": "{label}/{name}.png"})
    assert [file.columns for file in files] == [
        {"path": "cats/1.png", "label": "cats", "name": "1"},
        {"path": "cats/old/2.png", "label": "old", "name": "2"},
        {"path": "dogs/1.png", "label": "dogs", "name": "1"},
    ]
    (file,) = raw.resolve({"uri": "images/cats/1.png", "format": "files", "pattern": "{label}/{name}.png"})
    assert file.columns == {"path": "1.png", "label": "cats", "name": "1"}


def test_a_name_is_shared_out_among_many_columns_without_trying_every_way(raw: Raw) -> None:
    raw.write(f"{'-' * 200}.png", "x")
    many = "-".join(f"{{c{at}}}" for at in range(12))
    with pytest.raises(UsageError, match="does not end in"):
        raw.resolve({"uri": "*.png", "format": "files", "pattern": f"{many}.jpg"})
    (file,) = raw.resolve({"uri": "*.png", "format": "files", "pattern": f"{many}.png"})
    assert [len(file.columns[f"c{at}"]) for at in range(12)] == [178, *[1] * 11]


def test_an_empty_text_among_texts_is_a_text(raw: Raw) -> None:
    write_files(raw.root, {"a/__init__.py": "", "a/b.py": "x = 1"})
    assert [file.bytes for file in raw.resolve({"uri": "a/*.py", "format": "files"})] == [0, 5]


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were hashed, in order."""
    names: list[str] = []
    real = resolve._hash

    def count(place: Any, file: Any) -> str:
        names.append(os.path.basename(file.uri))
        return real(place, file)

    monkeypatch.setattr(resolve, "_hash", count)
    return names


def _age(path: Path, by_s: float = 3600) -> None:
    facts = path.stat()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns - int(by_s * 10**9)))


@pytest.fixture
def an_hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat all files as settled, because no test can set a file's ctime back."""
    monkeypatch.setattr(places, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + 3600 * 10**9))


# Other bytes: whether of the same size, in the same file, with the same mtime.
CHANGES = {
    "longer": (False, True, False),
    "same size": (True, True, False),
    "other inode": (True, False, True),
    "in place": (True, True, True),  # what `rsync --inplace --times` does
}


@pytest.mark.usefixtures("an_hour_later")
@pytest.mark.parametrize("change", CHANGES)
def test_only_what_changed_is_hashed_again(change: str, raw: Raw, hashed: list[str]) -> None:
    for name in ("a.csv", "b.csv"):
        _age(raw.write(name, name))
    first = raw.resolve("*.csv")
    assert hashed == ["a.csv", "b.csv"]
    assert raw.resolve("*.csv") == first
    assert hashed == ["a.csv", "b.csv"]
    same_size, same_file, same_mtime = CHANGES[change]
    path = raw.root / "b.csv"
    facts, target = path.stat(), path if same_file else path.with_suffix(".other")
    target.write_bytes(b"w" * (facts.st_size if same_size else 20))
    os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns + (0 if same_mtime else 10**9)))
    target.replace(path)
    after = path.stat()
    assert (after.st_size == facts.st_size, after.st_ino == facts.st_ino) == (same_size, same_file)
    again = raw.resolve("*.csv")
    assert hashed == ["a.csv", "b.csv", "b.csv"]
    assert again[1].blake3 == blake3(path.read_bytes()).hexdigest() != first[1].blake3


@pytest.mark.usefixtures("an_hour_later")
def test_rehash_trusts_nothing(raw: Raw, hashed: list[str]) -> None:
    _age(raw.write("a.csv", "a"))
    raw.resolve("a.csv")
    known = raw.cache / "sources.json"
    known.write_text(known.read_text().replace(blake3(b"a").hexdigest(), "0" * 64))
    assert raw.resolve("a.csv")[0].blake3 == "0" * 64
    assert raw.resolve("a.csv", rehash=True)[0].blake3 == blake3(b"a").hexdigest()
    assert raw.resolve("a.csv")[0].blake3 == blake3(b"a").hexdigest()
    assert hashed == ["a.csv", "a.csv"]


@pytest.mark.parametrize("age_s", [0, 3600])
def test_a_file_written_just_now_is_not_remembered(
    raw: Raw, hashed: list[str], age_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one whose mtime was set back just now."""
    _age(path := raw.write("a.csv", "a"), age_s)
    monkeypatch.setattr(places, "time", SimpleNamespace(time_ns=lambda: path.stat().st_ctime_ns))
    for _ in range(2):
        raw.resolve("a.csv")
    assert hashed == ["a.csv", "a.csv"]


@pytest.mark.usefixtures("an_hour_later")
@pytest.mark.parametrize(
    "memory", ["", "[]", '{"a', '{{":{path}": ["{facts.st_size}:{facts.st_mtime_ns}:{facts.st_ino}", "00"]}}']
)
def test_a_memory_that_is_damaged_or_of_an_earlier_version_is_made_anew(
    memory: str, raw: Raw, hashed: list[str]
) -> None:
    path = raw.write("a.csv", "a")
    raw.write("state/digests/sources.json", memory.format(path=path, facts=path.stat()) if "path" in memory else memory)
    for _ in range(2):
        assert raw.resolve("a.csv")[0].blake3 == blake3(b"a").hexdigest()
    assert hashed == ["a.csv"]
    assert len(json.loads((raw.cache / "sources.json").read_text())) >= 1
