"""What the docs say is so: commands, spec fields, exit codes, links and the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import RunReport
from data_contracts.spec import PipelineSpec
from flows.cli import SUBCOMMANDS, parser

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
STAGE_PAGES = ("validate", "shard", "train", "verify", "evaluate", "promote", "report")


def text(*names: str) -> str:
    return "\n".join((ROOT / name).read_text() for name in names)


def test_every_stage_has_a_page() -> None:
    assert [name for name in STAGE_PAGES if not (ROOT / "docs" / f"{name}.md").exists()] == []


def test_every_command_is_documented() -> None:
    page = text("docs/commands.md")
    assert [name for name in SUBCOMMANDS if f"`{name}" not in page] == []


def test_every_option_is_in_the_pages() -> None:
    pages = "\n".join(path.read_text() for path in PAGES)
    [commands] = [action for action in parser()._actions if hasattr(action, "choices") and action.choices]
    options = {
        option
        for command in commands.choices.values()
        for action in command._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    assert sorted(option for option in options - {"--help"} if option not in pages) == []


def fields(schema: dict, definitions: dict) -> set[str]:
    """Names of all fields of a model and of the sections below it."""
    found = set(schema.get("properties", {}))
    return found | {name for one in definitions.values() for name in one.get("properties", {})}


def test_every_field_of_the_spec_is_documented() -> None:
    schema = PipelineSpec.model_json_schema()
    pages = text(*(f"docs/{name}.md" for name in (*STAGE_PAGES, "operating")))
    pages += text("examples/digits/pipeline.yaml")
    missing = [name for name in fields(schema, schema["$defs"]) if not re.search(rf"\b{name}\b", pages)]
    assert sorted(missing) == []


def codes(kind: type[TrainwrightError]) -> set[int]:
    return {kind.exit_code}.union(*(codes(child) for child in kind.__subclasses__()))


def test_every_exit_code_is_documented() -> None:
    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", text("docs/exit-codes.md"), re.MULTILINE)}
    assert rows == codes(TrainwrightError) | {0}


def test_the_report_page_names_what_run_prints() -> None:
    page = text("docs/report.md")
    asked = ("run_id", "verdict", "stages", "dataset_id", "checkpoint_id", "model", "metrics", "cost")
    assert [name for name in asked if name not in page or name not in RunReport.model_fields] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_tree_in_the_readme_is_true() -> None:
    tree = text("README.md").split("## The tree")[1].split("```")[1]
    folder, missing = ROOT, []
    for line in filter(str.strip, tree.splitlines()):
        indent = len(line) - len(line.lstrip())
        names = [word for word in re.split(r"\s{2,}", line.strip())[0].split() if "." in word or word.endswith("/")]
        if indent == 0:
            folder = ROOT / names[0] if names[0].endswith("/") else ROOT
            missing += [name for name in names if not (ROOT / name).exists()]
        else:
            missing += [name for name in names if not (folder / name).exists()]
    assert missing == []


def test_every_module_of_the_top_rooms_is_in_the_tree() -> None:
    tree = text("README.md").split("## The tree")[1]
    modules = [
        path
        for room in ("flows", "tasks", "training", "infra", "data_contracts")
        for path in (ROOT / room).glob("*.py")
    ]
    assert [path.name for path in modules if path.stem != "__init__" and path.name not in tree] == []
