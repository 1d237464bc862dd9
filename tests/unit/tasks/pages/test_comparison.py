"""Two runs or versions side by side: exactly what differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.store import Store, open_store
from tasks.pages.comparison_page import Comparison, compare_sides, comparison_page, find_side, flat
from tests.support.damage import overwrite
from tests.support.reported import FIRST, PROMOTED, REJECTED, reported_store

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def store(tmp_path: Path, repository: Path) -> Store:
    return open_store(str(reported_store(repository / "tests/golden/store-v1", tmp_path)))


def compared(store: Store, before: str, after: str) -> Comparison:
    return compare_sides(find_side([store], before), find_side([store], after))


def test_versions_that_differ_in_their_seed(store: Store) -> None:
    found = compared(store, "tiny@1", "tiny:2")
    assert found.sentence == "tiny@1 and tiny:2 differ in spec, metrics, weights"
    assert [vars(row) for row in found.spec] == [{"name": "train.seed", "before": "7", "after": "8"}]
    [metric] = found.metrics
    assert (metric.name, metric.after, metric.better, metric.comparable) == ("accuracy", 1.0, True, True)
    assert [one.same for one in found.weights] == [False] * 4
    assert json.loads(json.dumps(found.to_json()))["after"] == {
        "name": "tiny:2",
        "run_id": PROMOTED,
        "model": "tiny",
        "version": 2,
    }


def test_the_champion_and_itself_do_not_differ(store: Store) -> None:
    found = compared(store, "tiny", FIRST)
    assert found.sentence == f"tiny and {FIRST} do not differ"
    assert (found.parts, found.no_weights) == (
        {"data": [], "contract": [], "spec": [], "code": []},
        "Both have the same checkpoint.",
    )


def test_a_run_that_was_rejected(store: Store) -> None:
    found = compared(store, REJECTED, PROMOTED)
    assert {row.name: (row.before, row.after) for row in found.contract} == {
        "verdict": ("rejected", "accepted"),
        "expect_column_values_to_be_between on a": ("broken by 1 rows", "holds"),
    }
    assert {"file bad.csv", "file rows.csv", "rows of train"} <= {row.name for row in found.data}
    assert found.no_weights == "A side has no checkpoint."


def test_changed_code_is_named(store: Store) -> None:
    bundle = next((Path(store.uri) / "code").iterdir())
    content = json.loads((bundle / "manifest.json").read_text())["content"]
    files = {one["path"]: (bundle / one["path"]).read_bytes() for one in content["files"]}
    del files["project/bad.csv"]
    writer = store.writer(f"code/{'0' * 40}")
    for path, data in {**files, "project/net.py": b"changed = True", "project/new.py": b""}.items():
        writer.put(path, data)
    record = Path(store.uri) / "runs" / PROMOTED / "resolved.json"
    overwrite(record, json.dumps({**json.loads(record.read_text()), "code": writer.seal("code", {}, {}).to_json()}))
    rows = {row.name: row for row in compared(store, "tiny@1", "tiny@2").code}
    assert (set(rows), rows["bad.csv"].after, rows["new.py"].before) == ({"net.py", "bad.csv", "new.py"}, "", "")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing", "There is no run or model nothing in "),
        ("tiny@9", "tiny has no version 9 in "),
        ("tiny@staging", "There is no tiny@staging in "),
        ("../../etc", "There is no run or model ../../etc in "),
    ],
)
def test_a_name_that_is_not_there_is_refused(name: str, sentence: str, store: Store) -> None:
    with pytest.raises(UsageError) as refused:
        find_side([store], name)
    assert str(refused.value).startswith(sentence)


def test_a_version_whose_run_is_gone_is_refused(store: Store) -> None:
    (Path(store.uri) / "runs" / PROMOTED / "resolved.json").unlink()
    with pytest.raises(UsageError, match=f"The run {PROMOTED}, which made tiny version 2, is no longer in "):
        find_side([store], "tiny@2")


def test_settings_are_flat() -> None:
    value = {"a": {"b": None, "c": [1, {"d": True, "e": None}]}, "f": {}, "g": False}
    assert flat(value) == {"a.b": "", "a.c": '[1, {"d": true, "e": null}]', "f": "{}", "g": "false"}


def test_the_page_of_a_comparison_has_every_part(store: Store) -> None:
    page = comparison_page(compared(store, REJECTED, "tiny@2"))
    for part in ("Metrics", "Data", "Contract", "Spec", "Weights", "The same on both sides"):
        assert f"<h2>{part}</h2>" in page
