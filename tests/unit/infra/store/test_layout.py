"""Every path of the design, as data."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from data_contracts.errors import UsageError
from infra.store import layout

T = "trainings/abc-0"
PATHS = [
    (layout.attempt("datasets", "abc", 3), "datasets/abc-3"),
    (layout.manifest("datasets/abc-3"), "datasets/abc-3/manifest.json"),
    (layout.tombstone("datasets/abc-3"), "tombstones/datasets/abc-3.json"),
    (layout.code("0f"), "code/0f"),
    (layout.imported("0f"), "imports/0f"),
    (layout.models("digits"), "models/digits"),
    (layout.model("digits", 2), "models/digits/2"),
    (layout.alias("digits", "champion"), "aliases/digits/champion"),
    (layout.history("digits", "champion"), "aliases/digits/history/champion"),
    (layout.receipt("digits", "champion", 0), "aliases/digits/history/champion/0"),
    (layout.trigger("nightly-1"), "triggers/nightly-1"),
    (layout.aliases(), "aliases"),
    (layout.aliases("digits"), "aliases/digits"),
    (layout.exposures(), "exposures"),
    (layout.exposures("0f"), "exposures/0f"),
    (layout.exposed_rows("0f"), "exposures/0f/rows"),
    (layout.exposure("0f", 3), "exposures/0f/3.json"),
    (layout.exposure("0f", 3, "better"), "exposures/0f/3.better"),
    (layout.protections("digits", "champion"), "protections/digits/champion"),
    (layout.protection("digits", "champion", 0), "protections/digits/champion/0.json"),
    (layout.questions("digits", "champion"), "questions/digits/champion"),
    (layout.question_entry("digits", "champion", 0), "questions/digits/champion/0.json"),
    (layout.approvals("r1"), "runs/r1/approvals"),
    (layout.question("r1", 0), "runs/r1/approvals/0/question.json"),
    (layout.answer("r1", 0), "runs/r1/approvals/0/answer.json"),
    (layout.runs(), "runs"),
    (layout.run("r1"), "runs/r1"),
    (layout.resolved("r1"), "runs/r1/resolved.json"),
    (layout.inputs_signature("r1"), "runs/r1/resolved.dsse"),
    (layout.stage("r1", "shard"), "runs/r1/stages/shard.json"),
    (layout.report("r1"), "runs/r1/report.json"),
    (layout.run_attempts("r1"), "runs/r1/attempts"),
    (layout.run_attempt("r1", 0), "runs/r1/attempts/0.json"),
    (layout.training("abc", 0), T),
    (layout.lease(T), f"{T}/lease"),
    (layout.latest(T), f"{T}/latest"),
    (layout.result(T), f"{T}/result.json"),
    (layout.generation(T, 2), f"{T}/g2"),
    (layout.logger_files(T, 2), f"{T}/g2/loggers.zip"),
    (layout.launch(T, 2), f"{T}/g2/launch.json"),
    (layout.cancel(T, 2), f"{T}/g2/cancel"),
    (layout.rollcall(T, 2), f"{T}/g2/rollcall.json"),
    (layout.node(T, 2, 1), f"{T}/g2/node-1"),
    (layout.joined(T, 2, 1), f"{T}/g2/node-1/joined.json"),
    (layout.beat(T, 2, 1, 7), f"{T}/g2/node-1/beat-7.json"),
    (layout.node_exit(T, 2, 1), f"{T}/g2/node-1/exit.json"),
    (layout.rank_log(T, 2, 1, 3), f"{T}/g2/node-1/log-rank-3.txt"),
    (layout.rank_log(T, 2, 1, 3, 0), f"{T}/g2/node-1/log-rank-3-0.txt"),
    (layout.checkpoints(T), f"{T}/checkpoints"),
    (layout.checkpoint(T, 100, 2), f"{T}/checkpoints/100-g2"),
    (layout.verified(f"{T}/checkpoints/100-g2"), f"{T}/checkpoints/100-g2.verified"),
    (layout.quarantined(f"{T}/checkpoints/100-g2"), f"{T}/checkpoints/100-g2.quarantined"),
]


def test_paths() -> None:
    assert {expected: path for path, expected in PATHS if path != expected} == {}


def test_a_key_that_is_no_name_stands_under_its_digest() -> None:
    paths = {layout.trigger(key) for key in ("a/b", "../x", "A", "2026-01-01T00:00:00+00:00", "é" * 300)}
    assert len(paths) == 5
    for path in paths:
        assert len(path) == len("triggers/") + 64
        layout.check_path(path)


SPLIT = [
    (layout.split_attempt, "abc-3", ("abc", 3)),
    (layout.split_attempt, "a-b-10", ("a-b", 10)),
    (layout.split_attempt, "abc", None),
    (layout.split_attempt, "abc-03", None),
    (layout.split_attempt, "-1", None),
    *((layout.split_generation, name, number) for name, number in (("g0", 0), ("g12", 12))),
    *((layout.split_generation, name, None) for name in ("g", "g01", "g-1", "g1x", "x1")),
    (layout.split_checkpoint, "5-g1", (5, 1, "")),
    (layout.split_checkpoint, "5-g1.verified", (5, 1, "verified")),
    (layout.split_checkpoint, "5-g1.quarantined", (5, 1, "quarantined")),
    *((layout.split_checkpoint, name, None) for name in ("5-g01", "-g1", "5-g1.verified.json")),
    (layout.split_exposure, layout.exposure("0f", 12), ("0f", 12, "json")),
    (layout.split_exposure, layout.exposure("0f", 0, "spent.json"), ("0f", 0, "spent.json")),
    (layout.split_exposure, layout.exposure("0f", 0, "better"), ("0f", 0, "better")),
    (layout.split_exposure, layout.exposed_rows("0f"), None),
    *((layout.split_exposure, f"exposures/{path}", None) for path in ("0f/01.json", "0f/1.txt", "a/0f/1.json")),
]


@pytest.mark.parametrize(("split", "name", "parts"), SPLIT)
def test_a_name_is_split_or_told_from_others(split: Callable[[str], object], name: str, parts: object) -> None:
    assert split(name) == parts


@pytest.mark.parametrize(
    "make",
    [
        lambda: layout.model("Digits", 1),
        lambda: layout.model("../x", 1),
        lambda: layout.model("digits", -1),
        lambda: layout.alias("digits", "a/b"),
        lambda: layout.alias("digits", "history"),  # receipts are kept under that name
        lambda: layout.run(""),
        lambda: layout.code("x" * 64),
        lambda: layout.lease("../x"),
        lambda: layout.verified("/x"),
        lambda: layout.tombstone("a//b"),
    ],
)
def test_what_is_no_name_is_refused(make: object) -> None:
    with pytest.raises(UsageError, match="cannot be"):
        make()
