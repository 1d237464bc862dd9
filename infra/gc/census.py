"""The census of a store: every part that stays or goes as a whole, how old it is, and what it names."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from blake3 import blake3

from data_contracts.canonical import digest
from data_contracts.errors import CorruptError, Interrupted, OverBudget
from infra import registry
from infra.gc.things import Kind, Thing
from infra.store import Manifest, Store, layout
from infra.store.backend import Stored
from infra.store.store import day_end_s

SEALED: dict[str, Kind] = {
    "contracts": "contract",
    "datasets": "dataset",
    "evaluations": "evaluation",
    "code": "code",
    "imports": "import",
}
# Files of a sealed directory that name others, beside its manifest.
_TELLING = ("handoff.json", "receipt.json", "train.json")
_NAME = re.compile(rf"[0-9a-f]{{64}}|({'|'.join([*SEALED, 'models', 'trainings', 'runs', 'triggers'])})/.+")
# A run that ended so can be gone on with; one that failed otherwise is over.
_GOES_ON = (Interrupted.exit_code, OverBudget.exit_code, 9, 130)


def take_census(store: Store) -> list[Thing]:
    """Everything that `infra.gc.things` decides about.

    Raises: UsageError for a newer schema. What cannot be read is listed as broken.
    """
    return _Census(store).things()


def names_in(value: Any) -> frozenset[str]:
    """All texts in a JSON value that can be a URI below the store's root, or an id."""
    return frozenset(text for text in _texts(value) if _NAME.fullmatch(text))


