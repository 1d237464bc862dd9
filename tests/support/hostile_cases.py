"""The corpus of hostile checkpoints, as data: what is done to a genuine one, how it is taken up, what must be said."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from data_contracts.canonical import canonical, digest
from data_contracts.handoffs import Checkpoint, FileEntry
from infra.files import file_digest
from infra.store.seal import write_manifest
from tests.support.damage import overwrite

GIB = 2**30


class Payload:
    """Runs when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self) -> Any:
        return (os.mkdir, (self.canary,))


@dataclass
class Attack:
    """What an attacker has: the whole store. `step` 8 is told of as the newest; `old` is the one of step 4."""

    root: Path
    newest: Checkpoint
    old: Checkpoint
    canary: Path

    @property
    def folder(self) -> Path:
        """The newest checkpoint's directory."""
        return self.root / self.newest.ref.uri

    def pickled(self) -> bytes:
        """A pickle that leaves the canary."""
        return pickle.dumps(Payload(self.canary))

    def put(self, name: str, data: bytes) -> Checkpoint:
        """Replace a file and seal anew."""
        overwrite(self.folder / name, data)
        return self.seal()

    def edit(self, name: str, change: Callable[[Any], Any]) -> Checkpoint:
        """Change a JSON file and seal anew; `change` may return a new value."""
        value = json.loads((self.folder / name).read_text())
        changed = change(value)
        return self.put(name, json.dumps(value if changed is None else changed).encode())

    def tensors(self, file: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> Checkpoint:
        """Change tensors, and the index so that it agrees, and seal anew."""
        path = self.folder / file
        held = load_file(path)
        change(held)
        overwrite(path, save({name: tensor.contiguous() for name, tensor in held.items()}))

        def agree(index: dict[str, Any]) -> None:
            for entry in index["tensors"].values():
                for piece in entry["pieces"]:
                    if piece["file"] == file and piece["key"] in held:
                        tensor = held[piece["key"]]
                        piece["shape"] = entry["shape"] = list(tensor.shape)
                        entry["dtype"] = str(tensor.dtype).removeprefix("torch.")

        return self.edit("index.json", agree)

    def sparse(self, name: str, size: int, begin: bytes = b"") -> None:
        """A file of `size` bytes that takes no room."""
        overwrite(self.folder / name, begin)
        os.truncate(self.folder / name, size)

    def manifest(self) -> dict[str, Any]:
        """As it is now."""
        return json.loads((self.folder / "manifest.json").read_text())

    def seal(self, **changes: Any) -> Checkpoint:
        """Seal what lies there now as the attacker would; `changes` replace kind, settings, provenance or entries."""
        before = self.manifest()
        names = sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())
        entries = [
            FileEntry(path=name, bytes=(self.folder / name).stat().st_size, blake3=file_digest(self.folder / name))
            for name in names
            if name != "manifest.json"
        ]
        content = before["content"]
        data, _ = write_manifest(
            changes.get("kind", content["kind"]),
            {**content["settings"], **changes.get("settings", {})},
            {**before["provenance"], **changes.get("provenance", {})},
            changes.get("entries", entries),
        )
        return self.sealed(data)

    def sealed(self, data: bytes, **told: Any) -> Checkpoint:
        """Write a manifest, and tell of it as the pointers would."""
        path = self.folder / "manifest.json"
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        try:
            value = json.loads(data)
            ref = {"uri": self.newest.ref.uri, "id": value["id"], "seal": value["seal"]}
        except (ValueError, TypeError, RecursionError, KeyError):
            ref = self.newest.ref.to_json()
        return Checkpoint.from_json({**self.newest.to_json(), "ref": ref, **told})

    def rewritten(self, change: Callable[[dict[str, Any]], Any]) -> Checkpoint:
        """A manifest with another content, with the id and the seal that belong to it."""
        value = self.manifest()
        change(value["content"])
        return self.sealed(sealed_bytes(value["content"], value["provenance"]))


def sealed_bytes(content: dict[str, Any], provenance: Any) -> bytes:
    """As `write_manifest`, of whatever content."""
    return with_seal(canonical({"content": content, "id": digest(content), "provenance": provenance})[:-1])


def with_seal(body: bytes) -> bytes:
    """A manifest's bytes from those before its seal."""
    return body + b',"seal":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


@dataclass(frozen=True)
class Case:
    """An attack, how its checkpoint is taken up, the exit code, and what the sentence says."""

    name: str
    route: str
    attack: Callable[[Attack], Checkpoint]
    sentence: str
    exit_code: int = 6


def _link(a: Attack) -> Checkpoint:
    path, outside = a.folder / "weights-0.safetensors", a.root.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    return a.newest


