"""On random histories: all that is reachable stays whole, all else that is old goes, and it may be killed anywhere."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra import garbage
from infra.garbage import Limits, collect
from infra.store import Store, layout, open_store
from tests.support.histories import DAY_S, OLD_S, RECENT_S, YOUNG_S, History

LIMITS = Limits()
AGES = st.sampled_from([YOUNG_S, RECENT_S, OLD_S])


@st.composite
def histories(draw: st.DrawFn) -> Callable[[Store], History]:
    """Plans of a history: what is made, of what age, from what that was there before."""
    plan: list[tuple[str, float, list[int], int]] = []
    kinds = ["contract", "dataset", "append", "code", "training", "version", "promote", "run", "unsealed", "import"]
    first = ["contract", "code", "dataset", "dataset", "append", "append", "training"]
    for kind in [*first, *draw(st.lists(st.sampled_from(kinds), max_size=10))]:
        choices = [draw(st.integers(0, 5)) for _ in range(3)]
        plan.append((kind, draw(AGES), choices, draw(st.integers(0, 5))))

    def build(store: Store) -> History:
        history = History(store)
        made: dict[str, list[Any]] = {}

        def pick(kind: str, choice: int) -> Any:
            return made[kind][choice % len(made[kind])]

        for kind, age_s, (a, b, c), way in plan:
            if kind in ("contract", "code", "import"):
                area = {"contract": "contracts", "code": "code", "import": "imports"}[kind]
                made.setdefault(kind, []).append(history.sealed(area, age_s))
            elif kind == "unsealed":
                history.unsealed(["datasets", "contracts", "evaluations"][way % 3], age_s)
            elif kind in ("dataset", "append"):
                parent = pick("dataset", b) if kind == "append" else None
                one = history.sealed("datasets", age_s, pick("contract", a), pick("code", c), elsewhere=parent)
                made.setdefault("dataset", []).append(one)
            elif kind == "training":
                run = pick("run", c) if way == 5 and made.get("run") else ""
                dataset, code = pick("dataset", a), pick("code", b)
                one = history.training(age_s, dataset, code, run=run, done=way < 4, dead=way % 3)
                if run:
                    history.began(run, one)
                made.setdefault("training", []).append(one)
            elif kind == "version":
                judged = history.sealed("evaluations", age_s, pick("dataset", b))
                made.setdefault("version", []).append(history.version(age_s, pick("training", a), judged))
            elif kind == "promote" and made.get("version"):
                history.promote(age_s, pick("version", a))
            elif kind == "run":
                stages = {"shard": pick("dataset", a), "train": pick("training", b)}
                exit_code = [0, 0, None, 8, 5, 4][way]
                made.setdefault("run", []).append(history.run(age_s, pick("code", c), stages, exit_code=exit_code))
        history.ageing()
        return history

    return build


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_what_is_reachable_stays_and_the_rest_goes(build: Callable[[Store], History]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"{folder}/store")
        history = build(store)
        stay = history.stay(LIMITS.keep_s, LIMITS.grace_s)
        planned = collect(store, by="a test", limits=LIMITS, dry_run=True)
        assert history.there() == set(history.parts), "a dry run deletes nothing"
        done = collect(store, by="a test", limits=LIMITS)
        assert done.to_json() == planned.to_json()
        history.check(stay)
        assert history.there() == stay
        gone = {one.item.uri for one in done.deleted}
        assert all(store.exists(layout.tombstone(uri)) for uri in gone)
        assert all(any(uri == one or uri.startswith(f"{one}/") for one in gone) for uri in set(history.parts) - stay)
        again = collect(store, by="a test", limits=LIMITS)
        assert (again.deleted, again.leftovers, again.spared) == ([], [], [])


def small_history(store: Store) -> History:
    """One of each that stays, and one of each that goes."""
    history = History(store)
    for age_s in (YOUNG_S, OLD_S):
        contract, code = history.sealed("contracts", age_s), history.sealed("code", age_s)
        dataset = history.sealed("datasets", age_s, contract, code)
        longer = history.sealed("datasets", age_s, contract, elsewhere=dataset)
        training = history.training(age_s, longer, code, dead=2)
        history.run(age_s, code, {"shard": longer, "train": training})
        history.unsealed("datasets", age_s)
        if age_s == YOUNG_S:
            history.promote(age_s, history.version(age_s, training, history.sealed("evaluations", age_s, dataset)))
    history.ageing()
    return history


def killed_before(write: int, uri: str) -> bool:
    """Whether a collection in a process of its own was killed before its n-th write (else it was done before)."""
    child = os.fork()
    if child == 0:
        store = open_store(uri)
        writes = 0

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **more: Any) -> Any:
                nonlocal writes
                writes += 1
                if writes == write:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **more)

            return call

        for name in ("create", "replace", "delete"):
            setattr(store._backend, name, counted(getattr(store._backend, name)))
        collect(store, by="a test")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status != 0


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.sweep)], ids=["a sample", "all"])
def test_killed_at_any_write_it_damages_nothing_and_is_finished_by_the_next(step: int, tmp_path: Path) -> None:
    made = small_history(open_store(str(tmp_path / "first")))
    stay = made.stay(LIMITS.keep_s, LIMITS.grace_s)
    assert stay
    assert len(stay) < len(made.parts)
    kills, write = 0, 1
    while True:
        folder = tmp_path / f"try-{kills}"
        shutil.copytree(tmp_path / "first", folder)
        made.store = open_store(str(folder))
        if not killed_before(write, str(folder)):
            break
        kills, write = kills + 1, write + step
        made.check(stay)
        collect(made.store, by="a test")
        made.check(stay)
        assert made.there() == stay
        shutil.rmtree(folder)
    assert kills >= 40 // step


def test_limits_are_told_from_each_other(store: Store) -> None:
    """Unfinished work goes after a day, whole results after a month, neither within the grace."""
    history = History(store)
    ages = [0.5 * DAY_S, 2 * DAY_S, 29 * DAY_S, 31 * DAY_S]
    whole = [history.sealed("datasets", age_s) for age_s in ages]
    half = [history.unsealed("datasets", age_s) for age_s in ages]
    history.ageing()
    collect(history.store, by="a test", limits=Limits(keep_s=0, grace_s=40 * DAY_S))
    assert history.there() == {*whole, *half}
    collect(history.store, by="a test")
    assert history.there() == {*whole[:3], half[0]}
    collect(history.store, by="a test", limits=Limits(keep_s=0, grace_s=0))
    assert history.there() == set()


@pytest.mark.parametrize("way", ["before the tombstone", "after the tombstone"])
def test_what_is_taken_up_meanwhile_stays_with_all_that_it_names(
    way: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that reuses something claims it; a collection that has deletions it already lets go."""
    history = History(store)
    contract = history.sealed("contracts", OLD_S)
    parent = history.sealed("datasets", OLD_S, contract)
    child = history.sealed("datasets", OLD_S, elsewhere=parent)
    other = history.sealed("datasets", OLD_S)
    history.ageing()
    claimed: list[bool] = []

    def claiming(place: Any, name: str, when: Callable[..., bool]) -> None:
        """Have a line take up the child once, at the first call of this kind."""
        real = getattr(place, name)

        def call(*arguments: Any) -> Any:
            answer = real(*arguments) if place is garbage else None
            if not claimed and when(*arguments):
                claimed.append(store.claim(child))
            return answer if place is garbage else real(*arguments)

        monkeypatch.setattr(place, name, call)

    if way == "before the tombstone":
        claiming(garbage, "items_to_delete", lambda *_: True)
    else:
        claiming(store, "create_json", lambda path, value: path == layout.tombstone(child))
    done = collect(store, by="a test")
    assert claimed == [True]
    assert history.there() == {contract, parent, child}
    assert {one.item.uri for one in done.deleted} == {other}
    assert set(done.spared) == {contract, parent, child}
    for uri in (contract, parent, child):
        store.verify(uri)
