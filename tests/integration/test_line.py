"""The whole line through the command line, on a tiny pipeline: what a run promises, in the order people meet it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from data_contracts.executions import RunNames
from flows.stages import verbs
from infra.garbage import take_census
from infra.scrub import sealed_directories
from infra.store import layout, open_store
from tests.support.damage import overwrite
from tests.support.pool import Site, model_events, password_in, server_url, until
from tests.support.tiny import STAGES, answer, report_of, statuses, succeed, trainwright, write_project

pytestmark = pytest.mark.warm


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose first run has promoted version 1."""
    spec = write_project(tmp_path_factory.mktemp("tiny"))
    (spec.parent / "first.json").write_text(succeed("run", spec, "--json").stdout)
    return spec.parent


def test_the_first_run_promotes(project: Path) -> None:
    report = json.loads((project / "first.json").read_text())
    assert report["verdict"] == "promoted"
    assert statuses(report) == dict.fromkeys(STAGES, "ran")
    assert [*statuses(report)] == [*verbs()], "the flow calls the stages in the order of LINE"
    assert all(stage["id"] and stage["seconds"] >= 0 for stage in report["stages"])
    assert report["model"] == {"name": "tiny", "version": 1, "alias": "champion"}
    assert report["metrics"]["accuracy"] >= 0.8
    assert report["cost"]["node_seconds"] > 0
    assert len(report["dataset_id"]) == len(report["checkpoint_id"]) == 64


def test_gc_finds_in_one_record_what_all_records_of_the_run_name(project: Path, tmp_path: Path) -> None:
    store = open_store(str(shutil.copytree(project / ".trainwright", tmp_path / "store")), create=False)
    [run_id], [trigger] = store.list(layout.runs()), store.list("triggers")
    [noted] = [one.names for one in take_census(store) if one.kind == "run"]
    path = layout.run_names(run_id, 0)
    covers = store.read_as(path, RunNames.from_json).covers
    files = {file.path for file in store.stored(layout.run(run_id)) if file.path.endswith(".json")} - {path}
    assert {one for one in files if not layout.is_superseded(one, files)} | {f"triggers/{trigger}"} == covers.keys()
    store.forget(path)
    [unnoted] = [one.names for one in take_census(store) if one.kind == "run"]
    assert unnoted <= noted
    assert {store.manifest(one).id for one in sealed_directories(store) if one.startswith("datasets/")} <= noted


def test_the_same_again_reuses_everything_and_is_unchanged(project: Path) -> None:
    first = json.loads((project / "first.json").read_text())
    report = report_of(project / "pipeline.yaml")
    assert (report["exit_code"], report["verdict"]) == (0, "unchanged")
    assert statuses(report) == dict.fromkeys(STAGES, "reused")
    assert all(stage["reused_from"] for stage in report["stages"])
    assert report["cost"]["node_seconds"] == 0
    assert (report["dataset_id"], report["checkpoint_id"]) == (first["dataset_id"], first["checkpoint_id"])
    assert len(list((project / ".trainwright" / "trainings").iterdir())) == 1


def test_a_worse_setting_is_trained_and_not_promoted(project: Path) -> None:
    worse = "train.lightning.model.init_args.lr=0.0000001"
    for expected in ("ran", "reused"):
        report = report_of(project / "pipeline.yaml", "--set", worse)
        assert (report["exit_code"], report["verdict"]) == (4, "not_promoted")
        assert statuses(report)["train"] == expected
        assert "on the same" in report["sentence"]
        assert "loses" in report["sentence"]
        assert report["model"] == {"name": "tiny", "version": 1, "alias": "champion"}


def test_verdicts_are_events_of_the_model(project: Path, tmp_path: Path, state_folder: Path) -> None:
    site = Site(server_url(), tmp_path / "site", password_in(state_folder / "home"))
    runs = [path.name for path in (project / ".trainwright" / "runs").iterdir()]

    def of_these() -> list[dict[str, Any]]:
        return [one for one in model_events(site, "tiny") if one["payload"].get("run_id") in runs]

    until(lambda: len(of_these()) >= 3, what=of_these)  # the server stores an event some time after it took it
    about = of_these()
    site.close()
    kinds = [one["event"].removeprefix("trainwright.model.") for one in sorted(about, key=lambda one: one["occurred"])]
    assert kinds == ["promoted", "not_promoted", "not_promoted"]
    assert {one["prefect.resource.role"] for one in about[0]["related"]} == {"flow-run", "pipeline"}


def test_broken_data_is_rejected_with_column_count_and_examples(project: Path) -> None:
    bad = project / "bad.csv"
    lines = (project / "rows.csv").read_text().splitlines()
    lines[3] = "2,17.5,0.1,0.1,1"
    lines[9] = "8,-3.25,0.1,0.1,1"
    bad.write_text("\n".join(lines) + "\n")
    report = report_of(project / "pipeline.yaml", "--set", "data.source=bad.csv")
    assert (report["exit_code"], report["verdict"]) == (3, "rejected")
    assert statuses(report) == {"validate": "rejected"}
    for word in ("expect_column_values_to_be_between", "on a", "2 of 600 rows", "17.5", "-3.25"):
        assert word in report["sentence"]