def _linked_folder(a: Attack) -> Checkpoint:
    elsewhere = a.root.parent / "elsewhere"
    a.folder.rename(elsewhere)
    a.folder.symlink_to(elsewhere)
    return a.newest


def _replaced(name: str, make: Callable[[Path], Any]) -> Callable[[Attack], Checkpoint]:
    def attack(a: Attack) -> Checkpoint:
        (a.folder / name).unlink()
        make(a.folder / name)
        return a.newest

    return attack


def _hard_link(a: Attack) -> Checkpoint:
    path = a.folder / "weights-0.safetensors"
    path.unlink()
    os.link(a.root / a.old.ref.uri / path.name, path)
    return a.newest


def _replayed(a: Attack, **told: Any) -> Checkpoint:
    shutil.rmtree(a.folder)
    shutil.copytree(a.root / a.old.ref.uri, a.folder)
    return a.sealed((a.folder / "manifest.json").read_bytes(), **told)


def _stale(a: Attack) -> Checkpoint:
    _replayed(a)
    return a.newest


def _lookalike(a: Attack) -> Checkpoint:
    (a.folder / "weights-0.safetensors").rename(a.folder / "weights-٠.safetensors")

    def point(index: dict[str, Any]) -> None:
        for entry in index["tensors"].values():
            for piece in entry["pieces"]:
                piece["file"] = piece["file"].replace("weights-0", "weights-٠")

    return a.edit("index.json", point)


def _cyrillic(a: Attack) -> Checkpoint:
    (a.folder / "state.json").rename(a.folder / "ѕtate.json")
    return a.seal()


def _huge_header(a: Attack, length: int, size: int) -> Checkpoint:
    a.sparse("weights-0.safetensors", size, struct.pack("<Q", length) + b"{")
    return a.seal()


def _sparse(name: str, size: int) -> Callable[[Attack], Checkpoint]:
    def attack(a: Attack) -> Checkpoint:
        a.sparse(name, size)
        return a.newest if name == "manifest.json" else a.seal()

    return attack


def _deep_manifest(a: Attack) -> Checkpoint:
    content = a.manifest()["content"]
    body = canonical({"content": content, "id": digest(content)})[:-1] + b',"provenance":' + b"[" * 10**6
    return a.sealed(with_seal(body + b"]" * 10**6))


def _first_entry(a: Attack, **changes: Any) -> Checkpoint:
    return a.rewritten(lambda content: content["files"][0].update(changes))


def _twice(content: dict[str, Any]) -> None:
    content["files"].append(content["files"][-1])


def _grown(index: dict[str, Any], shape: list[int], *, pieces: bool) -> None:
    entry = index["tensors"]["state_dict/one.weight"]
    entry["shape"] = shape
    entry["pieces"] = [{**entry["pieces"][0], "shape": shape, "offset": [0] * len(shape)}] if pieces else []


def _pieces(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["tensors"]["state_dict/one.weight"]["pieces"][0].update(changes)


def _optimizer(change: Callable[[dict[str, Any]], Any]) -> Callable[[Attack], Checkpoint]:
    return lambda a: a.tensors("state-0.safetensors", change)


def _swap_optimizer(held: dict[str, torch.Tensor]) -> None:
    one, two = (f"optimizer_states/0/state/{at}/exp_avg" for at in (0, 2))
    held[one], held[two] = held[two].clone(), held[one].clone()


def _swap_alike(a: Attack) -> Checkpoint:
    def swap(held: dict[str, torch.Tensor]) -> None:
        one, two = (f"optimizer_states/0/state/0/{name}" for name in ("exp_avg", "exp_avg_sq"))
        held[one], held[two] = held[two].clone(), held[one].clone()

    a.tensors("state-0.safetensors", swap)
    return a.newest


def _not_finite(held: dict[str, torch.Tensor]) -> None:
    held["optimizer_states/0/state/0/exp_avg"].fill_(float("nan"))


def _weight(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Attack], Checkpoint]:
    def attack(a: Attack) -> Checkpoint:
        return a.tensors("weights-0.safetensors", lambda held: held.update({"one.weight": change(held["one.weight"])}))

    return attack


def _number(state: dict[str, Any]) -> None:
    pairs = state["state_dict"]["value"]
    pairs[:] = [[name, 1 if name == "one.weight" else value] for name, value in pairs]


def _generators(own: dict[str, Any]) -> None:
    own["rng"]["torch"] = "x"


def _state(change: Callable[[dict[str, Any]], Any]) -> Callable[[Attack], Checkpoint]:
    return lambda a: a.edit("state.json", change)


