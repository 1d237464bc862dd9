"""`affected` lists exactly what was made with a package, and says of what it does not know."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from data_contracts.resolved import Resolved
from flows.cli import main
from infra.models import registry
from infra.records.nodes import note_packages
from infra.store import Store, open_store
from tasks.queries.affected import Affected, AffectedVersion, affected
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tasks.stages.rollback import release, rollback
from tests.support.planted_runs import BAD, KINDS, NOT_KNOWN, RUNS, VERSIONS, Planted, installed
from tests.support.s3 import S3Server
from tests.support.tiny import write_project

SPELLINGS = (f"lightning=={BAD}", "Lightning==2.6.2.0", "lightning>=2.6.2,<2.6.4", "LIGHTNING<2.6.4")


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
    runs = planted(store, tmp_path, resolved, len(KINDS))
    check(runs, affected(store, f"lightning=={BAD}"))


def test_names_and_versions_are_compared_as_pip_does(tmp_path: Path, home: Path, resolved: Resolved) -> None:
    runs = planted(open_store(str(tmp_path / "store")), tmp_path, resolved, len(KINDS))
    for spelling in SPELLINGS:
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
    tmp_path: Path, home: Path, resolved: Resolved, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(tmp_path / "store"))
    runs = Planted(store, tmp_path, resolved)
    for _ in range(21):  # 20 models in turn: the last is of the model of the first
        runs.plant("bad" if not runs.runs["bad"] else "good")
    [(model, bad)], champion = runs.made["bad"], runs.made["good"][-1]
    arguments = ["affected", f"lightning=={BAD}", "--store", store.uri, "--hold", "--json"]
    assert main(arguments) == 2
    assert "--reason" in json.loads(capsys.readouterr().out)["error"]["message"]
    for sentences in (1, 0):
        assert main([*arguments, "--reason", "malicious"]) == 0
        [answer] = json.loads(capsys.readouterr().out)["stores"]
        assert [one["version"] for one in answer["versions"]] == [bad]
        assert len(answer["held"]) == sentences
    current = registry.read_alias(store, model, "champion")
    assert current is not None
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
    tmp_path: Path, home: Path, resolved: Resolved, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(tmp_path / "store"))
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
    assert main(["affected", "lightning", "--store", store.uri]) == 0
    shown = f"  run      x\\nall clear: lightning {BAD} (RECORD {'a' * 12})"
    assert shown in capsys.readouterr().out.splitlines()
