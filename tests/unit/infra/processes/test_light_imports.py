"""Imports without garbage collections and without what is seldom used, which is there when it is used."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from data_contracts.messages.children import Child
from infra.processes.child import run_child
from infra.processes.light_imports import light_imports

MODULE = """
import gc
import json
import subprocess
import sys

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
    with light_imports():
        assert not gc.isenabled()
        raise ImportError


def test_the_collector_runs_again_even_after_an_import_that_failed() -> None:
    with pytest.raises(ImportError):
        failing_import()
    assert gc.isenabled()


def test_a_collector_that_someone_else_stopped_stays_stopped() -> None:
    gc.disable()
    try:
        with light_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


# Each use in a process of its own, forked from one that has imported the packages.
LATELY = """
import json, os, sys, threading
from infra.processes.light_imports import light_imports

with light_imports():
    import altair, torchmetrics, scipy.stats
parts = ("scipy.signal._signaltools", "scipy.stats._stats_py", "altair.vegalite")
assert not [name for name in parts if name in sys.modules]
for name, use in json.load(sys.stdin).items():
    if not (child := os.fork()):
        exec(use, {"threading": threading})
        os._exit(0)
    if not os.waitpid(child, 0)[1]:
        print(name)
"""
USES = {
    "a name": "import scipy.stats; assert scipy.stats.entropy([1, 1]) > 0.69",
    "from": "from scipy.signal import convolve; assert list(convolve([1], [2])) == [2]",
    "all": "from scipy.signal import *; assert list(convolve([1], [2])) == [2]",
    "a part": "from scipy.signal.windows import hann; from scipy import signal; assert signal.windows.hann is hann",
    "what torchmetrics adds": "import scipy.signal; assert list(scipy.signal.hamming(1)) == [1.0]",
    "no such name": "import scipy.stats; assert not hasattr(scipy.stats, 'there_is_none')",
    "names": "import altair; assert 'Chart' in dir(altair)",
    "pickled": "import pickle; from scipy.stats import entropy; assert pickle.loads(pickle.dumps(entropy)) is entropy",
    "two threads": """
import scipy.stats
found = []
threads = [threading.Thread(target=lambda: found.append(scipy.stats.entropy)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(found) == 8 and len(set(found)) == 1, found""",
}


def test_what_is_loaded_late_is_there_when_it_is_used() -> None:
    command = [sys.executable, "-c", LATELY]
    done = subprocess.run(command, input=json.dumps(USES), capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == list(USES), done.stderr
