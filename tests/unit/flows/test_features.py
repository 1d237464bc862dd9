"""The table of features: what it names exists, the core's contract names the same files, and nothing fails silently."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from flows import features
from flows.cli import SUBCOMMANDS
from flows.features import EVENTS_OF_RUN, FEATURES, Feature, absent_commands, hooks, is_present, present

OF_COMMANDS = ("resume", "decide", "reap", "due", "collect")


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row.name)
def test_what_a_row_names_exists(row: Feature, repository: Path) -> None:
    assert all((repository / one).exists() for one in row.folders)
    assert (repository / "docs" / row.page).is_file()
    assert {*row.commands} <= {*SUBCOMMANDS}
    assert {*row.needs} <= {one.name for one in FEATURES}
    assert {*row.hooks} <= {*EVENTS_OF_RUN, *OF_COMMANDS}
    assert {hook.split(":")[0].replace(".", "/") for hook in row.hooks.values()} <= {
        (repository / one).relative_to(repository).with_suffix("").as_posix()
        for folder in row.folders
        for one in ([folder] if (repository / folder).is_file() else (repository / folder).glob("*.py"))
    }


def test_all_features_are_here_and_their_hooks_can_be_called() -> None:
    assert present() == [*FEATURES]
    assert not absent_commands()
    assert all(callable(hook) for event in (*EVENTS_OF_RUN, *OF_COMMANDS) for hook in hooks(event))
    commands = [name for row in FEATURES for name in row.commands]
    assert len(commands) == len({*commands})


def test_the_contract_on_the_core_forbids_all_files_of_the_ring(repository: Path) -> None:
    settings = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]
    [contract] = [one for one in settings["contracts"] if one["name"] == "The core knows nothing of the ring"]
    files = {one.removesuffix(".py").replace("/", ".") for row in FEATURES for one in row.folders if "yaml" not in one}
    assert {*contract["forbidden_modules"]} == files


def test_a_feature_is_absent_with_those_that_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_ROOT", tmp_path)
    for name in ("tasks/pages/__init__.py", "tasks/telemetry.py", "tasks/export.py", "tasks/mirrors/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "tasks" / "predict" / "__pycache__").mkdir(parents=True)
    assert [row.name for row in present()] == ["telemetry", "export"]
    assert not is_present("mirrors")
    assert {"mirror", "status", "predict"} <= absent_commands()
    assert "export" not in absent_commands()
    assert not hooks("report")


def test_a_damaged_feature_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Feature("damaged", ("flows/features.py", "tasks/gone.py"), (), "", hooks={"begin": "tasks.gone:begin"})
    monkeypatch.setattr(features, "FEATURES", (row,))
    with pytest.raises(ModuleNotFoundError, match=r"tasks\.gone"):
        hooks("begin")
