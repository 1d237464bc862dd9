"""A user's perturbation changes batches, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.pipeline_spec import SetSpec
from training.score.scoring import perturbations, then

CODE = """
def louder(batch): return tuple(2 * one for one in batch)
def shorter(batch): return tuple(one[1:] for one in batch)
def listed(batch): return list(batch)
def broken(batch): return batch.nothing
LEVEL = 3
"""
BATCH = torch.arange(6.0).reshape(3, 2), torch.ones(3)


def perturb(folder: Path, name: str) -> Any:
    (folder / "noise_of_mine.py").write_text(CODE)
    (folder / "pyproject.toml").touch()
    sets = {"noisy": SetSpec(split="test", perturb=f"noise_of_mine.{name}"), "plain": SetSpec(split="val")}
    found = perturbations(sets, folder, folder)
    assert list(found) == ["noisy"]
    return found["noisy"]


@pytest.mark.parametrize(("name", "words"), [("shorter", "it returns 2 rows"), ("listed", "it returns list")])
def test_rows_and_form_stay(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=rf"evaluate.sets.noisy.perturb: for a tuple of 3 rows {words}"):
        perturb(tmp_path, name)(BATCH)


def test_what_it_raises_is_the_users(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="evaluate.sets.noisy.perturb") as raised:
        perturb(tmp_path, "broken")(BATCH)
    assert "noise_of_mine.py" in raised.value.user_traceback


def test_one_after_the_other() -> None:
    assert then(lambda batch: batch + 1, lambda batch: batch * 2)(3) == 8
    assert (then(None, abs), then(abs, None), then(None, None)) == (abs, abs, None)
