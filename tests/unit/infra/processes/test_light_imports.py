"""Imports without garbage collections and without what is seldom used, which is there when it is used."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from data_contracts.messages.children import Child
from infra.child import run_child
from infra.processes.light_imports import light_imports

MODULE = """
import gc
import json
import subprocess
import sys

importing = gc.isenabled()

from data_contracts.messages.children import Child
from data_contracts.messages import Message
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
    held = scipy.stats, altair
late = ("scipy.signal", "scipy.stats", "altair")
assert not [name for name in sys.modules if name.startswith(late)]
for name, use in json.load(sys.stdin).items():
    if not (child := os.fork()):
        exec(use, {"threading": threading, "held": held})
        os._exit(0)
    if not os.waitpid(child, 0)[1]:
        print(name)
"""
USES = {
    "a name": "import scipy.stats; assert scipy.stats.entropy([1, 1]) > 0.69",
    "an attribute of the package": "import scipy; assert scipy.stats.entropy([1, 1]) > 0.69",
    "from": "from scipy.signal import convolve; assert list(convolve([1], [2])) == [2]",
    "all": "from scipy.signal import *; assert list(convolve([1], [2])) == [2]",
    "a part first": "from scipy.signal._signaltools import _centered; from scipy.stats._continuous_distns import norm",
    "a part of altair first": "from altair.vegalite.v6 import api; import altair; assert altair.Chart is api.Chart",
    "no such name": "import scipy.stats; assert not hasattr(scipy.stats, 'there_is_none')",
    "by value": "import scipy.stats, types; assert type(scipy.stats) is types.ModuleType",
    "what a library holds": "import scipy.stats, altair; assert held[0].norm is scipy.stats.norm; assert held[1].Chart",
    "two threads": """
found = []
threads = [threading.Thread(target=lambda: found.append(held[0].entropy)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(found) == 8 and len(set(found)) == 1, found""",
}


@pytest.mark.slow
def test_what_is_imported_late_is_there_for_everyone_who_uses_it() -> None:
    command = [sys.executable, "-c", LATELY]
    done = subprocess.run(command, input=json.dumps(USES), capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == list(USES), done.stderr


USED_AT_ONCE = """
import sys
from infra.processes.light_imports import light_imports

with light_imports():
    import scipy.stats
    assert scipy.stats.entropy([1, 1]) > 0.69
    import scipy.stats as again
assert again is sys.modules["scipy.stats"] and again.entropy
"""


def test_what_is_used_while_packages_are_imported_is_imported_then() -> None:
    done = subprocess.run([sys.executable, "-c", USED_AT_ONCE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
