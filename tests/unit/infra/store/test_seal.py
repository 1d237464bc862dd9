"""The manifest: its id, and every way in which it can lie. Its exact bytes are those of tests/golden/manifest-v1."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest

from data_contracts.canonical import canonical, digest
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import FileEntry, Ref
from infra.store.seal import check_file_name, read_manifest, write_manifest

B3 = "0" * 63 + "f"
FILES = [FileEntry(path="b", bytes=2, blake3=B3), FileEntry(path="a/c", bytes=0, blake3=B3)]
URI = "datasets/k-0"
MANIFEST = "datasets/k-0/manifest.json"
CHANGED = "was changed after it was sealed."


def manifest_bytes() -> bytes:
    return write_manifest("dataset", {"seed": 1}, {"actor": "é"}, FILES)[0]


def sealed(value: dict[str, Any]) -> bytes:
    """`value` with a true seal, whatever it says."""
    body = canonical(value)[:-1]
    return body + b',"seal":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def test_its_parents_are_refs_by_area_and_nothing_else_is_accepted() -> None:
    contract, older = (Ref(uri=uri, id=B3, seal=B3) for uri in ("contracts/k-0", "datasets/j-1"))
    made = {"parents": [older.to_json(), contract.to_json()]}
    manifest = read_manifest(URI, write_manifest("dataset", {}, made, FILES)[0])
    assert manifest.parents == [older, contract]
    assert (manifest.parent_in("contracts"), manifest.parent_in("contract")) == (contract, None)
    assert read_manifest(URI, write_manifest("code", {}, {}, FILES)[0]).parents == []
    for damaged in ([{"uri": "datasets/j-1"}], [1], 1):
        damaged_manifest = read_manifest(URI, write_manifest("dataset", {}, {"parents": damaged}, FILES)[0])
        with pytest.raises(CorruptError, match=f"{URI} does not say what it was made from"):
            _ = damaged_manifest.parents


def with_content(**changes: Any) -> bytes:
    content = json.loads(manifest_bytes())["content"] | changes
    content = {key: value for key, value in content.items() if value is not None}
    return sealed({"content": content, "id": digest(content), "provenance": {}})


def test_the_id_is_of_the_content_alone() -> None:
    data, identity = write_manifest("dataset", {"seed": 1}, {"actor": "another"}, FILES[::-1])
    assert identity == write_manifest("dataset", {"seed": 1}, {}, FILES)[1]
    assert data != manifest_bytes()
    others = [("model", {"seed": 1}, FILES), ("dataset", {"seed": 2}, FILES), ("dataset", {"seed": 1}, FILES[:1])]
    assert len({write_manifest(kind, settings, {}, files)[1] for kind, settings, files in others} | {identity}) == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_json_cannot_hold_is_refused(bad: float) -> None:
    for settings, provenance in (({"x": bad}, {}), ({}, {"x": bad})):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_manifest("dataset", settings, provenance, [])


def test_any_changed_byte_is_seen() -> None:
    data = manifest_bytes()
    for position in range(len(data)):
        for bit in (1, 32):
            changed = data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :]
            with pytest.raises(CorruptError) as raised:
                read_manifest(URI, changed)
            assert raised.value.message in (f"{MANIFEST} does not end with a seal.", f"{MANIFEST} {CHANGED}")
            assert raised.value.details == {"file": "datasets/k-0/manifest.json"}
    for changed, what in (
        (data[:-1], "does not end with a seal."),
        (data + b"\n", "does not end with a seal."),
        (b"", "does not end with a seal."),
        (b" " + data, CHANGED),
        (data[100:], CHANGED),
    ):
        with pytest.raises(CorruptError, match=f"^{MANIFEST} {what}"):
            read_manifest(URI, changed)


LIES = {
    "the id": (
        sealed({**{k: v for k, v in json.loads(manifest_bytes()).items() if k != "seal"}, "id": B3}),
        "carries an id that is not the digest of its content",
    ),
    "white space": (
        (body := manifest_bytes()[: -len(',"seal":""}') - 64].replace(b'"seed":1', b'"seed": 1'))
        + b',"seal":"'
        + hashlib.sha256(body).hexdigest().encode()
        + b'"}',
        "is not a manifest in canonical form",
    ),
    "no object": (
        sealed({})[:0] + b'[1,"seal":"' + hashlib.sha256(b"[1").hexdigest().encode() + b'"}',
        "is not a manifest",
    ),
    "more fields": (
        sealed(
            {"content": (c := json.loads(manifest_bytes())["content"]), "id": digest(c), "more": 1, "provenance": {}}
        ),
        "is not a manifest",
    ),
    "fewer fields": (sealed({"content": c, "id": digest(c)}), "is not a manifest"),
    "provenance": (sealed({"content": c, "id": digest(c), "provenance": []}), "is not a manifest in canonical form"),
    "no schema": (with_content(schema=None), "is not a manifest"),
    "a schema that is text": (with_content(schema="1"), "is not a manifest"),
    "no kind": (with_content(kind=None), "is not a manifest in canonical form"),
    "a kind that is no text": (with_content(kind=3), "is not a manifest in canonical form"),
    "more content": (with_content(extra=1), "is not a manifest in canonical form"),
    "settings": (with_content(settings=[]), "is not a manifest in canonical form"),
    "files": (with_content(files={"a": 1}), "is not a manifest"),
    "an entry with more": (with_content(files=[FILES[0].to_json() | {"x": 1}]), "is not a manifest"),
    "a negative size": (
        with_content(files=[FILES[0].to_json() | {"bytes": -1}]),
        "is not a manifest in canonical form",
    ),
    "a digest": (with_content(files=[FILES[0].to_json() | {"blake3": "ff"}]), "is not a manifest in canonical form"),
    "a path out": (with_content(files=[FILES[0].to_json() | {"path": "../b"}]), "is not a manifest"),
    "an absolute path": (with_content(files=[FILES[0].to_json() | {"path": "/b"}]), "is not a manifest"),
    "its own name": (with_content(files=[FILES[0].to_json() | {"path": "manifest.json"}]), "is not a manifest"),
    "a file twice": (with_content(files=[FILES[0].to_json()] * 2), "is not a manifest in canonical form"),
    "the order": (with_content(files=[f.to_json() for f in FILES]), "is not a manifest in canonical form"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_under_a_true_seal(lie: str) -> None:
    data, sentence = LIES[lie]
    with pytest.raises(CorruptError, match=rf"^datasets/k-0/manifest\.json {sentence}\."):
        read_manifest(URI, data)


def test_a_true_manifest_that_is_not_the_one_pointed_at() -> None:
    data, identity = write_manifest("dataset", {}, {}, [])
    seal = read_manifest(URI, data).seal
    for ref in (Ref(uri=URI, id=B3, seal=seal), Ref(uri=URI, id=identity, seal=B3)):
        with pytest.raises(CorruptError, match=f"^{MANIFEST} is whole, but is not the one that the reference names"):
            read_manifest(URI, data, ref)


def test_a_newer_schema_is_refused_in_a_sentence() -> None:
    newer = r"^datasets/k-0/manifest\.json has schema 2, newer than the 1 that this Trainwright reads\. Upgrade Trainwr"
    with pytest.raises(UsageError, match=newer):
        read_manifest(URI, with_content(schema=2, shape="unknown to us"))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("manifest.json", "manifest.json is the manifest's own name; put the file in a folder below."),
        ("../a", "'../a' cannot be a file name in a sealed directory."),
        ("/a", "'/a' cannot be a file name in a sealed directory."),
        ("", "'' cannot be a file name in a sealed directory."),
    ],
)
def test_file_names_refused(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        check_file_name(name)
