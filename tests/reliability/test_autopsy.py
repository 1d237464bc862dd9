"""120 planted failures of gangs: what caused them, who is to blame, and what follows.

`tests/golden/autopsy/` has the cases, each with the truth; `tests.support.autopsy` takes each through all that decides
in production. KNOWN_WRONG names what is judged wrongly today.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from infra.store import Store, open_store
from tests.support.autopsy import Case, cases, judge, wrong

CASES = cases()
# name of a case -> what of its verdict is wrong. At most five in their cause or culprit, and one in its retry.
KNOWN_WRONG: dict[str, list[str]] = {}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Store:
    return open_store(str(tmp_path_factory.mktemp("autopsy") / "store"))


def test_there_are_some_of_every_launcher_and_cause() -> None:
    assert len({case.name for case in CASES}) == len(CASES) == 120
    assert min(Counter(case.launcher for case in CASES).values()) >= 20
    causes = Counter(case.truth["cause"] for case in CASES)
    assert min(causes[cause] for cause in ("user_code", "node_lost", "out_of_memory", "preempted")) >= 10
    assert KNOWN_WRONG.keys() <= {case.name for case in CASES}
    assert sum(bool({"cause", "culprit"} & set(what)) for what in KNOWN_WRONG.values()) <= 5
    assert sum("retry" in what for what in KNOWN_WRONG.values()) <= 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.launcher}: {case.name}")
def test_a_failure_is_judged_as_it_was_in_whatever_order_it_is_reported(
    case: Case, store: Store, tmp_path: Path
) -> None:
    number = CASES.index(case)
    verdict = judge(case, store, tmp_path / f"{number}-0")
    found = f"{verdict.error.cause} ({verdict.retry}), {verdict.error.details.get('node')}: {verdict.error.message}"
    assert wrong(case, verdict) == KNOWN_WRONG.get(case.name, []), f"{case.truth}, but: {found}"
    assert judge(case, store, tmp_path / f"{number}-1", shuffle=number + 1).key == verdict.key


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.launcher}: {case.name}")
def test_the_verdict_is_the_same_in_every_order(case: Case, store: Store, tmp_path: Path) -> None:
    number = CASES.index(case)
    keys = {judge(case, store, tmp_path / f"{number}-{1000 + seed}", shuffle=1000 + seed).key for seed in range(10)}
    assert len(keys) == 1
