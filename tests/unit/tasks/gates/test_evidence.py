"""The champion is compared on the candidate's rows or not at all, and both are scored again if necessary."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.errors import InsufficientEvidence
from data_contracts.handoffs import Checkpoint, Evaluation, Ref
from infra.store import Store
from tasks.run.run import Run
from tasks.stages import evaluate
from tests.support.runs import make_run
from tests.support.tiny import SPEC

TODAY, YESTERDAY = {"of": "truth", "digest": "1"}, {"of": "truth", "digest": "0"}
LOGGED, LOGGED_OTHER = {"of": "batches", "digest": "1"}, {"of": "batches", "digest": "0"}


class Scores:
    """What each checkpoint's evaluation notes of its rows: as it is stored, and once it is scored again."""

    def __init__(self, store: Store, noted: dict[str, tuple[Any, Any]], rows: dict[str, int]) -> None:
        self._store, self._noted, self._rows = store, noted, rows
        self.again: list[str] = []

    def score(self, run: Run, checkpoint: Checkpoint, dataset: Any, *, afresh: bool = False) -> tuple[Evaluation, bool]:
        who = checkpoint.key
        if afresh:
            self.again.append(who)
        noted = self._noted[who][afresh]
        provenance = {} if noted is None else {"rows": {"score": noted}}
        ref = self._store.writer(f"evaluations/{who}-{int(afresh)}").seal("evaluation", {}, provenance)
        metric = {"value": 0.5, "mode": "max", "rows": self._rows[who], "unit": "row"}
        fields = {
            "ref": ref.to_json(),
            "key": who,
            "checkpoint_id": "",
            "dataset_ids": {},
            "metrics": {"score": metric},
        }
        return Evaluation.model_validate(fields), not afresh


CASES: list[tuple[str, bool, tuple[Any, Any], tuple[Any, Any], list[str], bool]] = [
    # external?, candidate (stored, again), champion (stored, again), scored again, whether it can be decided
    ("ours", False, (None, None), (None, None), [], True),
    ("the same", True, (TODAY, TODAY), (TODAY, TODAY), [], True),
    ("the champion's is of yesterday", True, (TODAY, TODAY), (YESTERDAY, TODAY), ["champion"], True),
    ("the candidate's is", True, (YESTERDAY, TODAY), (TODAY, TODAY), ["champion", "candidate"], True),
    ("of before there were digests", True, (None, TODAY), (None, TODAY), ["champion", "candidate"], True),
    ("another each time", True, (TODAY, TODAY), (YESTERDAY, YESTERDAY), ["champion", "candidate"], False),
    ("in a data module of one's own", False, (TODAY, TODAY), (YESTERDAY, YESTERDAY), ["champion", "candidate"], False),
    ("logged", True, (LOGGED, LOGGED), (LOGGED_OTHER, LOGGED_OTHER), ["champion", "candidate"], True),
]


@pytest.mark.parametrize(("external", "mine", "theirs", "again", "decides"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])  # fmt: skip
def test_models_are_scored_again_where_their_rows_differ(
    external: bool,
    mine: tuple[Any, Any],
    theirs: tuple[Any, Any],
    again: list[str],
    decides: bool,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = Scores(store, {"candidate": mine, "champion": theirs}, {"candidate": 10, "champion": 10})
    monkeypatch.setattr(evaluate, "score", scores.score)
    run = make_run(store, spec={} if external else SPEC)
    ref = Ref(uri="c", id="c", seal="c")
    told = {"training": "t", "step": 1, "epoch": 0, "generation": 0, "world_size": 1}
    candidate, champion = (Checkpoint(ref=ref, key=who, **told) for who in ("candidate", "champion"))
    first, _ = scores.score(run, candidate, None)
    try:
        evaluate.comparable(run, candidate, first, champion, None, ["score"])
        decided = True
    except InsufficientEvidence:
        decided = False
    assert (scores.again, decided) == (again, decides)
    scores.again.clear()
    evaluate.comparable(run, candidate, first, champion, None, [])
    assert scores.again == [], "where nothing is compared, nothing is scored again"
