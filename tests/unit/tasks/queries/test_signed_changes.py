"""A writer of the store without the key changes nothing that `prove --key` accepts: 300 changes, 10,000 with --sweep.

Each change is refused with an error of the tree, or it touches nothing that the proof reads: the proof is then equal.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import TrainwrightError
from infra.processes.environment import SIGNING_KEY
from infra.signing.keys import IN_TOTO, PRIVATE_FILE, SigningKey, sign_bytes, unverified_payload
from infra.store import layout, open_store
from infra.store.records import write_record
from tasks.queries.proof import prove
from tests.support.damage import flipped
from tests.support.reseal import reseal
from tests.support.signed import MODEL, SignedStore, pair

POINTER = layout.alias(MODEL, "champion")
HISTORY = layout.history(MODEL, "champion")


class Forger:
    """Makes one change after the other in the folder of a store."""

    def __init__(self, root: Path, stranger: SigningKey) -> None:
        self.root, self.stranger = root, stranger
        self.files = {path: (root / path).read_bytes() for path in self._paths()}
        self.sealed = sorted(
            path.removesuffix("/manifest.json") for path in self.files if path.endswith("manifest.json")
        )
        self.receipts = sorted(uri for uri in self.sealed if uri.startswith(HISTORY))
        self.signatures = sorted(path for path in self.files if path.endswith((".dsse", ".sig")))

    def _paths(self) -> list[str]:
        found = (path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file())
        return sorted(path for path in found if not path.startswith(".locks/"))

    def change(self, seed: int) -> tuple[str, list[str]]:
        """Make the change of a seed; its kind, and the files that differ now."""
        draw = random.Random(seed)
        kind = draw.choice(list(KINDS))
        KINDS[kind](self, draw)
        now = {path: (self.root / path).read_bytes() for path in self._paths()}
        return kind, sorted(path for path in now.keys() | self.files.keys() if now.get(path) != self.files.get(path))

    def restore(self) -> None:
        """Put every file back."""
        for path in self._paths():
            if path not in self.files:
                (self.root / path).unlink()
        for path, data in self.files.items():
            if not (self.root / path).is_file() or (self.root / path).read_bytes() != data:
                self.put(path, data)

    def put(self, path: str, data: bytes) -> None:
        """Write a file in the place of another."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_bytes(data)

    def point(self, receipt: str, version: str, counter: int = 9, schema: int = 2) -> None:
        """Let the alias name a receipt and a version, with a digest that is right."""
        refs = {}
        for uri in (receipt, version):
            manifest = json.loads((self.root / uri / "manifest.json").read_bytes())
            refs[uri] = {"uri": uri, "id": manifest["id"], "seal": manifest["seal"]}
        value = {"model_version": refs[version], "receipt": refs[receipt], "version": int(version.rpartition("/")[2])}
        self.put(POINTER, write_record(POINTER, {"schema": schema, "value": value, "version": counter}))

    def forge(self, uri: str, **change: Any) -> None:
        """Change a sealed directory, seal it again, and then everything that names it, up to the alias."""
        waiting = [(uri, change)]
        while waiting:
            place, how = waiting.pop(0)
            before = json.loads((self.root / place / "manifest.json").read_bytes())
            after = reseal(self.root, place, **how)
            renamed = {before["id"]: after.id, before["seal"]: after.seal}
            waiting += [(one, {"files": files, **_renaming(renamed)}) for one, files in self._naming(renamed, place)]
        record = json.loads(self.files[POINTER])
        now = {one: json.loads((self.root / one / "manifest.json").read_bytes()) for one in self.sealed}
        for ref in (record["value"]["model_version"], record["value"]["receipt"]):
            ref.update(id=now[ref["uri"]]["id"], seal=now[ref["uri"]]["seal"])
        self.put(POINTER, write_record(POINTER, {name: record[name] for name in ("schema", "value", "version")}))

    def _naming(self, renamed: dict[str, str], place: str) -> list[tuple[str, dict[str, bytes]]]:
        """The sealed directories with a file that has one of the old names, with those files as they must be."""
        found = []
        for uri in self.sealed:
            files = {
                path.relative_to(self.root / uri).as_posix(): path.read_bytes()
                for path in (self.root / uri).rglob("*.json")
            }
            if uri != place and any(old.encode() in data for data in files.values() for old in renamed):
                changed = {name: _renamed(data, renamed) for name, data in files.items() if name != "manifest.json"}
                found.append((uri, changed))
        return found


