"""A conductor that is taken over says so, whether it or its node hears of it first."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.errors import Fenced
from infra.gang.members import Progress
from infra.store import Lease, Store, layout
from tests.support.conducting import TRAINING, run


@pytest.mark.warm
@pytest.mark.usefixtures("mark")
@pytest.mark.parametrize("launch", [{}, {"lease_silence_s": 4}], ids=["its node", "the conductor"])
def test_a_conductor_whose_lease_was_taken_is_fenced(launch: dict[str, Any], store: Store) -> None:
    """By default the conductor renews its lease only every ten seconds, and its node reads it more often."""
    taken: list[Lease] = []

    def usurp(progress: Progress) -> None:
        # Not at one step: a busy machine is not seen at each.
        if progress.step >= 3 and not taken:
            taken.append(Lease.take(store, layout.lease(TRAINING), "usurper", patience_s=0))

    with pytest.raises(Fenced, match="now belongs to usurper"):
        run(store, {"steps": 2000, "every": 3000, "step_s": 0.1}, on_progress=usurp, devices=1, launch=launch)
    assert not store.exists(layout.result(TRAINING))
    lease = store.pointer(layout.lease(TRAINING)).read().value
    assert (lease["holder"], lease["released"]) == ("usurper", False)
