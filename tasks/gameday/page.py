"""The page of a game day: a table of the faults, with what was promised and what happened. It loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from infra.quantities import duration
from tasks.gameday.faults import NOT_TRIED
from tasks.gameday.outcome import Outcome, kept_all
from tasks.pages.html import page, section, table, tag

HEAD = ("fault", "verdict", "noticed", "promised", "recovered", "lost steps", "lost node time", "weights", "why")
NUMBERS = (2, 3, 4, 5, 6)


def row(one: Outcome) -> tuple[str, ...]:
    """An outcome in the columns of HEAD."""
    weights = {None: "–", True: "the same", False: "different"}[one.same_weights]
    return (
        one.fault,
        one.verdict,
        _seconds(one.noticed_s),
        _seconds(one.limit_s),
        _seconds(one.recovered_s),
        "–" if one.lost_steps is None else str(one.lost_steps),
        _seconds(one.lost_node_s),
        weights,
        one.why,
    )


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s"


def _moment(at: str) -> str:
    return f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M:%S}"


def sentence(outcomes: Sequence[Outcome]) -> str:
    """How many faults were injected, and how many promises were kept."""
    tried = [one for one in outcomes if one.verdict not in ("not injected", "not tried")]
    kept = sum(one.verdict == "as promised" for one in tried)
    noun = "fault" if len(tried) == 1 else "faults"
    return (
        f"{len(tried)} {noun} injected, {kept} recovered from as promised, {len(outcomes) - len(tried)} not injected."
    )


def game_day_page(name: str, outcomes: Sequence[Outcome], began: datetime, took_s: float) -> str:
    """The page of a pipeline's game day.

    Args:
        began: UTC; took_s: how long it took.
    """
    done = kept_all(outcomes)
    return page(
        f"Game day of {name}",
        tag(
            "header",
            tag("p", f"game day · {began:%Y-%m-%d %H:%M} UTC · {duration(took_s)}", kind="eyebrow"),
            tag("h1", name),
            tag("p", sentence(outcomes), kind="why"),
            kind="good" if done else "bad",
        ),
        section("Faults", table(HEAD, [row(one) for one in outcomes], numbers=NUMBERS)),
        section(
            "What was struck",
            table(
                ("fault", "what was done", "when, UTC", "where", "cause named"),
                [(one.fault, one.what, _moment(one.at), one.where, one.cause) for one in outcomes if one.where],
            ),
        ),
        section("What no game day tries", table(("fault", "why"), list(NOT_TRIED.items()))),
    )
