"""A corpus of hostile checkpoints: none runs code, none takes much memory, each gets one sentence and its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile_cases import CASES, Case

MAX_GROWTH_MIB = 150


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> dict[str, Any]:
    """What became of every case, by name and route."""
    folder = tmp_path_factory.mktemp("hostile")
    command = [sys.executable, "-m", "tests.support.hostile", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=repository, capture_output=True, text=True, timeout=560)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(CASES), done.stderr[-4000:] + (folder / "train.log").read_text()[-4000:]
    return {name_of(case): answer for case, answer in zip(CASES, lines, strict=True)}


def name_of(case: Case) -> str:
    return f"{case.name}, {case.route}"


def test_the_corpus_has_thirty_or_more() -> None:
    assert len({case.name for case in CASES}) >= 30
    assert len({name_of(case) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_it_is_refused_in_one_sentence_and_runs_nothing(case: Case, answers: dict[str, Any]) -> None:
    found = answers[name_of(case)]
    assert not found["ran"], "the attacker's code ran"
    assert found["exit_code"] == case.exit_code, found
    assert re.search(case.sentence, found["sentence"]), found
    assert found["sentence"].endswith("."), found
    assert "\n" not in found["sentence"]
    assert found["grown_mib"] < MAX_GROWTH_MIB, found
