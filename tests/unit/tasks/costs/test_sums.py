"""Sums by tag, stage and cause; an unknown part makes a sum unknown, and a window cuts charges at its bounds."""

from __future__ import annotations

import pytest

from data_contracts.costs import Resources
from data_contracts.errors import UsageError
from tasks.costs.months import lines_of
from tasks.costs.sums import charged, check_words, sums
from tests.unit.tasks.costs.test_charges import BEGAN, GPU, HERE, execution, gang, node

ALWAYS = (0.0, 2.0**40)


def runs() -> list:
    unknown = GPU.model_copy(update={"per_hour": None})
    return [
        execution(gangs=[gang(0, node(0, 10, 12, 20, 60, 60), met=BEGAN + 15, last_step=40, kept_step=40)]),
        execution(run_id="r2", execution="e2", tags={"team": "b"}, prices={"train": unknown, "here": HERE}),
        execution(run_id="r3", execution="e3", tags={}, prices={"train": unknown, "here": unknown}),
    ]


def test_by_a_tag() -> None:
    groups, total = sums(charged(runs(), *ALWAYS), ["team"], {"r2"})
    words = {one.words: one for one in groups}
    assert list(words) == [("a",), ("b",), ("–",)]
    mine = words["a",]
    assert (mine.node_seconds, mine.gpu_seconds) == (pytest.approx(150), pytest.approx(400))
    assert mine.amounts == {"USD": pytest.approx(0.5 + 0.1)}
    assert (words["–",].money, words["–",].to_json(["team"])["amounts"]) == ("unknown", None)
    assert (total.money, total.unpriced_s) == ("at least 0.7000 USD", 100)
    assert (len(total.runs), total.to_json(())["so_far"]) == (3, 1)


def test_by_stage_and_cause() -> None:
    groups, total = sums(charged(runs()[:1], *ALWAYS), ["stage", "cause"], set())
    seconds = {one.words: round(one.node_seconds, 3) for one in groups}
    assert (seconds["train", "work"], seconds["run", "conductor"]) == (40, 100)
    assert total.goodput == pytest.approx(40 / 150)


def test_a_window_cuts_at_its_bounds() -> None:
    _, total = sums(charged(runs()[:1], BEGAN + 50, BEGAN + 55), [], set())
    assert total.node_seconds == pytest.approx(10)


def test_a_word_that_no_run_knows_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no run has a tag 'tema'\. Did you mean team\?"):
        check_words(["tema"], runs())
    with pytest.raises(UsageError, match=r"no run has a tag 'owner'\. Known are pipeline, .*team"):
        check_words(["owner"], runs())
    with pytest.raises(UsageError, match="no run has a tag 'team'"):
        check_words(["team"], [execution(tags={})])
    check_words(["team"], [])
    check_words(["team", "day"], runs())


@pytest.mark.parametrize(
    ("machines", "expected", "known_s"),
    [(["gpu"], "0.11", 400), (["", "gpu"], "at least 0.11", 400), ([""], "unknown", 0), ([], "0.00", 0)],
)
def test_gpus_that_nobody_knows_do_not_count_as_none(machines: list[str], expected: str, known_s: float) -> None:
    ended = [node(0, 0, 0, 0, 50, 50)]
    found = [
        execution(run_id=f"r{n}", gangs=[gang(0, *ended, met=BEGAN)], prices={"train": price, "here": HERE})
        for n, price in enumerate(GPU.model_copy(update={"machine": name}) for name in machines)
    ]
    _, total = sums(charged(found, *ALWAYS), [], set())
    value = total.to_json(())
    assert (total.gpu_hours, value["known_gpu_seconds"]) == (expected, known_s)
    assert value["gpu_seconds"] == (None if "" in machines else known_s)


def test_deleted_runs_count_by_the_kept_figures_of_their_month() -> None:
    bare = [runs()[0].model_copy(update={"used": Resources(put_requests=3, millijoules=5000)}), *runs()[1:]]
    expected, whole = sums(charged(bare, *ALWAYS), ["team", "stage", "cause"], set())
    lines = [line for one in bare for line in lines_of(charged([one], *ALWAYS))]
    groups, total = sums([], ["team", "stage", "cause"], set(), lines)
    assert [(one.words, one.money, one.gpu_hours) for one in groups] == [
        (one.words, one.money, one.gpu_hours) for one in expected
    ]
    assert (total.money, total.node_seconds, total.causes) == (whole.money, whole.node_seconds, whole.causes)
    assert (total.used, total.energy, len(total.runs)) == (whole.used, "1.39e-06 kWh", 3)
    [by_day], _ = sums([], ["day"], set(), lines)
    assert by_day.words == ("–",)


def test_a_day_has_what_was_used_on_it() -> None:
    midnight = (BEGAN // 86_400 + 1) * 86_400
    over_three_days = execution(began=midnight - 3600, ended=midnight + 90_000)
    groups, total = sums(charged([over_three_days], *ALWAYS), ["day"], set())
    assert [(one.words[0], one.node_seconds) for one in groups] == [
        ("2025-11-24", 3600),
        ("2025-11-25", 86_400),
        ("2025-11-26", 3600),
    ]
    assert total.node_seconds == 93_600
