"""Code that was changed in the store and sealed again under its old name is packed again, and never unpacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from data_contracts.canonical import KEY_LENGTH, digest
from data_contracts.errors import CorruptError
from infra.code_bundle import pack, unpack
from infra.files import file_digest
from infra.store import Store, layout
from tests.support.files import write_files
from tests.support.reseal import reseal

CHANGED = r"^code/[0-9a-f]{40} does not hold the code that its name, or what refers to it, stands for: it was ch"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {"pyproject.toml": "", "net.py": "x = 1", "vocab.json": "[]", "merges.txt": "a b"}
    return write_files(tmp_path / "project", files)


def forget_named(provenance: dict[str, Any]) -> None:
    """As the version before wrote it."""
    provenance.pop("named")


ATTACKS: dict[str, dict[str, Any]] = {
    "a module": {"files": {"project/net.py": b"x = 2"}},
    "a file that the spec names": {"files": {"project/vocab.json": b"[0]"}},
    "a file that nobody names": {"files": {"project/pyproject.toml": b"[project]"}},
    "a new module": {"files": {"project/other.py": b""}},
    "outside of the project": {"files": {"other.py": b""}},
    "another digest": {"settings": lambda settings: settings.update(digest="0" * 64)},
    "what is named": {"provenance": lambda provenance: provenance["named"].clear()},
    "a module, as an earlier version": {"files": {"project/net.py": b"x = 2"}, "provenance": forget_named},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_changed_code_is_packed_again(attack: str, project: Path, store: Store, tmp_path: Path) -> None:
    named = [project / "vocab.json"]
    honest = pack(project, store, named)
    forged = reseal(Path(store.uri), honest.ref.uri, **ATTACKS[attack])
    store.verify(forged)
    with pytest.raises(CorruptError) as caught:
        unpack(store, forged, tmp_path / "out")
    assert caught.value.exit_code == 6
    assert caught.value.message.startswith(honest.ref.uri)
    assert not (tmp_path / "out").exists()
    with pytest.raises(CorruptError, match="is not the one that the reference names"):
        unpack(store, honest.ref, tmp_path / "out")
    again = pack(project, store, named)
    assert (again.ref.uri, again.ref.id) == (f"{honest.ref.uri}-1", honest.ref.id)
    unpack(store, again.ref, tmp_path / "whole")


def test_the_expected_code_digest_is_checked(project: Path, store: Store, tmp_path: Path) -> None:
    first = pack(project, store)
    (project / "net.py").write_text("x = 2")
    second = pack(project, store)
    assert unpack(store, second.ref, tmp_path / "second", code_digest=second.digest).is_dir()
    with pytest.raises(CorruptError, match=CHANGED):
        unpack(store, second.ref, tmp_path / "first", code_digest=first.digest)


@pytest.mark.parametrize("changed", ["net.py", "vocab.json"])
def test_a_bundle_cannot_record_the_old_digest_of_a_file_that_it_changes(
    changed: str, project: Path, store: Store, tmp_path: Path
) -> None:
    honest = pack(project, store, [project / "vocab.json"])
    old = {name: file_digest(project / name) for name in ("net.py", "vocab.json")}
    (project / changed).write_text("changed")
    files = {name: (project / name).read_bytes() for name in ("merges.txt", "net.py", "pyproject.toml", "vocab.json")}
    name = digest({"files": {name: blake3(data).hexdigest() for name, data in files.items()}, "named": old})
    writer = store.writer(layout.code(name[:KEY_LENGTH]))
    entries = [writer.put(f"project/{name}", data) for name, data in files.items()]
    forged = writer.seal("code", {"digest": honest.digest}, {"named": old}, entries)
    with pytest.raises(CorruptError, match=CHANGED):
        unpack(store, forged, tmp_path / "out", code_digest=honest.digest)


@pytest.mark.parametrize("named", [[], ["vocab.json"], ["merges.txt", "vocab.json"]])
def test_a_bundle_of_an_earlier_version_is_laid_out(
    named: list[str], project: Path, store: Store, tmp_path: Path
) -> None:
    bundle = pack(project, store, [project / name for name in named])
    older = reseal(Path(store.uri), bundle.ref.uri, provenance=forget_named)
    assert older.id == bundle.ref.id
    assert (unpack(store, older, tmp_path / "out", code_digest=bundle.digest) / "net.py").exists()


def test_a_bundle_of_an_earlier_version_with_many_files_goes_by_its_run(
    project: Path, store: Store, tmp_path: Path
) -> None:
    write_files(project, {f"text-{number}.txt": "" for number in range(60)})
    named = [f"text-{number}.txt" for number in (3, 20, 40, 59)]
    bundle = pack(project, store, [project / name for name in named], {"run_id": "r"})
    older = reseal(Path(store.uri), bundle.ref.uri, provenance=forget_named)
    with pytest.raises(CorruptError, match=CHANGED):
        unpack(store, older, tmp_path / "out")
    store.create_json("runs/r/resolved.json", {"spec": [*named[:3], f"./{named[3]}", "net.py", "pyproject.toml"]})
    assert (unpack(store, older, tmp_path / "out") / "net.py").exists()