def test_plan_says_what_would_be_reused_and_why_not(project: Path) -> None:
    same = answer(trainwright("plan", project / "pipeline.yaml", "--json"))["stages"]
    assert {step["name"]: step["action"] for step in same} == dict.fromkeys(STAGES, "reuse")
    plan = answer(trainwright("plan", project / "pipeline.yaml", "--set", "train.seed=8", "--json"))
    changed, estimate = plan["stages"], plan["estimate"]
    actions = {step["name"]: step["action"] for step in changed}
    assert actions == {**dict.fromkeys(STAGES, "run"), "validate": "reuse", "shard": "reuse"}
    assert "train.seed" in next(step["why"] for step in changed if step["name"] == "train")
    [need] = estimate["memory"]["strategies"]
    # 82 parameters with gradients and Adam's state, and the activations of 32 rows.
    assert 82 * 16 < need["per_device_bytes"] < 82 * 16 + 32 * 100 * 4
    times = {one["stage"]: one["time_s"] for one in estimate["stages"]}
    assert list(times) == ["train", "verify", "evaluate", "promote", ""]
    assert all(time is not None for time in times.values()), "the first run of the project is a past run"
    assert estimate["time"]["run_least_s"] <= estimate["time"]["run_s"] <= estimate["time"]["run_most_s"]


def test_show_status_and_prove_agree(project: Path) -> None:
    store = project / ".trainwright"
    shown = answer(trainwright("show", "tiny@champion", "--store", store, "--json"))
    assert (shown["name"], shown["version"], shown["alias"]) == ("tiny", 1, "champion")
    first = json.loads((project / "first.json").read_text())
    assert answer(trainwright("show", first["run_id"], "--store", store, "--json")) == first
    status = answer(trainwright("status", "--store", store, "--json"))
    assert status["stores"][0]["models"] == [{"name": "tiny", "alias": "champion", "version": 1}]
    proof = answer(trainwright("prove", "tiny@champion", "--store", store, "--json"))
    kinds = {link["kind"] for link in proof["links"]}
    assert {"model", "checkpoint", "dataset", "contract", "evaluation", "code", "receipt"} <= kinds
    assert proof["raw_checked"] == [str(project / "rows.csv")]
    assert proof["gone"] == []


def test_the_tags_of_the_spec_are_in_every_manifest(project: Path) -> None:
    manifests = list((project / ".trainwright").rglob("manifest.json"))
    assert len(manifests) >= 6
    for path in manifests:
        assert json.loads(path.read_text())["provenance"]["tags"] == {"team": "tests"}, path


def test_a_changed_byte_anywhere_is_named_by_prove(project: Path) -> None:
    store = project / ".trainwright"
    proof = answer(trainwright("prove", "tiny@champion", "--store", store, "--json"))
    for link in proof["links"]:
        path = max((p for p in (store / link["uri"]).rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
        original = path.read_bytes()
        overwrite(path, original[:-1] + bytes([original[-1] ^ 1]))
        try:
            done = trainwright("prove", "tiny@champion", "--store", store)
        finally:
            overwrite(path, original)
        assert done.returncode == 6, (link, done.stderr)
        assert path.name in done.stderr, (path, done.stderr)


def test_a_changed_raw_file_exits_6_and_a_missing_one_is_listed(project: Path) -> None:
    raw, store = project / "rows.csv", project / ".trainwright"
    original = raw.read_bytes()
    try:
        raw.write_bytes(original.replace(b"0", b"1", 1))
        done = trainwright("prove", "tiny@champion", "--store", store)
        assert (done.returncode, "rows.csv" in done.stderr) == (6, True)
        raw.unlink()
        done = trainwright("prove", "tiny@champion", "--store", store, "--json")
        assert (done.returncode, answer(done)["gone"]) == (0, [str(raw)])
    finally:
        raw.write_bytes(original)


@pytest.mark.slow
def test_rollback_moves_the_alias_back(tmp_path: Path, state_folder: Path) -> None:
    spec = write_project(tmp_path / "back", {"name": "back", "promote": {"model": "tiny-back"}})
    store = tmp_path / "back" / ".trainwright"
    for seed in (1, 2):
        gates = "promote.gates=[]"
        assert trainwright("run", spec, "--set", f"train.seed={seed}", "--set", gates).returncode == 0
    assert answer(trainwright("show", "tiny-back@champion", "--store", store, "--json"))["version"] == 2
    assert trainwright("rollback", "tiny-back@champion", "--store", store).returncode == 0
    shown = answer(trainwright("show", "tiny-back@champion", "--store", store, "--json"))
    assert (shown["version"], len(shown["history"])) == (1, 3)
    assert trainwright("rollback", "tiny-back@champion", "--store", store, "--to", "9").returncode == 2
    site = Site(server_url(), tmp_path / "site", password_in(state_folder / "home"))
    moved_back = "trainwright.model.rolled_back"
    [back] = until(lambda: [one for one in model_events(site, "tiny-back") if one["event"] == moved_back])
    site.close()
    assert back["resource"]["trainwright.name"] == "tiny-back@champion"
    assert (back["payload"]["version"], back["payload"]["previous"]) == (1, 2)
    away = {"PREFECT_API_URL": "http://127.0.0.1:9/api"}  # a rollback needs no server
    assert trainwright("rollback", "tiny-back", "--to", "2", "--store", store, env=away).returncode == 0
