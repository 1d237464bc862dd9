"""A conductor that is taken over says so, and the next one continues with what is left of the retry budgets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import Cancelled, Fenced, NodeLost
from data_contracts.messages.gang import Launch, Retries
from infra.gang.conductor import adopted_sentence
from infra.gang.ledger import Ledger
from infra.gang.members import Progress
from infra.processes.processes import find_marked, kill_marked, new_mark
from infra.store import Lease, Store, layout, open_store
from tests.support.coded import seal_checkpoint
from tests.support.conducting import TRAINING, run

pytestmark = pytest.mark.warm


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    mark = new_mark()
    monkeypatch.setenv("TRAINWRIGHT_MARK", mark)
    yield
    left = find_marked(mark)
    kill_marked(mark)
    assert not left


def test_it_says_so_also_if_its_node_hears_of_it_first(store: Store) -> None:
    """The node ends with exit code 5 and writes nothing; the conductor renews its lease only every ten seconds."""
    taken: list[Lease] = []

    def usurp(progress: Progress) -> None:
        if progress.step >= 3 and not taken:
            taken.append(Lease.take(store, layout.lease(TRAINING), "usurper", patience_s=0))

    with pytest.raises(Fenced, match="now belongs to usurper"):
        run(store, {"steps": 2000, "every": 3000, "step_s": 0.05}, on_progress=usurp)


def test_budgets_are_the_trainings_and_are_reset_once_a_failure_was_reported(store: Store) -> None:
    """The conductor is killed after its first retry (here: a bug ends it); the next one has only what is left."""
    lost: list[dict[str, Any]] = [
        {"generation": number, "rank": 0, "step": 5, "kind": "sigkill", "after": 5} for number in range(4)
    ]
    fake: dict[str, Any] = {"steps": 20, "faults": lost}
    options: dict[str, Any] = {"retry": {"node_lost": 2}, "devices": 1}

    def die(progress: Progress) -> None:
        if progress.generation == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store, fake, on_progress=die, **options)
    assert Ledger(store, TRAINING, 0).retries.used == {"node_lost": 1}
    generations: set[int] = set()
    with pytest.raises(NodeLost):
        run(store, fake, on_progress=lambda progress: generations.add(progress.generation), **options)
    assert max(generations) == 3, "generation 1 ended before it began; one retry was left"
    assert Ledger(store, TRAINING, 1).retries == Retries()
    assert run(store, fake, **options).checkpoint.step == 20


@pytest.mark.parametrize("skipped", [[], [(48, 56)]], ids=["the same samples", "samples that are skipped now"])
def test_only_a_generation_on_the_same_samples_is_adopted(skipped: list[tuple[int, int]], store: Store) -> None:
    def stop(progress: Progress) -> None:
        if progress.step >= 1:
            raise KeyboardInterrupt

    with pytest.raises(Cancelled):
        run(store, {"steps": 2000, "every": 3000, "step_s": 0.05}, on_progress=stop, devices=1)
    # As its ranks would have sealed it, had they not been ended.
    facts = {"step": 15, "epoch": 0, "world_size": 1, "metrics": {}, "dropped_rows": 3}
    seal_checkpoint(store, TRAINING, 15, 0, facts)
    if skipped:
        Ledger(store, TRAINING, 0).record_recovery(skipped, Retries())
    said: list[str] = []
    assert run(store, {"steps": 20}, on_progress=lambda one: said.append(one.sentence), devices=1).generations == 2
    resume = store.read_as(layout.launch(TRAINING, 1), Launch.from_json).resume
    assert ((resume is not None and resume.step == 15), adopted_sentence([15]) in said) == (not skipped, not skipped)


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ([15], "step 15 had been sealed but not committed by the previous conductor; it is committed now"),
        (
            [995, 1000],
            "steps 995, 1,000 had been sealed but not committed by the previous conductor; they are committed now",
        ),
    ],
)
def test_the_adopted_steps_are_named(steps: list[int], sentence: str) -> None:
    assert adopted_sentence(steps) == sentence
