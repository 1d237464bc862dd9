"""No sensitive value, secret or ignored file gets out, however a stage fails: canaries are planted and looked for.

Texts that saw rows stay in a file of mode 0600 below the state folder, which the sentence names.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flows.cli import parser
from tests.support.canaries import FOLDERS, SHARDS, Scene, files
from tests.support.tiny import SUITE, answer, trainwright
from tests.support.waiting import until

pytestmark = pytest.mark.warm

NOBODY = 65534
NOWHERE = "nowhere "


@dataclass(frozen=True)
class Case:
    """One way in which a stage fails.

    Attributes:
        origin: whose exception or words it is.
        fault: what the project's code does, and where; see tests/support/canaries.py.
        settings: of the spec, replaced.
        window: the command's `--window`.
        exit_code: of the command.
        named: whether a message names the file with the full text; with a fault, that holds a canary.
        sample: whether it runs by default; all run with --sweep.
    """

    stage: str
    origin: str
    fault: str = NOWHERE
    settings: tuple[tuple[str, Any], ...] = ()
    window: str = ""
    exit_code: int = 8
    named: bool = True
    sample: bool = False

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        return [] if self.sample else [pytest.mark.sweep]

    def __str__(self) -> str:
        return f"{self.stage}-{self.origin}".replace(" ", "-")


def expecting(kind: str, **kwargs: Any) -> tuple[tuple[str, Any], ...]:
    one = {"type": kind, "kwargs": kwargs}
    return (("contract.suite", {**SUITE, "expectations": [*SUITE["expectations"], one]}),)


def reading(*names: str) -> tuple[tuple[str, Any], ...]:
    return (("data.source", [{"uri": name} for name in names]),)


def split(**section: Any) -> tuple[tuple[str, Any], ...]:
    return (("shards.split", section),)


CASES = [
    Case(
        "validate",
        "gx rejects",
        settings=expecting("expect_column_values_to_be_in_set", column="name", value_set=["x"]),
        exit_code=3,
        named=False,
    ),
    Case(
        "validate",
        "gx cannot compute",
        settings=expecting("expect_column_mean_to_be_between", column="name", min_value=0, max_value=1),
        exit_code=3,
        sample=True,
    ),
    Case(
        "validate",
        "gx compares kinds",
        settings=expecting("expect_column_values_to_be_between", column="name", min_value=0),
        exit_code=3,
        named=False,
    ),
    Case(
        "validate",
        "gx on two columns",
        settings=expecting("expect_column_pair_values_a_to_be_greater_than_b", column_A="name", column_B="id"),
        exit_code=3,
    ),
    Case(
        "validate",
        "gx row condition",
        settings=expecting(
            "expect_column_values_to_be_between",
            column="a",
            min_value=2,
            row_condition="name>3",
            condition_parser="pandas",
        ),
        exit_code=3,
    ),
    Case("validate", "arrow long row", settings=reading("long.csv"), exit_code=2, named=False, sample=True),
    Case("validate", "arrow open quote", settings=reading("quote.csv"), exit_code=2, named=False),
    Case("validate", "arrow not utf8", settings=reading("latin.csv"), exit_code=2, named=False),
    Case("validate", "arrow two types", settings=reading("text-1.csv", "text-2.csv"), exit_code=2, named=False),
    Case("validate", "arrow json types", settings=reading("mixed.jsonl"), exit_code=2, named=False),
    Case("validate", "arrow no json", settings=reading("broken.jsonl"), exit_code=2, named=False),
    Case("validate", "arrow parquet page", settings=reading("page.parquet"), exit_code=2, named=False),
    Case("validate", "a misspelt name", settings=(("data.sensitive", ["nmae"]),), exit_code=2, named=False),
    Case("validate", "no header", settings=reading("headless.csv"), exit_code=2, named=False, sample=True),
    Case("validate", "no header and a column twice", settings=reading("twice.csv"), exit_code=2, named=False),
    Case(
        "validate",
        "no header and a window",
        settings=(*reading("headless.csv"), ("data.window", {"column": "when"})),
        window="2026-01-01..2026-02-01",
        exit_code=2,
        named=False,
    ),
    Case("shard", "arrow long row", settings=reading("long.csv"), exit_code=2, named=False),
    Case("shard", "arrow parquet page", settings=reading("page.parquet"), exit_code=2, named=False),
    Case("shard", "user raises", "transform raise"),
    Case("shard", "user chains", "transform chain", sample=True),
    Case("shard", "user groups", "transform group"),
    Case("shard", "user raises our class", "transform ours"),
    Case("shard", "user exits", "transform exit"),
    Case("shard", "user is killed", "transform kill", exit_code=5),
    Case("shard", "arrow in user's code", "transform arrow"),
    Case("shard", "pandas in user's code", "transform pandas"),
    Case("shard", "split column", settings=split(column="name"), exit_code=2, named=False, sample=True),
    Case("shard", "split time is text", settings=split(time="name"), exit_code=2, named=False),
    Case("shard", "split time of ties", settings=split(time="when"), exit_code=2, named=False),
    Case(
        "shard",
        "split key on two sides",
        settings=split(key="account", time="when", boundaries={"test": "2026-01-02"}),
        exit_code=2,
        named=False,
    ),
    Case("train", "user raises", "rank-step raise"),
    Case("train", "user chains", "rank-step chain"),
    Case("train", "user raises our class", "rank-step ours"),
    Case("train", "user exits", "rank-step exit"),
    Case("train", "user is killed", "rank-step kill", (("retry.node_lost", 0),), exit_code=5),
    Case("train", "arrow in user's code", "rank-step arrow"),
    Case("train", "lightning", "rank-step log", sample=True),
    Case("verify", "user raises", "verify_worker-step raise", exit_code=0, sample=True),
    Case("verify", "user exits", "verify_worker-step exit", exit_code=1),
    Case("verify", "lightning", "verify_worker-step log", exit_code=0, named=False),
    Case("evaluate", "user's metric", "metric raise", exit_code=2, sample=True),
    Case("evaluate", "user's metric chains", "metric chain", exit_code=2),
    Case("evaluate", "user raises", "predict raise"),
    Case("evaluate", "user exits", "predict exit"),
    Case("evaluate", "pandas in user's code", "predict pandas"),
]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("canaries"))


@pytest.mark.parametrize("case", [pytest.param(one, marks=one.marks, id=str(one)) for one in CASES])
def test_a_failing_stage_lets_no_canary_out(case: Case, scene: Scene) -> None:
    """It fails as expected, the full text is kept, and no canary gets out."""
    scene.reach(case.stage)
    for mark in (scene.store / "trainings").glob("*/checkpoints/*.verified"):
        if case.stage == "verify":
            mark.unlink()
    scene.fault.write_text(case.fault)
    settings = [f"{name}={json.dumps(value)}" for name, value in case.settings]
    window = ["--window", case.window] if case.window else []
    done = scene.run(case.stage, *(word for one in settings for word in ("--set", one)), *window, "--json")
    assert done.returncode == case.exit_code, done.stdout + done.stderr
    assert scene.hits() == []
    if case.named:
        kept = scene.withheld(done.stdout + done.stderr)
        canaries = [scene.tokens[f"column {name}"] for name in ("name", "account")]
        assert case.fault == NOWHERE or any(canary in kept for canary in canaries), kept


def test_a_succeeding_stage_lets_no_canary_out(scene: Scene) -> None:
    """The project's code prints and warns of what it sees, wherever it runs."""
    scene.reach(None)
    assert scene.hits() == []
    shards = [path for path in files(scene.store) if SHARDS.search(str(path))]
    assert any(scene.held_by(path) for path in shards), "rows are where they are meant to be, so the search finds them"


