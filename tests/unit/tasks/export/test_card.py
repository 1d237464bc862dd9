"""The model card: what stands in it for facts that are there, are not there, or would be markup."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.handoffs import ContractReport, Failure
from data_contracts.messages.commands import Exported
from tasks.export import _data, _limitations, _metadata, _training, escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a|b", "a&#124;b"),
        ("<script>", "&lt;script>"),
        ("a\n## Use", "a\\n## Use"),
        ("\x1b[31m", "\\x1b&#91;31m"),
        ("`code`", "&#96;code&#96;"),
        ("ü & co", "ü &amp; co"),
    ],
)
def test_a_foreign_text_is_not_markup(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_names_that_the_module_logged_under_and_names_in_the_records_of_the_data_are_not_markup() -> None:
    name = "loss`\n\n## Use\n\n<img src=x>\x1b[2J"
    trained: Any = SimpleNamespace(
        trained=SimpleNamespace(train={"lightning": {}, "seed": name, "global_batch_size": name}),
        version=SimpleNamespace(checkpoint=SimpleNamespace(step=1, world_size=1, metrics={name: 0.5})),
        code={"commit": name},
        trained_at=name,
        report=None,
    )
    contract = ContractReport(key="k", accepted=True, rows=1, expectations=1, failures=[], suite_digest=name)
    dataset = SimpleNamespace(ref=SimpleNamespace(id="i"), splits={name: []}, dropped_rows={name: 1}, rows=lambda _: 1)
    of_data: Any = SimpleNamespace(dataset=dataset, contract=contract)
    for line in (*_training(trained, Exported(files=[], tensors=1, parameters=1, versions={})), *_data(of_data)):
        assert line.isprintable()
        assert "<img" not in line
        assert line.count("`") in (0, 2)


def test_a_stated_licence_stands_in_the_metadata_and_arguments_that_stay_are_named() -> None:
    said: Any = SimpleNamespace(dataset=None, evaluation=SimpleNamespace(metrics={}), license_id="apache-2.0")
    assert _metadata(said, "huggingface", "pytorch")["license"] == "apache-2.0"
    said.license_id = ""
    assert "license" not in _metadata(said, "huggingface", "pytorch")
    version = SimpleNamespace(checkpoint=SimpleNamespace(skipped=[]))
    facts: Any = SimpleNamespace(arguments=({}, ["weights"]), contract=object(), receipt=None, version=version)
    lines = _limitations(facts, Exported(files=[], tensors=1, parameters=1, versions={}))
    assert any("not shown" in line and "`weights`" in line for line in lines)


@pytest.mark.parametrize(("broken", "said"), [([], "600 rows met 4 expectations"), ([0, 2], "met 2 of 4 expectations")])
def test_the_card_counts_what_was_met(broken: list[int], said: str) -> None:
    failures = [
        Failure(index=at, expectation="e", column=None, severity="warning", rows=0, sentence="") for at in broken
    ]
    contract = ContractReport(key="k", accepted=True, rows=600, expectations=4, failures=failures, suite_digest="d")
    dataset = SimpleNamespace(ref=SimpleNamespace(id="i"), splits={}, dropped_rows={})
    facts: Any = SimpleNamespace(dataset=dataset, contract=contract)
    assert said in "\n".join(_data(facts))
