"""Shows the stages that a command runs. Rich is imported when the first stage begins; most commands run none."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from infra.processes.processes import uninterrupted
from tasks.run.progress import listening

log = logging.getLogger("trainwright")


@contextlib.contextmanager
def stages_shown(*, live: bool, colour: bool) -> Iterator[None]:
    """Show stages inside: on stderr if it is a terminal, or not at all; log lines are printed either way."""
    view = _Watching(colour)
    try:
        with listening(view.handle if live else lambda _: None, owns_terminal=True):
            yield
    finally:
        view.end()


class _Watching:
    def __init__(self, colour: bool) -> None:
        self._colour = colour
        self._view: Any = None
        self._failed = False

    def handle(self, event: Any) -> None:
        if self._failed:
            return
        try:
            self._begun().handle(event)
        except Exception as error:  # a failing view must not end the run
            self._failed = True
            self.end()
            log.warning(
                "The live view failed and is switched off; the run continues (%s: %s).", type(error).__name__, error
            )

    def end(self) -> None:
        if self._view is not None:
            self._view.end()

    def _begun(self) -> Any:
        if self._view is None:
            # Not every library's import survives an exception from a signal.
            with uninterrupted():
                from flows.commands.live_view import LiveView

                self._view = LiveView(colour=self._colour)
        return self._view
