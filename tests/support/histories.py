"""Histories of a store in small: runs, datasets added to one another, trainings, versions, aliases, and what was left.

Each part notes here, apart from the code under test, what it names and how old it is, so that a test can tell what
must stay.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_contracts.handoffs import Checkpoint, Receipt, Ref
from infra.gang.ledger import Ledger
from infra.models import registry
from infra.store import Lease, Store, layout

DAY_S = 86_400
OLD_S, RECENT_S, YOUNG_S = 90 * DAY_S, 3 * DAY_S, 60


@dataclass
class Part:
    """A directory of the store. `names`: URIs of parts; `lasts`: kept for a month, not only for a day."""

    uri: str
    age_s: float
    names: list[str] = field(default_factory=list)
    root: bool = False
    lasts: bool = True
    sealed: bool = True


class History:
    """Grows a store. `age_s` of each part is written into the times of its files."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.parts: dict[str, Part] = {}
        self.refs: dict[str, Ref] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self._count = 0

    def sealed(self, area: str, age_s: float, *parents: str, elsewhere: str | None = None) -> str:
        """A sealed dataset, contract, evaluation, bundle or import; a shard of it may lie `elsewhere`."""
        uri = f"{area}/{'c' * 40}{self._next()}" + ("" if area in ("code", "imports") else "-0")
        writer = self.store.writer(uri)
        writer.put("part-0", os.urandom(50))
        if elsewhere is not None:
            writer.put("handoff.json", json.dumps({"splits": {"train": [{"uri": elsewhere}, {"uri": ""}]}}).encode())
        told = [self.refs[parent].to_json() for parent in parents]
        self.refs[uri] = writer.seal(area, {"n": self._count}, {"parents": told})
        return self._note(Part(uri, age_s, [*parents, *([elsewhere] if elsewhere else [])]))

    def unsealed(self, area: str, age_s: float) -> str:
        """An attempt that nobody finished."""
        uri = f"{area}/{'d' * 40}{self._next()}-0"
        self.store.writer(uri).put("part-0", b"half")
        return self._note(Part(uri, age_s, lasts=False, sealed=False))

    def training(
        self, age_s: float, dataset: str, code: str, *, run: str = "", done: bool = True, dead: int = 0
    ) -> str:
        """A training of two generations with two committed checkpoints, and `dead` ones that were never committed."""
        uri = f"trainings/{'e' * 40}{self._next()}-0"
        parents = [dataset, code]
        about = {"parents": [self.refs[one].to_json() for one in parents], "run_id": run.partition("/")[2]}
        for generation in (0, 1):
            told = {"dataset": self.refs[dataset].to_json(), "provenance": about}
            self.store.create_json(layout.launch(uri, generation), told)
            self.store.create(layout.beat(uri, generation, 0, 0), b"{}")
        ledger = Ledger(self.store, uri, 0)
        for step in (5, 10):
            checkpoint = self._checkpoint(uri, step, 1, about)
            ledger.commit(checkpoint)
            self.checkpoints[uri] = checkpoint
        for number in range(dead):
            at = self._checkpoint(uri, 100 + number, 0, about).ref.uri
            self._note(Part(at, age_s, [uri, *parents], lasts=False))
        Lease.take(self.store, layout.lease(uri), "a conductor").release()
        if done:
            self.store.create_json(layout.result(uri), self.checkpoints[uri].to_json())
        committed = [one.ref.uri for one in ledger.checkpoints]
        for one in committed:
            self._note(Part(one, age_s, [uri, *parents], lasts=False))
        return self._note(Part(uri, age_s, [*committed, *parents], sealed=False))

    def version(self, age_s: float, training: str, evaluation: str, model: str = "m") -> registry.ModelVersion:
        """A model version, which is a root whatever its age."""
        checkpoint, judged = self.checkpoints[training], self.refs[evaluation]
        made = registry.write_version(self.store, model, checkpoint, judged, {"n": self._next()}, {"parents": []})
        self._note(Part(made.ref.uri, age_s, [checkpoint.ref.uri, training, evaluation], root=True))
        return made

    def promote(self, age_s: float, version: registry.ModelVersion) -> None:
        """Move the alias to a version."""
        held = registry.read_alias(self.store, version.name, "champion")
        receipt = Receipt(
            decision="promoted", model=version.name, alias="champion", version=version.version, previous=None,
            candidate=version.ref, evaluation=version.evaluation, sentence="",
        )  # fmt: skip
        moved = registry.move_alias(self.store, held and held[0], version, receipt, {"run_id": "r"}, ())
        self._note(Part(moved.ref.uri, age_s, [version.ref.uri, version.evaluation.uri], root=True))

    def run(self, age_s: float, code: str, stages: dict[str, str], *, exit_code: int | None = 0) -> str:
        """A run whose stages made or reused parts; `exit_code` None: nobody knows how it ended."""
        run_id = f"20260101-000000-{self._next():06d}"
        uri = layout.run(run_id)
        self.store.create_json(layout.resolved(run_id), {"code": self.refs[code].to_json(), "champion": None})
        for name, part in stages.items():
            ref = self.checkpoints[part].ref if part in self.checkpoints else self.refs[part]
            self.store.create_json(layout.stage(run_id, name), {"name": name, "id": ref.id, "reused_from": None})
        self.store.create_json(layout.trigger(f"key-{run_id}"), {"run_id": run_id})
        if exit_code is not None:
            path = layout.run_attempt(run_id, 0) if exit_code else layout.report(run_id)
            self.store.create_json(path, {"exit_code": exit_code})
        names = [
            code,
            *stages.values(),
            *(self.checkpoints[p].ref.uri for p in stages.values() if p in self.checkpoints),
        ]
        root = exit_code in (None, 5, 7, 9, 130)
        return self._note(Part(uri, age_s, names, root=root, sealed=False))

    def began(self, run: str, training: str) -> None:
        """Note that a training carries this run's id."""
        self.parts[run].names.append(training)

    def ageing(self) -> None:
        """Give every file the age of the innermost part that it lies in, and the rest that of a trigger's run."""
        now = time.time()
        by_length = sorted(self.parts.values(), key=lambda part: -len(part.uri))
        for path in Path(self.store.uri).rglob("*"):
            name = str(path.relative_to(self.store.uri))
            if path.is_file() and not name.startswith("."):
                part = next((one for one in by_length if name.startswith(f"{one.uri}/")), None)
                at = now - (part.age_s if part else OLD_S)
                os.utime(path, (at, at))

    def stay(self, keep_s: float, grace_s: float) -> set[str]:
        """What must stay, by its own account."""
        found: set[str] = set()
        young = [p for p in self.parts.values() if p.root or p.age_s < (max(keep_s, grace_s) if p.lasts else grace_s)]
        waiting = [part.uri for part in young]
        while waiting:
            uri = waiting.pop()
            if uri not in found:
                found.add(uri)
                waiting += self.parts[uri].names
        return found

    def there(self) -> set[str]:
        """The parts of which any file is left."""
        return {uri for uri in self.parts if self.store.stored(uri)}

    def check(self, stay: set[str]) -> None:
        """All that must stay is whole, to the byte."""
        for uri in sorted(stay):
            part = self.parts[uri]
            assert self.store.stored(uri), f"{uri} is gone"
            if part.sealed:
                self.store.verify(uri)
        for model, alias, _ in registry.aliases(self.store):
            assert registry.history(self.store, model, alias)

    def _checkpoint(self, training: str, step: int, generation: int, about: dict[str, Any]) -> Checkpoint:
        writer = self.store.writer(layout.checkpoint(training, step, generation))
        writer.put("weights-0.safetensors", os.urandom(40))
        ref = writer.seal("checkpoint", {"step": step}, about)
        fields = {"training": training, "step": step, "epoch": 0, "generation": generation, "world_size": 1}
        return Checkpoint(ref=ref, key="k", **fields)

    def _note(self, part: Part) -> str:
        self.parts[part.uri] = part
        return part.uri

    def _next(self) -> int:
        self._count += 1
        return self._count
