"""A command that is forked from a warm process (`tests/support/speed/children.py`) behaves as a new process does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.speed.children import ROOT
from tests.support.tiny import complaints, trainwright, write_project


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["plan", "none.yaml"], 2),
        (["plan", "pipeline.yaml", "--no-estimate", "--json"], 0),
    ],
)
def test_what_it_prints_and_its_exit_code_are_the_same(words: list[str], code: int, tmp_path: Path) -> None:
    write_project(tmp_path)
    forked, fresh = (trainwright(*words, cwd=tmp_path, forked=forked) for forked in (True, False))
    assert forked.returncode == fresh.returncode == code
    assert (forked.stdout, complaints(forked)) == (fresh.stdout, complaints(fresh))


SETTINGS = """
import json, logging, os, sys
from pathlib import Path
if sys.argv[1] == "held":
    from tests.support.speed.prefect_modules import HeldModules
    sys.meta_path.insert(0, HeldModules())
    assert not [name for name in sys.modules if name.startswith("prefect")]
    assert not logging.getLogger("prefect.extra").handlers
os.environ.update(PREFECT_API_URL="http://127.0.0.1:9/api", PREFECT_HOME=sys.argv[2], PREFECT_LOGGING_LEVEL="ERROR")
Path(sys.argv[2], "profiles.toml").write_text('active = "mine"\\n[profiles.mine]\\nPREFECT_CLIENT_MAX_RETRIES = "3"\\n')
from prefect import flow
from prefect.context import get_settings_context
from prefect.settings import get_current_settings
import prefect.main
loggers = {name: logging.getLogger(name) for name in ("prefect", "prefect.extra", "prefect.flow_runs", "uvicorn")}
print(json.dumps({
    "settings": get_current_settings().model_dump(mode="json"),
    "profile": get_settings_context().profile.name,
    "logs": {name: [one.level, [type(each).__name__ for each in one.handlers]] for name, one in loggers.items()},
    "main": [flow is prefect.main.flow, prefect.flow is flow, prefect.__spec__.name, prefect.__spec__.origin],
}))
"""


@pytest.mark.slow
def test_prefect_reads_its_settings_when_a_command_imports_it(tmp_path: Path) -> None:
    seen = {}
    for way in ("held", "fresh"):
        (tmp_path / way).mkdir()
        done = subprocess.run(
            [sys.executable, "-c", SETTINGS, way, str(tmp_path / way)],
            cwd=tmp_path / way,  # the repository's root may have a prefect.toml, which commands leave there
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        seen[way] = json.loads(done.stdout.replace(str(tmp_path / way), "HOME"))
    assert seen["held"] == seen["fresh"]
    assert seen["fresh"]["settings"]["api"]["url"] == "http://127.0.0.1:9/api"
    assert (seen["fresh"]["profile"], seen["fresh"]["settings"]["client"]["max_retries"]) == ("mine", 3)
    assert seen["fresh"]["main"][:2] == [True, True]
