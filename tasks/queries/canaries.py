"""A model's canary for people who look at it; writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from data_contracts.alias_moves import ALIAS, CanaryTerms, Standing
from data_contracts.errors import CorruptError, UsageError
from data_contracts.times import readable
from infra.models import canaries, registry
from infra.models.canaries import Canary
from infra.store import Store
from infra.store.seal import pass_over
from tasks.queries.waiting import standing_of
from tasks.stages.canary_tally import stored_standing


@dataclass(frozen=True)
class CanaryView:
    """A canary, as it stands at this moment.

    Attributes:
        name: the alias that it moves to if it is shown to be better.
        version, champion: the version that stands, and the one that the alias names now.
        standing: what the rows beside this champion say.
        over: why it does not stand any more although its alias has not followed yet; "" if it stands.
        waits: what its promotion waits for; "" for nothing.
    """

    model: str
    name: str
    version: int
    champion: int
    terms: CanaryTerms
    standing: Standing
    over: str
    waits: str

    def to_json(self) -> dict[str, Any]:
        """The canary as objects that JSON can hold."""
        figures = {"terms": self.terms.to_json(), "standing": self.standing.to_json()}
        named = {"version": self.version, "challenges": self.name, "champion": self.champion}
        return {**named, **figures, "stands": not self.over, "over": self.over, "waits": self.waits}

    @property
    def sentence(self) -> str:
        """What stands, and against what."""
        if self.over:
            return self.over
        waits = f"; its promotion is {self.waits}" if self.waits else ""
        return f"{self.model}@{ALIAS} is version {self.version}, beside {self.name}, version {self.champion}{waits}"

    @property
    def requirement(self) -> str:
        """What must be shown."""
        terms = self.terms
        gain = f"a gain above {terms.bound:g}" if terms.bound >= 0 else f"a loss below {-terms.bound:g}"
        return f"{terms.metric}: {gain}, with confidence {terms.confidence:g}, on {terms.min_rows:,} rows or more"

    @property
    def rows(self) -> str:
        """The fresh rows so far."""
        nights = f"{self.standing.nights} run{'' if self.standing.nights == 1 else 's'}"
        return f"{self.standing.rows:,} fresh rows, of {nights}"

    @property
    def gain(self) -> str:
        """The gain and its interval; "" as long as there are no rows."""
        found = self.standing
        if found.gain is None:
            return ""
        low, high = ("–" if one is None else f"{one:+.4g}" for one in (found.low, found.high))
        return f"{found.gain:+.4g} (interval {low} to {high})"

    @property
    def decides(self) -> str:
        """What would decide; "" if it is decided."""
        found, more = self.standing, ""
        if found.rows < self.terms.min_rows:
            return f"{self.terms.min_rows - found.rows:,} more rows, before anything is decided"
        if found.rows_to_go:
            more = f"about {found.rows_to_go:,} more rows, if the gain stays as it is"
        return more or ("" if found.verdict != "open" else "the rows give no estimate yet")


def canary_of(store: Store, model: str) -> CanaryView | None:
    """The canary of a model; None if there is none. UsageError if something else moved its alias."""
    canary = canaries.standing_canary(store, model)
    if canary is None:
        return None
    found = registry.read_alias(store, model, canary.terms.alias)
    champion = canary.terms.against if found is None else found[1]
    return CanaryView(
        model=model,
        name=canary.name,
        version=canary.version.version,
        champion=champion,
        terms=canary.terms,
        standing=stored_standing(store, canary, champion),
        over=canaries.why_over(store, canary, champion),
        waits=_waits(store, canary, champion),
    )


def canary_line(store: Store, model: str) -> str:
    """Where a model's canary stands, behind its version in a list; "" if its alias is not a canary's, or is damaged."""
    try:
        view = canary_of(store, model)
    except UsageError:
        return ""
    except CorruptError as error:
        pass_over(error)
        return ""
    if view is None or view.over:
        return "" if view is None else "(has ended)"
    return f"(beside {view.name}, {view.rows}, until {readable(view.terms.until)})"


def _waits(store: Store, canary: Canary, champion: int) -> str:
    ask = canaries.ask_of(store, canary, champion)
    if ask is None or canaries.end_of(store, canary) is not None:
        return ""
    return f"waiting {standing_of(store, ask.run_id) or 'to be asked for'} (run {ask.run_id})"