class _Census:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.files: dict[str, list[Stored]] = defaultdict(list)
        self.claims: dict[str, float] = {}
        # The trainings that a run began, by the run's URI: the run itself names only what it has finished.
        self.begun: dict[str, set[str]] = defaultdict(set)
        for file in store.stored():
            area, _, rest = file.path.partition("/")
            if area == "uses":
                uri, _, day = rest.rpartition("/")
                self.claims[uri] = max(self.claims.get(uri, 0.0), day_end_s(day))
            else:
                self.files[area].append(file)
        self.tombstones = {file.path for file in self.files["tombstones"]}

    def things(self) -> list[Thing]:
        return [*self._sealed(), *self._registry(), *self._trainings(), *self._runs()]

    def _sealed(self) -> Iterator[Thing]:
        for area, kind in SEALED.items():
            for uri, files in _by_folder(self.files[area], 2).items():
                yield self._directory(uri, kind, files)

    def _registry(self) -> Iterator[Thing]:
        for uri, files in _by_folder(self.files["models"], 3).items():
            yield self._directory(uri, "model", files, root="a model version")
        for uri, files in _by_folder(self.files["aliases"], 5).items():
            yield self._directory(uri, "receipt", files, root="an alias' history")
        for model, alias, _ in registry.aliases(self.store):
            held = registry.read_alias(self.store, model, alias)
            names = names_in(held[0].value if held else None)
            yield Thing(layout.alias(model, alias), "alias", 0, 0.0, names=names, root="an alias")

    def _directory(self, uri: str, kind: Kind, files: list[Stored], root: str = "") -> Thing:
        """A directory that is sealed in the end, with what its manifest and its telling files name."""
        present = {file.path for file in files}
        about: dict[str, Any] = {"uri": uri, "kind": kind, "bytes": _bytes(files), "root": root}
        about["touched_s"] = self._touched(uri, files)
        if layout.manifest(uri) not in present:
            return Thing(**about, whole=False)
        try:
            manifest = self.store.manifest(uri)
            names = names_in([manifest.content, manifest.provenance, *self._told(manifest)])
        except FileNotFoundError:  # deleted meanwhile
            return Thing(**about, whole=False)
        except CorruptError as error:
            identity = self._salvaged_id(uri)
            # Whether anything names it by its id cannot be told without one.
            about["root"] = root if identity else root or "it cannot be read"
            return Thing(**about, id=identity, broken=error.message)
        return Thing(**about, id=manifest.id, names=names)

    def _salvaged_id(self, uri: str) -> str:
        """The id of a directory with a broken manifest, if the damage lies elsewhere in it; else ""."""
        try:
            told = json.loads(self.store.read(layout.manifest(uri)))
            return str(told["id"]) if digest(told["content"]) == told["id"] else ""
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return ""

    def _told(self, manifest: Manifest) -> Iterator[Any]:
        for entry in manifest.files:
            if entry.path in _TELLING:
                path = f"{manifest.uri}/{entry.path}"
                data = self.store.read(path)
                if blake3(data).hexdigest() != entry.blake3:
                    raise CorruptError(f"{path} does not hold the bytes that were sealed.", details={"file": path})
                yield json.loads(data)

    def _trainings(self) -> Iterator[Thing]:
        for uri, files in _by_folder(self.files["trainings"], 2).items():
            yield from self._training(uri, files)

    def _training(self, uri: str, files: list[Stored]) -> Iterator[Thing]:
        present = {file.path for file in files}
        # Not its lease: a collection that was cut off had taken it. Whoever deletes a training takes it again.
        touched_s = self._touched(uri, [file for file in files if file.path != layout.lease(uri)])
        about: dict[str, Any] = {"uri": uri, "kind": "training", "bytes": _bytes(files), "touched_s": touched_s}
        launches = [path for path in present if path.startswith(f"{uri}/g") and path.endswith("/launch.json")]
        records = [path for path in (layout.result(uri),) if path in present] + launches
        try:
            latest = self.store.pointer(layout.latest(uri)).read()
            value = {"checkpoints": []} if latest is None else latest.value
            committed = [*value["checkpoints"], *(one["checkpoint"] for one in value.get("aside", []))]
            told = [json.loads(self.store.read(path)) for path in records]
        except (CorruptError, ValueError, KeyError, TypeError) as error:
            yield Thing(**about, broken=f"{uri}: its records cannot be read ({type(error).__name__}: {error}).")
            return
        except FileNotFoundError:  # being deleted
            yield Thing(**about, whole=False)
            return
        done = layout.result(uri) in present
        for one in told:
            self.begun[f"runs/{(one.get('provenance') or {}).get('run_id')}"].add(uri)
        names = names_in([committed, told])
        yield Thing(**about, names=names, whole=done or bool(committed))
        newest = max((_generation(path) for path in launches), default=-1)
        for folder, inside in _by_folder(files, 4).items():
            name = folder.rpartition("/")[2]
            if folder.startswith(f"{layout.checkpoints(uri)}/"):
                generation = int(name.rpartition("-g")[2]) if name.rpartition("-g")[2].isdecimal() else newest
                # What the newest generation of an unfinished training has not committed, it may still commit.
                if folder in names or done or generation < newest:
                    thing = self._directory(folder, "checkpoint", inside)
                    yield replace(thing, names=thing.names | {uri})
            elif name.startswith("node-") and (done or _generation(folder) < newest):
                yield Thing(folder, "log", _bytes(inside), self._touched(folder, inside))

    def _runs(self) -> Iterator[Thing]:
        """Runs and their triggers."""
        triggers: dict[str, set[str]] = defaultdict(set)
        for file in self.files["triggers"]:
            run = self._record(file.path).get("run_id", "")
            triggers[f"runs/{run}"].add(file.path)
            named = frozenset({f"runs/{run}"})
            yield Thing(file.path, "trigger", file.bytes, file.written_s, names=named)
        for uri, files in _by_folder(self.files["runs"], 2).items():
            yield self._run(uri, files, frozenset(self.begun[uri] | triggers[uri]))

    def _run(self, uri: str, files: list[Stored], more: frozenset[str]) -> Thing:
        run_id = uri.partition("/")[2]
        present = {file.path for file in files}
        about: dict[str, Any] = {
            "uri": uri,
            "kind": "run",
            "bytes": _bytes(files),
            "touched_s": self._touched(uri, files),
        }
        if layout.resolved(run_id) not in present:
            return Thing(**about, names=more, whole=False)
        records = {path: self._record(path) for path in sorted(present) if path.endswith(".json")}
        broken = next((f"{path} is not JSON." for path, value in records.items() if not value), "")
        attempts = [path for path in records if path.startswith(f"{layout.run_attempts(run_id)}/")]
        last = max(attempts, key=lambda path: (len(path), path), default="")
        over = layout.report(run_id) in records or (last and records[last].get("exit_code") not in _GOES_ON)
        # One that is half deleted may have lost its report.
        deleted = layout.tombstone(uri) in self.tombstones
        root = "" if over or deleted else "a run that can be gone on with"
        return Thing(**about, names=names_in(records) | more, root=root, broken=broken)

    def _record(self, path: str) -> dict[str, Any]:
        """A small JSON file; {} for what is none, or is gone."""
        try:
            value = json.loads(self.store.read(path))
        except (FileNotFoundError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def _touched(self, uri: str, files: list[Stored]) -> float:
        return max([self.claims.get(uri, 0.0), *(file.written_s for file in files)])


def _by_folder(files: Iterable[Stored], depth: int) -> dict[str, list[Stored]]:
    """Files by the folder `depth` levels below the root that holds them; those higher up are left out."""
    found: dict[str, list[Stored]] = defaultdict(list)
    for file in files:
        parts = file.path.split("/")
        if len(parts) > depth:
            found["/".join(parts[:depth])].append(file)
    return found


def _bytes(files: Iterable[Stored]) -> int:
    return sum(file.bytes for file in files)


def _generation(path: str) -> int:
    name = path.split("/")[2]
    return int(name[1:]) if name[1:].isdecimal() else -1


def _texts(value: Any) -> Iterator[str]:
    waiting: list[Any] = [value]
    take: dict[type, Callable[[Any], None]] = {
        dict: lambda one: waiting.extend([*one.keys(), *one.values()]),
        list: lambda one: waiting.extend(one),
    }
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif type(one) in take:
            take[type(one)](one)
