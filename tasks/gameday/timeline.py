"""What the records of a training say about its fault: when it was injected, noticed and recovered from.

All times are those of the clock that dates the store's files, so the clocks of nodes need not agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from data_contracts.errors import CorruptError
from data_contracts.messages.gang import CancelMarker, InjectedFault, StepAfter
from infra.gang.ledger import generations
from infra.store import Store, layout
from infra.store.layout import game_day_record


@dataclass(frozen=True)
class Timeline:
    """The fault of a training.

    Attributes:
        injected: what was injected; None: nothing, because the training ended before.
        injected_at: Unix time.
        noticed_s: from there to the end of the generation; None if it did not end.
        cause: of that end.
        recovered_s: from the fault to the end of the first step after it; None if there was none.
        caught_up_s: from the fault to the end of the first step that had not been taken before.
        resumed_from: the step from which training continued.
    """

    injected: InjectedFault | None = None
    injected_at: float = 0.0
    noticed_s: float | None = None
    cause: str = ""
    recovered_s: float | None = None
    caught_up_s: float | None = None
    resumed_from: int | None = None

    @property
    def lost_steps(self) -> int | None:
        """Steps that were taken twice."""
        if self.injected is None or self.resumed_from is None:
            return None
        return max(0, self.injected.step - self.resumed_from)


def read_timeline(store: Store, training: str, causes: Sequence[str]) -> Timeline:
    """The timeline of a training's fault.

    Args:
        causes: how the fault may be named; with none, it is noticed when the next generation is launched.
    """
    path = game_day_record(training, "injected")
    injected = store.find_as(path, InjectedFault.from_json)
    if injected is None:
        return Timeline()
    written = {file.path: file.written_s for file in store.stored(training)}
    began = written[path]

    def after_s(record: str) -> float | None:
        return max(0.0, written[record] - began) if record in written else None

    later = [number for number in sorted(generations(store, training)) if number >= injected.generation]
    marks = {number: store.find_as(layout.cancel(training, number), CancelMarker.from_json) for number in later}
    ends = [(number, mark.cause) for number, mark in marks.items() if mark is not None]
    record, cause = _noticed(training, injected, ends, causes, later)
    noticed_s = None if record is None else after_s(record)
    first = store.find_as(game_day_record(training, "first"), StepAfter.from_json)
    return Timeline(
        injected=injected,
        injected_at=began,
        noticed_s=noticed_s,
        cause="" if noticed_s is None else cause,
        recovered_s=after_s(game_day_record(training, "first")),
        caught_up_s=after_s(game_day_record(training, "caught-up")),
        resumed_from=None if first is None else first.resumed_from,
    )


def _noticed(
    training: str, injected: InjectedFault, ends: list[tuple[int, str]], causes: Sequence[str], later: list[int]
) -> tuple[str | None, str]:
    """The record that shows that the fault was noticed, and the cause that it names."""
    if not causes:
        return (layout.launch(training, later[1]), "") if len(later) > 1 else (None, "")
    if injected.name == "checkpoint-damaged":  # no generation begins from it, so none ends by it
        return layout.quarantined(injected.checkpoint), CorruptError.cause
    named = next((end for end in ends if end[1] in causes), ends[0] if ends else None)
    return (None, "") if named is None else (layout.cancel(training, named[0]), named[1])
