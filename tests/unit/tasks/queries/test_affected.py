"""`affected` lists exactly what was made with a package, and says of what it does not know."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.handoffs import Checkpoint, ModelVersion, Receipt, Ref
from data_contracts.records import InstalledPackage, InstalledPackages
from data_contracts.resolved import Resolved
from flows.cli import main
from infra import audit, code_bundle
from infra.environments.packages import Packages
from infra.models import registry
from infra.records.nodes import note_earlier, note_packages
from infra.store import Store, layout, open_store
from tasks.queries.affected import Affected, AffectedVersion, affected
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tasks.stages.rollback import release, rollback
from tests.support.commands import json_of, output_of
from tests.support.s3 import S3Server
from tests.support.tiny import write_project

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
        parents = [self.code.ref]
        about: dict[str, Any] = {"run_id": run_id, "actor": "ann", "environments": self._record(kind, run_id)}
        if kind == "warm_from_bad":
            parents.append(self.checkpoints["bad"].ref)
        if kind == "resumes_bad":
            launch = {"provenance": {"run_id": self.runs["bad"][-1]}}
            self.store.create_json(layout.launch(layout.training(f"k{n}", 0), 0), launch)
        if kind != "reuses_bad":
            self.checkpoints[kind] = self._checkpoint(n, int(kind == "resumes_bad"), parents, about)
        checkpoint = self.checkpoints["bad" if kind == "reuses_bad" else kind]
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


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> Resolved:
    folder = tmp_path_factory.mktemp("resolved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWRIGHT_HOME", str(folder / "home"))
        return open_run(read_spec(write_project(folder / "tiny")), recorded=False).resolved


def planted(store: Store, folder: Path, resolved: Resolved, num_runs: int) -> Planted:
    """Runs of every kind in turn; the first is bad, because others take over from it."""
    runs = Planted(store, folder, resolved)
    for n in range(num_runs):
        runs.plant(KINDS[n % len(KINDS)])
    return runs


def check(runs: Planted, found: Affected) -> None:
    """The answer has exactly the runs of the bad kinds, and what was made with them."""

    def versions_of(kinds: set[str]) -> set[tuple[str, int]]:
        return {made for kind in kinds for made in runs.made[kind]}

    assert set(found.runs) == {run_id for kind in RUNS for run_id in runs.runs[kind]}
    assert set(found.unknown_runs) == {run_id for kind in NOT_KNOWN for run_id in runs.runs[kind]}
    assert {(one.model, one.version) for one in found.versions} == versions_of(VERSIONS)
    assert {(one.model, one.version) for one in found.unknown_versions} == versions_of(NOT_KNOWN)
    assert set(found.aliases) == {
        one for one in registry.aliases(runs.store) if (one[0], one[2]) in versions_of(VERSIONS)
    }


def test_of_200_runs_exactly_those_that_were_made_with_it_are_listed(
    tmp_path: Path, home: Path, resolved: Resolved
) -> None:
    runs = planted(open_store(str(tmp_path / "store")), tmp_path, resolved, 200)
    check(runs, affected(runs.store, f"lightning=={BAD}"))


def test_a_store_on_s3_gives_the_same_answer(
    s3_server: S3Server, tmp_path: Path, home: Path, resolved: Resolved
) -> None:
    store = open_store(f"s3://{s3_server.bucket()}/prefix", s3_server.options)
    check(planted(store, tmp_path, resolved, len(KINDS)), affected(store, f"lightning=={BAD}"))


def test_names_and_versions_are_compared_as_pip_does(tmp_path: Path, home: Path, resolved: Resolved) -> None:
    runs = planted(open_store(str(tmp_path / "store")), tmp_path, resolved, len(KINDS))
    for spelling in (f"lightning=={BAD}", "Lightning==2.6.2.0", "lightning>=2.6.2,<2.6.4", "LIGHTNING<2.6.4"):
        check(runs, affected(runs.store, spelling))
    [one] = runs.runs["bad_node"]
    assert affected(runs.store, "lightning<2.6.4").runs[one] == (f"Lightning {BAD} (RECORD {'b' * 12})",)
    for elsewhere in ("lightning==2.6.3", "fabric", "p1==2"):
        nothing = affected(runs.store, elsewhere)
        assert (nothing.runs, nothing.versions, nothing.aliases) == ({}, [], [])
        assert len(nothing.unknown_runs) == len(NOT_KNOWN)
    assert len(affected(runs.store, "lightning").runs) == len(KINDS) - len(NOT_KNOWN)


@pytest.mark.parametrize("version", ["", "unknown", "2.6.2-of-a-fork"])
def test_a_version_that_cannot_be_compared_may_be_the_one_that_is_meant(version: str, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    note_packages(store, "run-1", installed(version))
    assert [list(affected(store, text).runs) for text in (f"lightning=={BAD}", "p1==2")] == [["run-1"], []]


@pytest.mark.parametrize("text", ["", "lightning==", "lightning @ https://x/y.whl", "lightning[extra]==1", "a b"])
def test_what_is_not_a_package_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not the name of a package"):
        affected(open_store(str(tmp_path)), text)


def test_a_store_of_an_earlier_version_is_not_known(tmp_path: Path, home: Path, repository: Path) -> None:
    shutil.copytree(repository / "tests/golden/store-v1/store", tmp_path / "store")
    found = affected(open_store(str(tmp_path / "store"), create=False), f"lightning=={BAD}")
    assert (found.runs, found.versions) == ({}, [])
    assert len(found.unknown_runs) == len(list((tmp_path / "store/runs").iterdir())) > 0
    assert {one.version for one in found.unknown_versions} == {1, 2}


def test_hold_keeps_affected_versions_from_every_alias_until_released(
    store: Store, tmp_path: Path, home: Path, resolved: Resolved, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Planted(store, tmp_path, resolved)
    for _ in range(21):  # 20 models in turn: the last is of the model of the first
        runs.plant("bad" if not runs.runs["bad"] else "good")
    [(model, bad)], champion = runs.made["bad"], runs.made["good"][-1]
    arguments = ["affected", f"lightning=={BAD}", "--store", store.uri, "--hold", "--json"]
    assert "--reason" in json_of(capsys, *arguments, code=2)["error"]["message"]
    for sentences in (1, 0):
        [answer] = json_of(capsys, *arguments, "--reason", "malicious")["stores"]
        assert ([one["version"] for one in answer["versions"]], len(answer["held"])) == ([bad], sentences)
    current = registry.read_alias(store, model, "champion")
    assert (model, current[1]) == champion
    [hold] = registry.holds(store, current[0])
    assert hold.checkpoint_id == runs.checkpoints["bad"].ref.id
    assert hold.sentence.endswith('("malicious")')
    assert f"made with lightning=={BAD}" in hold.sentence
    with pytest.raises(UsageError, match=f"on hold: {bad}"):
        rollback(store, model, "champion", None, {"actor": "ann"})
    release(store, model, "champion", bad, "checked", {"actor": "ann"})
    assert rollback(store, model, "champion", None, {"actor": "ann"}).version == bad


def test_the_answer_is_for_people_too(
    store: Store, tmp_path: Path, home: Path, resolved: Resolved, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Planted(store, tmp_path, resolved)
    for kind in ("bad", "silent"):
        runs.plant(kind)
    assert main(["affected", "lightning", "--store", store.uri]) == 0
    [bad], [silent] = runs.runs["bad"], runs.runs["silent"]
    assert capsys.readouterr().out.splitlines() == [
        f"{store.uri}:",
        "made with lightning: 1 aliases, 1 versions of models, 1 runs",
        "  alias    m1@champion is version 1",
        f"  version  m1@1: lightning {BAD} (RECORD {'a' * 12})",
        f"  run      {bad}: lightning {BAD} (RECORD {'a' * 12})",
        "not known: 1 versions of models, 1 runs",
        "  version  m2@1",
        f"  run      {silent}",
    ]
    one = AffectedVersion("m1", 1, runs.checkpoints["bad"].ref.id, (f"lightning {BAD} (RECORD {'a' * 12})",))
    assert affected(store, "lightning").versions == [one]
    for marks in (tmp_path / "store/environments").glob("*/runs"):
        (marks / "x\nall clear").touch()  # by another writer of the store
    assert (
        f"  run      x\\nall clear: lightning {BAD} (RECORD {'a' * 12})"
        in output_of(capsys, "affected", "lightning", "--store", store.uri).splitlines()
    )
