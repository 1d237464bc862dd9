"""The collector is paused while a child's modules are imported, and runs while the child works."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from data_contracts.messages.children import Child
from infra.processes.child import run_child
from infra.processes.paused_collector import collector_paused

MODULE = """
import gc

importing = gc.isenabled()

from data_contracts.messages.children import Child
from data_contracts.messages.message import Message
from infra.processes.child_main import child_main


class Question(Message):
    pass


class Collects(Message):
    importing: bool
    working: bool


CHILD = Child("collecting", Question, Collects)

if __name__ == "__main__":
    child_main(CHILD, lambda question, report: Collects(importing=importing, working=gc.isenabled()))
"""


def test_a_child_collects_while_it_works_and_not_while_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "collecting.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    import collecting

    child: Child = collecting.CHILD
    assert run_child(child, collecting.Question()) == collecting.Collects(importing=False, working=True)


def failing_import() -> None:
    with collector_paused():
        assert not gc.isenabled()
        raise ImportError


def test_the_collector_runs_again_even_after_an_import_that_failed() -> None:
    with pytest.raises(ImportError):
        failing_import()
    assert gc.isenabled()


def test_a_collector_that_someone_else_stopped_stays_stopped() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
