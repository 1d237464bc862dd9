"""A store with many runs, each of one of a dozen kinds, planted without a training; a package is in some of them.

A kind says with which version of the package its run worked, on which machine, and what it took over from others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.handoffs import Checkpoint, ModelVersion, Receipt, Ref
from data_contracts.records import InstalledPackage, InstalledPackages
from data_contracts.resolved import Resolved
from infra import audit, code_bundle
from infra.environments.packages import Packages
from infra.models import registry
from infra.records.nodes import note_earlier, note_packages
from infra.store import Store, layout

GOOD, BAD = "2.6.4", "2.6.2"
# Kinds whose run had the bad version, and those whose version of the model did.
RUNS = {"bad", "bad_node", "bad_earlier", "bad_code", "continued"}
VERSIONS = {*RUNS, "reuses_bad", "warm_from_bad", "resumes_bad", "seals_bad"}
NOT_KNOWN = {"silent", "damaged"}
# A move of an alias is many files; later versions stand beside the champion.
PROMOTED = 40
KINDS = (*sorted(VERSIONS), "good", "good_earlier", *sorted(NOT_KNOWN))


def installed(version: str, record: str = "a" * 64, name: str = "lightning") -> InstalledPackages:
    """An environment with a version of the package."""
    others = [InstalledPackage(name=f"p{n}", version="1.0", record=f"{n:064x}") for n in range(150)]
    return InstalledPackages(packages=[InstalledPackage(name=name, version=version, record=record), *others])


class Planted:
    """Plants runs; `runs` and `made` have them and their versions by kind.

    Args:
        resolved: the inputs of any run, for those of earlier versions.
    """

    def __init__(self, store: Store, folder: Path, resolved: Resolved) -> None:
        self.store, self.resolved = store, resolved
        self.runs: dict[str, list[str]] = {kind: [] for kind in KINDS}
        self.made: dict[str, list[tuple[str, int]]] = {kind: [] for kind in KINDS}
        self.checkpoints: dict[str, Checkpoint] = {}
        self._count = 0
        project = folder / "project"
        project.mkdir()
        (project / "net.py").write_text("x = 1\n")
        bad = f"lightning=={BAD}"
        self.bad_code = code_bundle.pack(project, store, packages=Packages((bad,), (bad,)))
        self.code = code_bundle.pack(project, store)

    def plant(self, kind: str) -> None:
        """One run that made a version of a model of its own."""
        self._count += 1
        run_id, n = f"20261128-101500-{self._count:06x}", self._count
        model = f"m{n % 20}"
        self.runs[kind].append(run_id)
        environments = self._record(kind, run_id)
        parents = [self.code.ref]
        about: dict[str, Any] = {"run_id": run_id, "actor": "ann", "environments": environments}
        checkpoint = None
        if kind == "reuses_bad":
            checkpoint = self.checkpoints["bad"]
        if kind == "warm_from_bad":
            parents.append(self.checkpoints["bad"].ref)
        if kind == "resumes_bad":
            launch = {"provenance": {"run_id": self.runs["bad"][-1]}}
            self.store.create_json(layout.launch(layout.training(f"k{n}", 0), 0), launch)
        if checkpoint is None:
            checkpoint = self._checkpoint(n, 1 if kind == "resumes_bad" else 0, parents, about)
            self.checkpoints[kind] = checkpoint
        evaluation = self._sealed(f"evaluations/k{n}-0", {"n": n}, [checkpoint.ref], about)
        provenance = self._about([checkpoint.ref, evaluation], about)
        version = registry.write_version(self.store, model, checkpoint, evaluation, {"n": n}, provenance)
        self.made[kind].append((model, version.version))
        if n <= PROMOTED:
            self._promote(version)

    def _record(self, kind: str, run_id: str) -> list[str]:
        """What the run leaves of its environments; returns the digests for its provenance."""
        if kind in ("bad_earlier", "good_earlier", "bad_code", "silent", "continued"):
            self._record_earlier(kind, run_id)
            if kind != "continued":
                return []
            note_earlier(self.store, run_id)  # by this version, with packages that are good again
            return [note_packages(self.store, run_id, installed(GOOD))]
        self.store.create_json(layout.resolved(run_id), {"name": run_id})
        if kind == "damaged":
            name = note_packages(self.store, run_id, installed(GOOD, name="damaged"))
            self.store.forget(layout.environment(name))
            return [name]
        own = note_packages(self.store, run_id, installed(BAD if kind == "bad" else GOOD))
        if kind == "bad_node":
            note_packages(self.store, run_id, installed(BAD, "b" * 64, name="Lightning"))
        # A mark was deleted; what the run sealed still says it.
        return [note_packages(self.store, self.runs["bad"][-1], installed(BAD))] if kind == "seals_bad" else [own]

    def _record_earlier(self, kind: str, run_id: str) -> None:
        version = BAD if kind in ("bad_earlier", "continued") else GOOD
        code = self.bad_code if kind == "bad_code" else self.code
        lock = [f"lightning=={version}", f"torch==2.13.{self._count if kind == 'silent' else 0}"]
        more = {"run_id": run_id, "code": code.ref, "code_digest": code.digest}
        resolved = self.resolved.model_copy(update={**more, "lock_digest": audit.lock_digest(lock)})
        self.store.create_json(layout.resolved(run_id), resolved.to_json())
        if kind != "silent":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(audit, "lock", lambda: lock)
                registry.seal_recipe(self.store, resolved, {"run_id": run_id})

    def _checkpoint(self, n: int, generation: int, parents: list[Ref], about: dict[str, Any]) -> Checkpoint:
        training = layout.training(f"k{n}", 0)
        facts = [{"training": training, "generation": one} for one in range(generation + 1)]
        more = {"training": training, "generation": generation, "generations": facts}
        ref = self._sealed(layout.checkpoint(training, 10, generation), {"n": n}, parents, {**about, **more})
        shape = {"step": 10, "epoch": 1, "generation": generation, "world_size": 1}
        return Checkpoint(ref=ref, key=f"k{n}", training=training, **shape)

    def _sealed(self, uri: str, settings: dict[str, Any], parents: list[Ref], about: dict[str, Any]) -> Ref:
        return self.store.writer(uri).seal("part", settings, self._about(parents, about), files=[])

    def _about(self, parents: list[Ref], about: dict[str, Any]) -> dict[str, Any]:
        return {**about, "parents": [one.to_json() for one in parents]}

    def _promote(self, version: ModelVersion) -> None:
        current = registry.read_alias(self.store, version.name, "champion")
        receipt = Receipt(
            decision="promoted", model=version.name, alias="champion", version=version.version,
            previous=current and current[1], candidate=version.ref, evaluation=version.evaluation, sentence="promoted",
        )  # fmt: skip
        registry.move_alias(self.store, current and current[0], version, receipt, {"run_id": "r", "actor": "ann"}, ())