def _renamed(data: bytes, renamed: dict[str, str]) -> bytes:
    for old, new in renamed.items():
        data = data.replace(old.encode(), new.encode())
    return data


def _renaming(renamed: dict[str, str]) -> dict[str, Any]:
    return dict.fromkeys(
        ("settings", "provenance"),
        lambda value: value.update(json.loads(_renamed(json.dumps(value).encode(), renamed))),
    )


def _flip(forger: Forger, draw: random.Random) -> None:
    path = draw.choice([path for path, data in forger.files.items() if data])
    data = forger.files[path]
    forger.put(path, flipped(data, 8 * draw.randrange(len(data)) + draw.randrange(8)))


def _cut(forger: Forger, draw: random.Random) -> None:
    path = draw.choice([path for path, data in forger.files.items() if data])
    data = forger.files[path]
    forger.put(path, data[: draw.randrange(len(data))] if draw.random() < 0.7 else data + draw.randbytes(3))


def _swap(forger: Forger, draw: random.Random) -> None:
    """Two files with the same last name, such as those of two versions, receipts or evaluations."""
    one = draw.choice(list(forger.files))
    ending = one.rpartition("/")[2].partition(".")[2] if one in forger.signatures else one.rpartition("/")[2]
    alike = [path for path in forger.files if path.endswith(ending) and path != one] or list(forger.files)
    other = draw.choice(alike)
    forger.put(one, forger.files[other])
    if draw.random() < 0.6:
        forger.put(other, forger.files[one])


def _swap_folders(forger: Forger, draw: random.Random) -> None:
    one = draw.choice(forger.sealed)
    other = draw.choice([uri for uri in forger.sealed if uri.startswith(one.partition("/")[0])])
    if one != other:
        shutil.rmtree(forger.root / other)
        shutil.copytree(forger.root / one, forger.root / other)


def _point(forger: Forger, draw: random.Random) -> None:
    version = draw.choice([uri for uri in forger.sealed if uri.startswith("models/")])
    forger.point(draw.choice(forger.receipts), version, draw.randrange(1, 9), draw.choice([2, 2, 2, 1, 3]))


def _older(forger: Forger, draw: random.Random) -> None:
    """An older champion, with some of the newer signatures or receipts deleted."""
    receipt = draw.choice(forger.receipts[:-1])
    number = json.loads((forger.root / receipt / "receipt.json").read_bytes())["version"]
    forger.point(receipt, layout.model(MODEL, number))
    newer = forger.receipts[forger.receipts.index(receipt) + 1 :]
    kept = draw.choice(newer)  # at least one newer signature is left
    for uri in newer:
        if uri != kept and draw.random() < 0.5:
            for path in [path for path in forger.files if path.startswith((f"{uri}/", f"{uri}."))]:
                (forger.root / path).unlink()


def _reseal(forger: Forger, draw: random.Random) -> None:
    """A directory is changed, and it and all that names it is sealed again: every digest in the store is right."""
    uri = draw.choice(forger.sealed)
    files = [path for path in forger.files if path.startswith(f"{uri}/") and not path.endswith("manifest.json")]
    how = draw.choice(["file", "settings", "provenance"])
    if how == "file" and files:
        path = draw.choice(files)
        data = flipped(forger.files[path], 8 * draw.randrange(len(forger.files[path])) + draw.randrange(7))
        forger.forge(uri, files={path.removeprefix(f"{uri}/"): data})
    elif how == "settings":
        forger.forge(uri, settings=lambda value: value.update(version=draw.randrange(9)))
    else:
        forger.forge(uri, provenance=lambda value: value.update(actor=f"mallory {draw.random()}"))


def _other_key(forger: Forger, draw: random.Random) -> None:
    """The statement, or another, signed by a stranger, sometimes under the name of the right key."""
    path = draw.choice([one for one in forger.signatures if one.endswith(".dsse")])
    payload, key = unverified_payload(forger.files[path], path)
    if draw.random() < 0.5:
        payload = payload.replace(b'"version":1', b'"version":2').replace(b"ann", b"bob")
    data = sign_bytes(payload, IN_TOTO, forger.stranger)
    if draw.random() < 0.5:
        data = data.replace(forger.stranger.public.id.encode(), key.encode())
    forger.put(path, data)