def test_no_bundle_of_code_holds_a_canary(scene: Scene) -> None:
    scene.reach("shard")
    bundled = list(files(scene.store / "code"))
    assert any(path.name == "clean.py" for path in bundled)
    assert [hit for path in bundled for hit in scene.held_by(path)] == []


# Every argument that names a file or a folder to write, and the words with which a test has it written. A folder that
# `init` or `contract infer` writes holds drafts for the user's project, which belong to its code.
WRITERS: dict[str, list[list[str]]] = {
    "validate --out": [["validate", "SPEC", "--out", "out/report.json"]],
    "shard --out": [["shard", "SPEC", "--out", "out/dataset.json"]],
    "train --out": [["train", "SPEC", "--out", "out/checkpoint.json"]],
    "train --curves": [["train", "SPEC", "--curves", "out/curves"]],
    "verify --out": [["verify", "SPEC", "--out", "out/verified.json"]],
    "evaluate --out": [["evaluate", "SPEC", "--out", "out/evaluation.json"]],
    "evaluate --metrics": [["evaluate", "SPEC", "--metrics", "out/metrics.txt"]],
    "promote --out": [["promote", "SPEC", "--out", "out/receipt.json"]],
    "drift --out": [["drift", "SPEC", "--out", "out/drift.json", "--against", "tiny@champion"]],
    "status --html": [["status", "--html", "out/day.html"]],
    "cost --html": [["cost", "--month", f"{datetime.now(UTC):%Y-%m}", "--html", "out/cost.html"]],
    "report --out": [["report", "RUN", "--out", "out/run.html"]],
    "diff --out": [["diff", "RUN", "RUN", "--out", "out/diff.html"]],
    "contract --out": [["contract", "docs", "RUN", "--out", "out/docs"]],
    "predict output": [
        ["predict", "tiny", "rows.csv", f"out/rows{end}", "--keep=name,account"] for end in (".csv", ".parquet")
    ],
    "export dir": [
        ["export", "tiny", "exported", "--to", "huggingface"],
        ["export", "tiny", "tensors", "--to", "safetensors"],
    ],
    "reproduce --into": [["reproduce", "tiny", "--here", "--into", "again"]],
    "key folder": [["key", "new", "keys"]],
    "ci --junit": [["ci", "SPEC", "--junit", "out/junit.xml", "--summary", "out/page.md"]],
    "ci --summary": [],
    "ci --dotenv": [["ci", "SPEC", "--dotenv", "out/values.txt"]],
    "server folder": [],  # marked; it needs the settings of a server
    "init folder": [],
}
READ_ALONE = {"status --objectives", "slo --objectives", "budget file", "policy file", "approve --key", "refuse --key"}
READ_ALONE |= {"reproduce --wheels"}


