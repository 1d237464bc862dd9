"""`notify` in a spec: causes and blocks are checked when it is loaded, and a spec without it is stored as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import SpecError
from data_contracts.load import load_spec
from tests.support.refusals import refusal
from tests.support.tiny import write_project

BLOCK = "slack-webhook/team"


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"on": [], "block": BLOCK}, "notify.0.on: "),
        ({"on": ["late"], "block": BLOCK}, "notify.0.on.0: "),
        ({"on": ["failed", "drift", "failed"], "block": BLOCK}, "notify.0.on: names failed twice"),
        ({"on": "failed", "block": BLOCK}, "notify.0.on: "),
        ({"on": ["failed"]}, "notify.0.block: is missing"),
        *[
            ({"on": ["failed"], "block": one}, "notify.0.block: must be the type and the name")
            for one in (
                "team",
                "https://hooks.slack.com/services/a",
                "Slack/team",
                "slack/{{ x }}",
                "a/b/c",
                "a/",
                "a/b\n",
            )
        ],
    ],
)
def test_what_is_refused(rule: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal(SpecError, load_spec, write_project(tmp_path / "tiny", {"notify": [rule]}))