def _twice(forger: Forger, draw: random.Random) -> None:
    """A key twice in JSON: the first value is the forger's, or the second."""
    path = draw.choice([path for path, data in forger.files.items() if data.startswith(b'{"')])
    data = forger.files[path]
    name = data[2:].partition(b'"')[0]
    first, last = b'{"' + name + b'":null,' + data[1:], data[:-1] + b',"' + name + b'":null}'
    forger.put(path, draw.choice([first, last]))


def _newer_schema(forger: Forger, draw: random.Random) -> None:
    path = draw.choice([path for path, data in forger.files.items() if b'"schema' in data])
    data = forger.files[path]
    forger.put(path, data.replace(b'"schema":1', b'"schema":7').replace(b'"schema_version":1', b'"schema_version":7'))


def _copy_signature(forger: Forger, draw: random.Random) -> None:
    path = draw.choice(forger.signatures)
    number, ending = draw.randrange(12), path.rpartition("/")[2].partition(".")[2]
    forger.put(f"{HISTORY}/{number}.{ending}", forger.files[path])


KINDS: dict[str, Callable[[Forger, random.Random], object]] = {
    "a bit": _flip,
    "cut or longer": _cut,
    "deleted": lambda forger, draw: (forger.root / draw.choice(list(forger.files))).unlink(),
    "swapped": _swap,
    "folders swapped": _swap_folders,
    "pointer": _point,
    "older champion": _older,
    "all sealed again": _reseal,
    "one sealed again": lambda forger, draw: reseal(
        forger.root,
        draw.choice(forger.sealed),
        provenance=lambda value: value.update(finished=f"2020-01-0{draw.randrange(1, 9)}"),
    ),
    "another key": _other_key,
    "a key twice": _twice,
    "newer schema": _newer_schema,
    "signature copied": _copy_signature,
    "a file more": lambda forger, draw: forger.put(
        f"{draw.choice(forger.sealed)}/added-{draw.randrange(9)}.json", draw.randbytes(9)
    ),
}


def is_irrelevant(path: str, forger: Forger) -> bool:
    """Whether a proof does not depend on a change: marks, the pointer's own counter, files beside receipts.

    Two receipts of one version have signatures of the same statement about its training and its files: such a
    signature may stand in the place of the other.
    """
    if path.startswith("uses/") or path.endswith(".verified") or path in (POINTER, ".gitignore", "store.json"):
        return True
    if not path.startswith(f"{HISTORY}/") or not path.endswith((".dsse", ".sig")):
        return False
    return path not in forger.files or payload((forger.root / path).read_bytes()) == payload(forger.files[path])


def payload(data: bytes) -> str:
    value = json.loads(data)
    return str(value.get("dsseEnvelope", value)["payload"])


def test_no_change_without_the_key_is_accepted(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has two versions, a rollback and a release, all signed."""
    key, _, _ = pair(tmp_path / "keys")
    monkeypatch.setenv(SIGNING_KEY, str(tmp_path / "keys" / PRIVATE_FILE))
    grown = SignedStore(tmp_path, key)
    for step in (lambda: grown.promote(1), lambda: grown.promote(2), grown.back, grown.release):
        step()
    count = 10_000 if pytestconfig.getoption("--sweep") else 300
    store, keys = open_store(str(grown.root)), [grown.key.public]
    expected = prove(store, MODEL, keys=keys).to_json()
    stranger, _, _ = pair(tmp_path / "stranger")
    forger = Forger(grown.root, stranger)
    refused: Counter[str] = Counter()
    equal: Counter[str] = Counter()
    for seed in range(count):
        kind, changed = forger.change(seed)
        try:
            proof = prove(store, MODEL, keys=keys)
        except TrainwrightError:
            refused[kind] += 1
        else:
            assert proof.to_json() == expected, f"seed {seed}, {kind}: {changed}"
            relevant = [path for path in changed if not is_irrelevant(path, forger)]
            assert not relevant, f"seed {seed}, {kind}: {relevant} changed, and nobody noticed"
            equal[kind] += 1
        forger.restore()
    print(f"refused {refused.total():,} of {count:,}: {dict(refused)}; nothing of the proof: {dict(equal)}")
    assert refused.total() > count / 2
    assert refused.keys() | equal.keys() == KINDS.keys()
    assert prove(store, MODEL, keys=keys).to_json() == expected
