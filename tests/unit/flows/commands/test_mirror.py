"""The exit code of `mirror`: 5 if a mirror was not told that a spec names, 0 if only a Prefect server is missing."""

from __future__ import annotations

import pytest

from flows.commands.models import _mirror_answer
from tasks.mirrors.deliver import Due


@pytest.mark.parametrize(
    ("mirrors", "code"), [([], 0), (["prefect"], 0), (["mlflow"], 5), (["prefect", "mlflow", "prefect"], 5)]
)
def test_a_rollback_that_no_server_was_told_of_is_no_failure(mirrors: list[str], code: int) -> None:
    left = [Due(run_id="r", about=None, mirror=name, what="alias", alias=("tiny", "champion")) for name in mirrors]
    answer = _mirror_answer([], left)
    assert (answer.exit_code, len(answer.value["left"])) == (code, len(mirrors))
    assert ("prefect was not told of the rollback of tiny@champion" in answer.text) == ("prefect" in mirrors)