def _class_path(a: Attack) -> Checkpoint:
    def other(told: dict[str, Any]) -> None:
        told["train"]["lightning"]["model"] = {"class_path": "os.mkdir", "init_args": {"path": str(a.canary)}}

    return a.edit("train.json", other)


WEIGHTS, INDEX, STATE, OWN = "weights-0.safetensors", "index.json", "state.json", "rank-0.json"
DEEP = b"[" * 10**7
CASES = [
    Case("weights are a pickle", "verify", lambda a: a.put(WEIGHTS, a.pickled()), "cannot be read"),
    Case("weights are a pickle", "evaluate", lambda a: a.put(WEIGHTS, a.pickled()), "cannot be read"),
    Case("weights are a pickle", "resume", lambda a: a.put(WEIGHTS, a.pickled()), "cannot be read"),
    Case("optimizer is a pickle", "resume", lambda a: a.put("state-0.safetensors", a.pickled()), "cannot be read"),
    Case("index is a pickle", "verify", lambda a: a.put(INDEX, a.pickled()), "index.json cannot be read"),
    Case("state is a pickle", "verify", lambda a: a.put(STATE, a.pickled()), "state.json cannot be read"),
    Case("rank's state is a pickle", "resume", lambda a: a.put(OWN, a.pickled()), "rank-0.json cannot be read"),
    Case("history is a pickle", "resume", lambda a: a.put("history.json", a.pickled()), "history.json cannot be read"),
    Case("settings are a pickle", "rebuild", lambda a: a.put("train.json", a.pickled()), "train.json is not JSON"),
    Case("settings are a pickle", "conduct", lambda a: a.put("train.json", a.pickled()), "is whole"),
    Case("manifest is a pickle", "verify", lambda a: a.sealed(a.pickled()), "does not end with a seal"),
    Case("a pickle beside", "verify", lambda a: a.put("extra.pt", a.pickled()), "which is not a file of a checkpoint"),
    Case("a tag to unpickle", "verify", _state(lambda s: s.update(state_dict={"$": "pickle"})), "unknown tag 'pickle'"),
    Case("an object scalar", "verify", _state(lambda s: s.update(x={"$": "scalar", "value": ["O", 1]})), "scalar 'O'"),
    Case("entry leaves", "verify", lambda a: _first_entry(a, path="../4-g0/state.json"), "is not a manifest"),
    Case("entry is absolute", "verify", lambda a: _first_entry(a, path="/etc/hostname"), "is not a manifest"),
    Case("index leaves", "verify", lambda a: a.edit(INDEX, _pieces(file=f"../4-g0/{WEIGHTS}")), "not a file of a"),
    Case("index is absolute", "resume", lambda a: a.edit(INDEX, _pieces(file="/etc/hostname")), "not a file of a"),
    Case("arabic digit", "verify", _lookalike, "which is not a file of a checkpoint"),
    Case("cyrillic letter", "verify", _cyrillic, "which is not a file of a checkpoint"),
    Case("file is a link", "verify", _link, "is a link or a special file"),
    Case("folder is a link", "verify", _linked_folder, "is a link"),
    Case("file is a hard link to an older one", "verify", _hard_link, "does not hold the bytes that were sealed"),
    Case("file is a pipe", "verify", _replaced(STATE, os.mkfifo), "is a link or a special file"),
    Case("manifest is a pipe", "verify", _replaced("manifest.json", os.mkfifo), "is not a plain file"),
    Case(
        "manifest links to what never ends",
        "verify",
        _replaced("manifest.json", lambda path: path.symlink_to("/dev/zero")),
        "is not a plain file",
    ),
    Case("manifest of 4 GiB", "verify", _sparse("manifest.json", 4 * GIB), "too large to be read as a whole"),
    Case("index of 512 MiB", "verify", _sparse(INDEX, GIB // 2), "index.json is too large to be read"),
    Case("state of 512 MiB", "resume", _sparse(STATE, GIB // 2), "state.json is too large to be read"),
    Case("header of 512 MiB", "verify", lambda a: _huge_header(a, GIB // 2, GIB // 2 + 8), "cannot be read"),
    Case("header of all numbers", "verify", lambda a: _huge_header(a, 2**63, 100), "cannot be read"),
    Case("nested state", "verify", lambda a: a.put(STATE, DEEP), "state.json cannot be read"),
    Case("nested index", "verify", lambda a: a.put(INDEX, DEEP), "index.json cannot be read"),
    Case("nested settings", "rebuild", lambda a: a.put("train.json", DEEP), "train.json is nested deeper than 100"),
    Case("nested manifest", "verify", _deep_manifest, "is not a manifest"),
    Case(
        "a scalar of 10 GB", "verify",
        _state(lambda s: s.update(x={"$": "scalar", "value": ["V8", 10**10]})), "unknown scalar",
    ),
    Case(
        "a tensor of exabytes", "verify",
        lambda a: a.edit(INDEX, lambda i: _grown(i, [10**9, 10**9], pieces=True)), "but the index says",
    ),
    Case(
        "an empty tensor of no size", "verify",
        lambda a: a.edit(INDEX, lambda i: _grown(i, [10**30, 0], pieces=False)), "a size that no tensor has",
    ),
    Case(
        "a thousand dimensions", "verify",
        lambda a: a.edit(INDEX, lambda i: _grown(i, [1] * 1000, pieces=True)), "a size that no tensor has",
    ),
    Case("manifest lies about a digest", "verify", lambda a: _first_entry(a, blake3="0" * 64), "does not hold the"),
    Case("manifest lies about a size", "verify", lambda a: _first_entry(a, bytes=1), "does not hold the"),
    Case("manifest leaves a file out", "verify", lambda a: a.rewritten(lambda c: c["files"].pop()), "is extra"),
    Case("manifest names a file twice", "verify", lambda a: a.rewritten(_twice), "is not a manifest"),
    Case("manifest of a dataset", "verify", lambda a: a.seal(kind="dataset"), "is a dataset, not a checkpoint"),
    Case("manifest of tomorrow", "verify", lambda a: a.rewritten(lambda c: c.update(schema=2)), "schema 2, newer", 2),
    Case("index of tomorrow", "verify", lambda a: a.edit(INDEX, lambda i: i.update(schema_version=2)), "schema 2", 2),
    Case("resealed behind the pointer", "resume", lambda a: (a.seal(settings={"x": 1}), a.newest)[1], "is not the one"),
    Case("weights of another type", "verify", _weight(lambda w: w.double()), "does not fit Net"),
    Case("weights of another shape", "verify", _weight(lambda w: w.T), "does not fit Net"),
    Case("weights of another shape", "resume", _weight(lambda w: w.T), "does not fit it"),
    Case("weights of another shape", "evaluate", _weight(lambda w: w.T), "does not fit Net"),
    Case("a weight is a number", "verify", _state(_number), "is not a tensor"),
    Case("no weights", "verify", _state(lambda s: s.pop("state_dict") and None), "holds no weights"),
    Case("weights are not finite", "verify", _weight(lambda w: w.fill_(float("nan"))), "not finite"),
    Case("optimizer is not finite", "verify", _optimizer(_not_finite), "not finite"),
    Case("weights are not finite", "resume", _weight(lambda w: w.fill_(float("nan"))), "are not finite, in weights"),
    Case("a weight is infinite", "resume", _weight(lambda w: w / 0), "are not finite, in weights"),
    Case("optimizer is not finite", "resume", _optimizer(_not_finite), "are not finite, in an optimizer.s state"),
    Case("optimizer of other parameters", "resume", _optimizer(_swap_optimizer), "exp_avg of parameter 0 has"),
    Case("optimizer swapped behind the pointer", "resume", _swap_alike, "is not the one that the reference names"),
    Case("no optimizer", "resume", _state(lambda s: s.update(optimizer_states=[])), "the state of 0 optimizers"),
    Case("no loops", "resume", _state(lambda s: s.pop("loops") and None), "does not fit it"),
    Case("no state of ours", "resume", _state(lambda s: s.pop("trainwright") and None), "does not fit it"),
    Case("generators of no use", "resume", lambda a: a.edit(OWN, _generators), "does not fit it"),
    Case("older one under the newer name", "resume", _stale, "is whole, but is not the one that the reference names"),
    Case("older one, told of as newer", "resume", _replayed, "is whole, but does not belong to .* step 4"),
    Case("older one, told of as newer", "verify", _replayed, "is whole, but does not belong to .* step 4"),
    Case("older one, told of as newer", "conduct", _replayed, "is whole"),
    Case(
        "pointer tells another step", "verify",
        lambda a: Checkpoint.from_json({**a.old.to_json(), "step": 8}), "is whole, but does not belong to",
    ),
    Case(
        "another training's", "resume", lambda a: a.seal(provenance={"training": "trainings/other-0"}),
        "training trainings/other-0",
    ),
    Case(
        "another training's, resealed as ours", "conduct",
        lambda a: a.edit("train.json", lambda t: t.update(dataset_id="d" * 64)), "is whole",
    ),
    Case("of another number of ranks", "resume", lambda a: a.seal(settings={"world_size": 2}), "world_size 2"),
    Case("a class that is not allowed", "rebuild", _class_path, "holds other settings than"),
    Case("a class that is not allowed", "conduct", _class_path, "is whole"),
]  # fmt: skip
