"""The page of a profile: names of operations and errors are texts, and what was not measured is said."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.messages.commands import Operation
from tasks.profile import PARTS, Change, Profiled, SpeedComparison, profile_page, result, sentence
from tests.support.pictures import elements_of
from tests.support.runs import make_run
from tests.unit.tasks.profile.test_verdict import profile as usual_profile

RUN = make_run()
HOSTILE = "<script>alert(1)</script>"


def found(operation: str = HOSTILE, **changes: Any) -> Profiled:
    operations = [Operation(name=operation, calls=4, seconds=2.0)]
    profile = usual_profile(rows=64, traced=2, step_s=[1.0] * 20, operations=operations)
    facts: dict[str, Any] = {
        "profile": profile,
        "parts": {**dict.fromkeys(PARTS, 0.0), "forward": 0.75, "data": 0.25},
        "bound": "memory",
        "change": Change("Compile it.", "The same model."),
        "comparison": SpeedComparison(100.0, 150.0, helps=True),
        "after": profile,
        "failed": "",
        "trace": b"",
    }
    return Profiled(**{**facts, **changes})


def shown(page: str) -> tuple[list[str], str]:
    elements = elements_of(page)
    return elements.names, " ".join(elements.texts)


def test_a_page_shows_parts_change_and_operations_and_runs_nothing() -> None:
    names, text = shown(profile_page(RUN, found()))
    assert not {"script", "img", "link", "iframe"} & set(names)
    for part in ("Bound by memory", "750.00 ms", "75.0%", HOSTILE, "100 → 150 samples/s (20 and 20 steps), +50%"):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "It helps: 100 → 150 samples/s (20 and 20 steps), +50%."),
        ({"comparison": SpeedComparison(100.0, 50.0, helps=False)}, "It does not help: 100 → 50"),
        ({"comparison": SpeedComparison(100.0, 101.0, helps=None)}, "Whether it helps is open: 100 → 101"),
        ({"comparison": None, "after": None, "failed": HOSTILE}, f"It could not be measured: {HOSTILE}"),
    ],
)
def test_the_result_of_the_change(changes, said):
    assert result(found(**changes)).startswith(said)
    names, text = shown(profile_page(RUN, found(**changes)))
    assert said in text
    assert "script" not in names


def test_what_was_not_measured_is_said() -> None:
    page = found(change=None, comparison=None, bound="transfer")
    _, text = shown(profile_page(RUN, page))
    assert "No change is known" in text
    assert sentence(page) == "bound by copies to the device"
