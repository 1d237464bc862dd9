"""A program that conducts a training of fake ranks, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.store import Store
from tests.support.conducting import steps_in
from tests.support.waiting import PATIENCE_S, until


class Conducted:
    """A process of a module that prints into `said` in `folder`, a line of JSON for each progress and for its end.

    Args:
        words: the module, and its arguments.
    """

    def __init__(self, folder: Path, store: Store, words: Sequence[str], environment: Mapping[str, str]) -> None:
        folder.mkdir(exist_ok=True)
        self.store, self.folder = store, folder
        self._said, self._errors = folder / "said", folder / "errors"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def steps(self) -> dict[tuple[int, int], list[int]]:
        """The steps that each (generation, rank) took."""
        return steps_in(self.folder)

    def lines(self) -> list[dict[str, Any]]:
        """All that it said so far."""
        text = self._said.read_text() if self._said.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def said(self, wanted: Callable[[dict[str, Any]], object], timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The first progress that is wanted."""

        def look() -> dict[str, Any] | None:
            # Before the look, so that nothing is said after it.
            over = self.process.poll() is not None
            found = next((line for line in self.lines() if "phase" in line and wanted(line)), None)
            assert found or not over, f"{self._end()} {self.lines()[-3:]}"
            return found

        return until(look, timeout_s, lambda: self.lines()[-5:])

    def ended(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Its last line, once it has ended."""
        self.process.wait(timeout_s)
        lines = self.lines()
        assert lines, self._end()
        return lines[-1]

    def _end(self) -> str:
        return f"exit code {self.process.returncode}: {self._errors.read_text()[-4000:]}"

    def trained(self) -> tuple[int, int]:
        """The step that it trained to, and in how many generations."""
        last = self.ended()
        assert "generations" in last, [line for line in self.lines() if line.get("phase") != "training"]
        return last["step"], last["generations"]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)
