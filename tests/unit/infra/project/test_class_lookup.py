"""A class that a spec names is found in the sources, without importing them; one that is not there is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.project import require_class
from tests.support.files import write_files

FOUND = [
    "net.model.Net",
    "net.model.Aliased",
    "net.model.Imported",
    "net.model.one",
    "net.model.made",
    "net.model.annotated",
    "net.model.guarded",
    "net.model.Net.Inner",
    "net.Exported",
    "net.star.Anything",
    "net.lazy.Anything",
    "net.broken.Anything",
    "space.part.Thing",
    "single.Thing",
    "json.decoder.JSONDecoder",
    "infra.prices.Machine",
    "torchmetrics.classification.MulticlassAccuracy",
    "math.sqrt",
    "sys.path",
    "_struct.Struct",
]
NOT_FOUND = [
    ("Net", "'Net' is not the path of a class or function. Write it as module.Class"),
    ("net.model.", "'net.model.' is not the path of a class or function."),
    ("nett.model.Net", "there is no module nett in {root}, and none is installed. Write the path from"),
    ("net.modle.Net", "there is no module net.modle."),
    ("net.model.Ned", "there is no Ned in {root}/net/model.py. Did you mean net.model.Net?"),
    ("net.model.Xyzzy", "there is no Xyzzy in {root}/net/model.py. Check the spelling"),
    ("net.model", "'net.model' names a module. Name a class in it, as in net.model.MyModel."),
    ("space.Thing", "there is no module space.Thing."),
    ("infra.prices.Nothing", "there is no Nothing in"),
]


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """A project with a module for each way in which a name can be bound."""
    model = """import json as Aliased
from collections import Counter as Imported
one, (made, other) = 1, (2, 3)
annotated: int = 4
try:
    import nothing as guarded
except ImportError:
    guarded = None
class Net:
    class Inner: ...
def f():
    Hidden = 1
raise SystemExit("imported")
"""
    files = {"net/model.py": model, "net/__init__.py": "from .model import Net as Exported", "single.py": "Thing = 1"}
    files |= {"net/star.py": "from net.model import *", "net/lazy.py": "def __getattr__(name): ..."}
    files |= {"net/broken.py": "class (", "space/part.py": "Thing = 1"}
    return write_files(tmp_path / "project", files)


@pytest.mark.parametrize("dotted", FOUND)
def test_a_class_is_found_without_importing_it(dotted: str, classes: Path) -> None:
    before = set(sys.modules)
    require_class(classes, dotted)
    own = {path.stem for path in classes.iterdir()}
    assert [name for name in set(sys.modules) - before if name.split(".")[0] in own] == []


@pytest.mark.parametrize(("dotted", "sentence"), NOT_FOUND)
def test_a_class_that_is_not_there_is_named(dotted: str, sentence: str, classes: Path) -> None:
    with pytest.raises(UsageError) as caught:
        require_class(classes, dotted)
    assert sentence.format(root=classes) in str(caught.value)