def test_every_argument_that_names_a_file_is_in_the_table() -> None:
    [commands] = [action.choices for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    named = {
        f"{name} {(action.option_strings or [action.dest])[0]}"
        for name, command in commands.items()
        for action in command._actions
        if action.metavar in ("FILE", "DIR", "FOLDER", "OUTPUT")
    }
    assert named == WRITERS.keys() | READ_ALONE


def packed(scene: Scene, env: Mapping[str, str]) -> set[str]:
    plan = answer(scene.run("plan", "--no-estimate", "--json", env=env))
    return {one["path"] for one in plan["code"]["packed"]}


def test_what_stages_and_pages_write_is_no_code(scene: Scene) -> None:
    scene.reach(None)
    before = packed(scene, scene.env())
    for name in ("validate --out", "train --curves", "evaluate --metrics", "status --html"):
        for words in WRITERS[name]:
            done = scene.write(words, "")
            assert done.returncode == 0, done.stderr
    assert (scene.project / "out/metrics.txt").exists()
    assert packed(scene, scene.env()) == before


@pytest.mark.sweep
def test_nothing_that_a_command_writes_is_code(tmp_path: Path) -> None:
    """With the state folder, TMPDIR, Prefect's folder, the store and every output below the project."""
    scene = Scene(tmp_path, inside=True)
    env = {**scene.env("PREFECT_API_AUTH_STRING"), "GITHUB_STEP_SUMMARY": str(scene.project / "summary.txt")}
    sets = ["--set", "promote.gates=[{metric: accuracy, min: 0.1}]"]
    try:
        run = answer(scene.run("run", *sets, "--json", env=env))["run_id"]
        wrong = []
        for words in [words for each in WRITERS.values() for words in each]:
            done = scene.write([*words, *(sets if "SPEC" in words else [])], run, env=env)
            wrong += [(words, done.stderr[-500:])] if done.returncode else []
        assert wrong == []
        assert {path.name for path in (scene.project / "out").iterdir()} >= {"rows.csv", "run.html"}
        scene.run("validate", *sets, env=env)
        bundles = list((scene.store / "code").iterdir())
        assert [hit for path in files(*bundles) for hit in scene.held_by(path)] == []
        assert len(bundles) == 1, [str(path) for path in files(*bundles)]
    finally:
        trainwright("down", env=env)


# What another user of the machine may read of its processes.
LOOK = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; ps auxewww; true"


@pytest.mark.root
@pytest.mark.warm(False)
@pytest.mark.parametrize(
    ("stage", "fault", "setting"),
    [
        ("shard", "transform wait", "shards.seed=3"),
        pytest.param("train", "rank-step wait", "train.seed=3", marks=pytest.mark.sweep),
    ],
)
def test_another_user_sees_no_canary_of_a_running_stage(stage: str, fault: str, setting: str, scene: Scene) -> None:
    scene.reach(stage)
    waiting = scene.fault.with_name("waiting")
    waiting.unlink(missing_ok=True)
    scene.fault.write_text(fault)
    with ThreadPoolExecutor(1) as pool:
        # Other users see a process's command line and environment, which a fork has from where it was forked.
        running = pool.submit(scene.run, stage, "--set", setting, forked=False)
        try:
            until(lambda: waiting.exists() or running.done())
            assert waiting.exists(), running.result().stderr
            other = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            seen = subprocess.run(["/bin/sh", "-c", LOOK], cwd="/", capture_output=True, check=True, **other)
        finally:
            scene.fault.write_text(NOWHERE)
        assert running.result().returncode == 0
    assert b"training." in seen.stdout, "it sees that the stage runs"
    assert list(scene.seen_in(seen.stdout)) == []


@pytest.mark.parametrize(
    "fault",
    [
        "transform chain",
        pytest.param("rank-step chain", marks=pytest.mark.sweep),
        pytest.param("rank-step kill", marks=pytest.mark.sweep),
        pytest.param("metric raise", marks=pytest.mark.sweep),
    ],
)
def test_nothing_in_prefect_holds_a_canary(fault: str, tmp_path: Path, state_folder: Path) -> None:
    """States, logs, artifacts and results of a line that fails, in the server's own files."""
    scene = Scene(tmp_path)
    scene.fault.write_text(fault)
    env = {name: value for name, value in scene.env("PREFECT_API_AUTH_STRING").items() if name not in FOLDERS}
    done = scene.run("run", "--set", "retry.node_lost=0", env=env)
    assert done.returncode in (2, 5, 8), done.stdout + done.stderr
    assert any(path.name == "prefect.db" for path in files(state_folder))
    assert scene.hits(state_folder) == []
    column = "name" if "transform" in fault else "account"
    assert scene.tokens[f"column {column}"] in scene.withheld(done.stdout + done.stderr)
