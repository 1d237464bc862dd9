"""The user's code: what is not found is a usage error, what raises is theirs, with their frames and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

from data_contracts.errors import ContractRejected, UsageError, UserCodeError
from tests.support.tiny import own_modules
from training.user.imports import add_project, load_callable, load_class, user_code

FILES = {
    "good.py": "from pathlib import PurePath\nclass Model(PurePath): ...\nclass Other: ...\nword = 1\n",
    "raises.py": "import math\n\ndef deep():\n    math.sqrt(-1)\n\ndeep()\nclass Model: ...\n",
    "wants.py": "import package_that_is_not_there\nclass Model: ...\n",
    "leaves.py": "raise SystemExit(0)\n",
    "broken.py": "class Model(:\n",
    "inner/__init__.py": "",
    "inner/calls.py": "def double(batch, times):\n    return batch * times\ndef fails(batch):\n    return {}[batch]\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    project = tmp_path / "project"
    for name, text in FILES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    with own_modules():
        yield add_project(project)


@pytest.mark.parametrize(
    ("dotted", "sentence"),
    [
        ("nowhere.Model", "field: nowhere.Model was not found: there is no module nowhere."),
        ("good.sub.Model", "field: good.sub.Model was not found: there is no module good.sub."),
        ("good.Nothing", "field: good.Nothing was not found: module good has no Nothing."),
        ("good.Other", "field: good.Other is not a PurePath."),
        ("good.word", "field: good.word is not a PurePath."),
        ("Model", "field: 'Model' names no module."),
    ],
)
def test_what_cannot_be_a_class_is_a_usage_error(dotted: str, sentence: str, root: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_class(dotted, PurePath, "field", root)
    assert caught.value.message == sentence


@pytest.mark.parametrize(
    ("module", "message", "last"),
    [
        ("raises", "ValueError: ", "ValueError: "),
        ("wants", "ModuleNotFoundError: No module named 'package_that_is_not_there'", "ModuleNotFoundError: "),
        ("leaves", "SystemExit: 0", "SystemExit: 0"),
        ("broken", "SyntaxError: ", "SyntaxError: "),
    ],
)
def test_a_file_that_raises_on_import_is_the_users(module: str, message: str, last: str, root: Path) -> None:
    with pytest.raises(UserCodeError) as caught:
        load_class(f"{module}.Model", PurePath, "field", root)
    assert caught.value.message.startswith(f"field: importing {module} raised {message}")
    lines = caught.value.user_traceback.splitlines()
    assert lines[-1].startswith(last)
    assert f"{module}.py" in caught.value.user_traceback


def test_without_a_frame_of_the_users_the_whole_traceback_is_kept(root: Path) -> None:
    with pytest.raises(UserCodeError) as caught, user_code("it", root):
        int("x")
    assert "in user_code" in caught.value.user_traceback or "int(" in caught.value.user_traceback


def test_no_callable(root: Path) -> None:
    with pytest.raises(UsageError, match="field: good.word is not a function"):
        load_callable("good.word", {}, "field", root)


@pytest.mark.parametrize("error", [ContractRejected("as it was."), KeyboardInterrupt()])
def test_our_own_errors_and_ctrl_c_pass(error: BaseException, root: Path) -> None:
    with pytest.raises(type(error)) as caught, user_code("it", root):
        raise error
    assert caught.value is error


def test_an_error_of_ours_that_their_code_brought_about_is_theirs_where_texts_are_withheld(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They gave our function a value, which its sentence quotes."""
    source = "from infra.store.layout import check_path\ndef fails(batch):\n    return check_path(batch)\n"
    (root / "asks.py").write_text(source)
    value = "../Jane Doe"
    call = load_callable("asks.fails", {}, "field", root)
    with pytest.raises(UsageError, match="Jane Doe"):
        call(value)
    monkeypatch.setenv("TRAINWRIGHT_WITHHELD", "/log")
    with pytest.raises(UserCodeError) as caught:
        call(value)
    assert "Jane Doe" not in str(caught.value.to_json())
