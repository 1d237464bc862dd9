"""A night without a person: worker, flow, conductor and server are killed at random moments; every run is promoted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.night import Night
from tests.support.speed.children import warm_children, warm_prefect
from tests.support.speed.prefect_database import put_new_database

# At most this many moments fall on one round of the pipelines.
A_ROUND = 12


@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(
    ("moments", "pipelines"),
    [pytest.param(2, 2, marks=pytest.mark.slow), pytest.param(200, 6, marks=pytest.mark.sweep)],
)
def test_every_run_of_a_night_gets_its_verdict_without_a_person(
    moments: int, pipelines: int, tmp_path: Path, shared_folder: Path
) -> None:
    home = tmp_path / "home"
    put_new_database(home, shared_folder)
    with warm_children(), warm_prefect():
        night = Night(tmp_path / "night", home, seed=moments, pipelines=pipelines)
        try:
            carry_out(night, moments)
        finally:
            night.close()


def carry_out(night: Night, moments: int) -> None:
    """Rounds of all pipelines until there were so many moments; the first round is left alone."""
    began, struck, number, failures = time.monotonic(), 0, 0, []
    expected: dict[str, bytes] = {}
    while struck < moments or number < 2:
        night.begin(number)
        until = struck + min(A_ROUND, moments - struck) if number else 0
        while struck < until and not night.has_ended():
            time.sleep(night.draw.uniform(2, 9))
            struck += night.strike()
        try:
            night.wait_for_morning()
            weights = night.weights()
            expected = expected or weights
            assert weights == expected, [name for name in weights if weights[name] != expected[name]]
            assert night.live_leases() == []
        except AssertionError as failure:
            night.say(f"round {number}: {failure}")
            failures.append(f"round {number}: {failure}")
            assert number, "the round that was left alone"
        night.say(f"round {number}, {struck} moments, {time.monotonic() - began:.0f} s, {dict(night.kills)}")
        number += 1
    print(f"\n{struck} moments in {number} rounds, {time.monotonic() - began:.0f} s: {dict(night.kills)}")
    assert not failures, "\n".join(failures)
