"""Files that `init` writes beside a pipeline: what the hosts' schemas, Prefect and DVC read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from flows.arguments import EXTRAS as OFFERED
from infra.project import EXTRAS, project_extras

SCHEMAS = {"github": "vendor.github-workflows", "gitlab": "vendor.gitlab-ci"}


def text_of(kind: str) -> str:
    (text,) = project_extras([kind], "my.model_2", Path("/nowhere")).values()
    return text


def complaints(kind: str, text: str, folder: Path) -> str:
    """What the host's published schema has against a workflow; "" if it has nothing."""
    file = folder / "workflow.yml"
    file.write_text(text)
    done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", SCHEMAS[kind], "-q", "-v", str(file)])
    return "" if done.exit_code == 0 else done.output or "refused"


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize("shipped", [True, False])
def test_workflows_are_what_the_hosts_schemas_allow(kind: str, shipped: bool, repository: Path, tmp_path: Path) -> None:
    text = (repository / f"examples/ci/{kind}.yml").read_text() if shipped else text_of(kind)
    assert complaints(kind, text, tmp_path) == ""
    if not shipped:
        assert not re.search(r"\bSPEC\b|\bPIPELINE\b|\bREVISION\b", text)
        assert re.search(r"TRAINWRIGHT_REVISION: ([0-9a-f]{40}|HEAD)\n", text), "which code is used must not move"
        assert "trainwright ci pipeline.yaml --deployment my.model_2 " in text.replace("\n", " ")


def test_a_pull_request_gets_no_secret_and_a_cancel_reaches_the_command() -> None:
    workflow: dict[Any, Any] = yaml.safe_load(text_of("github"))
    assert workflow[True].keys() == {"pull_request", "push"}, "YAML 1.1 reads `on` as true"
    assert workflow["permissions"] == {"contents": "read"}
    here, remote = workflow["jobs"]["here"], workflow["jobs"]["remote"]
    assert (here["if"], remote["if"]) == ("github.event_name == 'pull_request'", "github.event_name == 'push'")
    assert "secrets." not in str(here)
    for step in [*here["steps"], *remote["steps"]]:
        assert "${{" not in step.get("run", ""), "what is put into a script is run"
        assert "trainwright ci" not in step.get("run", "") or step["run"].startswith("exec trainwright ci ")
        assert step.get("with", {}).get("persist-credentials", False) is False


def test_prefect_and_dvc_files_name_this_pipeline_and_no_example() -> None:
    prefect = yaml.safe_load(text_of("prefect"))
    (deployment,) = prefect["deployments"]
    assert (deployment["name"], deployment["entrypoint"]) == ("my.model_2", "flows.retrain.retrain")
    assert deployment["parameters"] == {"spec": "{{ checkout.stdout }}/pipeline.yaml"}
    assert deployment["work_pool"] == {"name": "trainwright"}
    dvc = yaml.safe_load(text_of("dvc"))
    assert list(dvc["stages"]) == ["validate", "shard", "train", "verify", "evaluate", "promote"]
    assert dvc["stages"]["promote"]["cmd"] == "trainwright promote pipeline.yaml --out handoffs/promote.json"
    for kind in ("prefect", "dvc"):
        assert not re.search(r"examples|digits/|Handwritten|stdlib", text_of(kind))


def test_each_file_is_offered_and_has_a_place_of_its_own() -> None:
    assert tuple(EXTRAS) == OFFERED
    assert len(project_extras(list(EXTRAS), "x", Path("/nowhere"))) == len(EXTRAS)
