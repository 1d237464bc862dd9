"""Which files a source's path, folder or glob names, and what it may have meant if it names none."""

from __future__ import annotations

import contextlib
import difflib
import glob
import itertools
import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from data_contracts.errors import TrainwrightError, UsageError
from infra.sources.places import Place, SourceEntry, fixed_folders, has_wildcards, one_star

# Names that Spark, Hive, Databricks and table formats write beside data, also where a glob matches them.
_MARKER = re.compile(
    r"(^|/)((_SUCCESS|_metadata|_common_metadata|_(started|committed)_\d+|[^/]*\.crc)$|_(temporary|delta_log)/)"
)
_DOT = re.compile(r"(^|/)\.")
_MARKER_OR_HIDDEN = re.compile(f"{_MARKER.pattern}|{_DOT.pattern}")
_HIDDEN = re.compile(r"(^|/)(\.|_[^/=]*(/|$))")
# How many folders of a source are looked at for the files of a table format; each costs requests to a bucket.
_MOST_FOLDERS = 16
_FOLDER_OF_VALUES = re.compile(r"(/[^/=]+=[^/]*)*/[^/]*$")
# The folder that a table format keeps in a table's folder, or, as Iceberg does, beside the folder of its data.
_TABLES = {"_delta_log": ("Delta", ".json"), "metadata": ("Iceberg", ".metadata.json"), ".hoodie": ("Hudi", "")}


def find_files(place: Place, uri: str) -> tuple[list[SourceEntry], bool]:
    """The files that a path, folder or glob names, by name, without those that are not data; and if it is a folder.

    A file that exists under exactly this name is meant by it. Umlauts and accents are found in both of Unicode's forms.
    """
    found: dict[str, SourceEntry] = {}
    for form in dict.fromkeys([uri, *(unicodedata.normalize(form, uri) for form in ("NFC", "NFD"))]):
        folder = place.folder(form)
        if folder is not None:
            entries = place.find(f"{glob.escape(form.rstrip('/'))}/**")
            return [one for one in entries if not _HIDDEN.search(one.uri.removeprefix(folder).lstrip("/"))], True
        matched = place.find(form)
        found |= {one.uri: one for one in (_data(place, form, matched) if has_wildcards(form) else matched)}
        if found and not has_wildcards(uri):
            break
    if not found and not uri.isascii():
        for name in _matching(_same_form(uri), _names_near(place, uri)):
            found |= {one.uri: one for one in place.find(name)}
    return sorted(found.values(), key=lambda one: one.uri), False


def _data(place: Place, pattern: str, files: list[SourceEntry]) -> list[SourceEntry]:
    """The files that a glob matches, without those that mark something, and hidden ones unless the glob says so."""
    fixed = fixed_folders(pattern)
    start = fixed if "://" in fixed else place.folder(fixed) or ""
    below = [file.uri.removeprefix(start).lstrip("/") for file in files]
    beside = _MARKER if _DOT.search(pattern.removeprefix(fixed)) else _MARKER_OR_HIDDEN
    return [file for file, name in zip(files, below, strict=True) if not beside.search(name)]


def suggestion(place: Place, uri: str) -> str:
    """A clause that says what a path or glob that matches nothing may have meant; "" if nothing is near."""
    names = _names_near(place, uri)
    literal = re.sub(r"\[", "[[]", uri)
    if "[" in uri and _matching(literal, names):
        [brackets, *_] = re.findall(r"\[[^]]*\]?", uri)
        return f"; {brackets} is a pattern for one character: write {literal}"
    above, _, last = uri.rpartition("/")
    deeper = f"{above}/**/{last}".lstrip("/")
    if "**" not in uri and _matching(deeper, names):
        return f"; {deeper} does, such as {_matching(deeper, names)[0]}"
    lowered = {name.lower(): name for name in names}
    near = [lowered[name] for name in _matching(_same_form(uri).lower(), list(lowered))]
    bucket = "/".join(uri.split("/")[:3]) + "/" if "://" in uri else ""  # every name begins with it
    short = [name.removeprefix(bucket) for name in names]
    near = near or [bucket + name for name in difflib.get_close_matches(uri.removeprefix(bucket), short, 1)]
    return f"; the nearest name is {near[0]}" if near else ""


def refuse_tables(place: Place, files: Iterable[SourceEntry], root: Path, here: str) -> None:
    """UsageError for files of a table format: rows that were deleted or replaced are still in some of them."""
    folders = dict.fromkeys(_FOLDER_OF_VALUES.sub("", one.uri) for one in files if one.uri.endswith(".parquet"))
    for folder in list(folders)[:_MOST_FOLDERS]:
        repository = getattr(place, "repository", None)
        written = folder if repository is None else os.path.relpath(repository / folder, root)
        for table in (written, written.rpartition("/")[0]):
            for folder_name, (kind, ending) in _TABLES.items() if table.strip("/") not in ("", "s3:") else ():
                if any(name.endswith(ending) for name in place.names(f"{table}/{folder_name}")):
                    raise UsageError(
                        f"{here}.uri: {table} is a {kind} table, and some of its Parquet files may hold rows that were"
                        " deleted or replaced.",
                        remedy="Write the table's rows as of one version to a folder of Parquet files, and name that.",
                    )


def _names_near(place: Place, uri: str) -> list[str]:
    """Names of files below the folder that a path or glob begins with, or below the nearest one above that exists."""
    folder = fixed_folders(uri)
    with contextlib.suppress(TrainwrightError):  # whoever may read a file may not always list others
        while not (names := place.names(folder)) and folder.strip("/") and not re.fullmatch("s3://[^/]*", folder):
            folder = folder.rpartition("/")[0]
        return names
    return []


def _matching(pattern: str, names: list[str]) -> list[str]:
    """The names that a glob matches, in whichever form their characters are."""
    import pyarrow as pa  # takes a while, and most sources match something
    import pyarrow.compute as pc
    from fsspec.utils import glob_translate

    # By RE2, because Python would try every way of sharing a name out among many stars.
    wanted = rf"\A{glob_translate(one_star(pattern)).removesuffix('Z')}z"
    texts = pa.array(map(_same_form, names), pa.string())
    with contextlib.suppress(pa.ArrowInvalid):  # nothing is in [z-a]
        return list(itertools.compress(names, pc.match_substring_regex(texts, wanted).to_pylist()))
    return []


def _same_form(text: str) -> str:
    return unicodedata.normalize("NFC", text)
