"""Which settings of Prefect the files of a folder may bring along."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from flows.cli import main
from infra.orchestrator.api import refuse_settings_of
from infra.settings import state_folder
from tests.support.files import write_files

PROGRAM = "[logging]\nconfig_path = 'evil.yml'\n"


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("prefect.toml", PROGRAM, "PREFECT_LOGGING_CONFIG_PATH"),
        ("prefect.toml", "api.url = 'http://evil'", "PREFECT_API_URL"),
        ("prefect.toml", "profiles_path = '/evil'", "PREFECT_PROFILES_PATH"),
        ("pyproject.toml", "[tool.prefect.api]\nurl = 'http://evil'", "PREFECT_API_URL"),
        (".env", "A=1\n export PREFECT_API_URL = http://evil", "PREFECT_API_URL"),
        (".env", "prefect_logging_config_path=x", "PREFECT_LOGGING_CONFIG_PATH"),
        (".env", "'PREFECT_LOGGING_CONFIG_PATH'=x", "PREFECT_LOGGING_CONFIG_PATH"),
        (".env", 'PREFECT_API={"url": "http://evil"}', "PREFECT_API_URL"),
        (".env", 'PREFECT_LOGGING=\'{"prefect_logging_settings_path": "x"}\'', "PREFECT_LOGGING_SETTINGS_PATH"),
        (".env", "PREFECT_EXPERIMENTS_PLUGINS_ENABLED=true", "PREFECT_EXPERIMENTS_PLUGINS_ENABLED"),
        ("prefect.toml", "[server.api]\nhost = '192.0.2.1'", "PREFECT_SERVER_API_HOST"),
        (".env", "PREFECT_SERVER_API_AUTH_STRING=a:b", "PREFECT_SERVER_API_AUTH_STRING"),
        (".env", "PREFECT_UI_API_URL=https://evil/api", "PREFECT_UI_API_URL"),
        ("pyproject.toml", "[tool.prefect.server.events]\nprefect_messaging_broker = 'x'", "PREFECT_MESSAGING_BROKER"),
    ],
)
@pytest.mark.usefixtures("home")
def test_no_file_of_a_folder_chooses_a_server_or_a_program(file: str, text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(UsageError, match=f"{file}: sets Prefect's {named},"):
        refuse_settings_of(tmp_path)


@pytest.mark.usefixtures("home")
def test_other_settings_and_what_up_writes_are_taken(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    profiles = state_folder() / "profiles.toml"
    profiles.write_text("")
    ours = f"profiles_path = {json.dumps(str(profiles))}\n"
    write_files(
        folder,
        {
            "prefect.toml": f"{ours}[logging]\nlevel = 'DEBUG'\n",
            "pyproject.toml": "[project]\nname = 'a'\n",
            ".env": 'API_URL=x\n# PREFECT_API_URL=x\nPREFECT_LOGGING={"level": "DEBUG"}\nA=\'\nPREFECT_API_URL=x\'\n',
        },
    )
    refuse_settings_of(folder)
    write_files(
        folder, {"profiles.toml": "", "prefect.toml": f"profiles_path = {json.dumps(str(folder / 'profiles.toml'))}\n"}
    )
    with pytest.raises(UsageError, match="PREFECT_PROFILES_PATH"):
        refuse_settings_of(folder)


@pytest.mark.parametrize(
    ("file", "data", "why"),
    [
        ("pyproject.toml", b"[no toml", "Expected ']'"),
        ("pyproject.toml", b"tool = 1", "tool is not a table"),
        ("pyproject.toml", b"tool.prefect = 1", "prefect is not a table"),
        ("prefect.toml", b"a = '\xff'", "'utf-8' codec can't decode"),
        ("prefect.toml", b"a = " + b"[" * 100_000, "maximum recursion depth"),
        ("prefect.toml", None, ".* not a regular file"),
        (".env", None, ".* not a regular file"),
    ],
)
def test_a_file_on_which_prefect_would_hang_or_crash_is_refused(
    file: str, data: bytes | None, why: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / file) if data is None else (tmp_path / file).write_bytes(data)
    with pytest.raises(UsageError, match=f"{file} cannot be read: {why}"):
        refuse_settings_of(tmp_path)


@pytest.mark.usefixtures("home")
def test_a_command_is_refused_before_prefect_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prefect.toml").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    assert main(["doctor"]) == 2
    assert "prefect.toml: sets Prefect's PREFECT_LOGGING_CONFIG_PATH" in capsys.readouterr().err
