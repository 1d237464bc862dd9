"""What the docs say is so: commands, spec fields, exit codes and links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_contracts.errors import TrainwrightError
from data_contracts.run_report import RunReport
from flows.cli import SUBCOMMANDS
from flows.stages import verbs

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
STAGE_PAGES = (*verbs(), "report")


def text(*names: str) -> str:
    return "\n".join((ROOT / name).read_text() for name in names)


def test_every_stage_has_a_page() -> None:
    assert [name for name in STAGE_PAGES if not (ROOT / "docs" / f"{name}.md").exists()] == []


def test_every_command_is_documented() -> None:
    page = text("docs/commands.md")
    own = {name: text(f"docs/{name}.md") for name in verbs()}  # a stage's page is its verb's
    assert [
        name for name in SUBCOMMANDS if f"`{name}" not in page and f"`trainwright {name}" not in own.get(name, "")
    ] == []


@pytest.mark.parametrize("page", ["spec", "cli"])
def test_the_reference_is_that_of_the_sources(page: str) -> None:
    command = [sys.executable, ".ci/reference.py", page]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == text(f"docs/reference/{page}.md"), "run `make reference`"


def test_every_field_of_the_spec_says_its_type_its_default_and_its_meaning() -> None:
    rows = [
        re.split(r"(?<!\\)\|", line)[1:-1] for line in text("docs/reference/spec.md").splitlines() if line[:3] == "| `"
    ]
    assert len(rows) > 150
    assert [row[0] for row in rows if not (row[1].strip() and row[3].strip() and row[4].strip())] == []


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


def named(entry: Any) -> list[str]:
    """The pages that a part of MkDocs' navigation names."""
    if isinstance(entry, str):
        return [entry]
    return [page for one in (entry.values() if isinstance(entry, dict) else entry) for page in named(one)]


def test_the_menu_has_four_groups_as_the_start_page_and_every_page_but_decisions_and_logs() -> None:
    menu = yaml.safe_load(text("mkdocs.yml"))["nav"]
    groups = [name for group in menu for name in group]
    assert groups == re.findall(r"^## (.*)$", text("docs/index.md"), re.MULTILINE)
    assert groups == ["Start", "Guides", "Operate", "Reference"]
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    aside = {page for page in pages if re.match(r"adr/\d{4}-|log/", page)}
    assert sorted(named(menu)) == sorted(pages - aside)


def decision(path: Path) -> tuple[str, str, str, str]:
    """Number, file, title and status of a decision, as its own page has them."""
    heading, _, status = path.read_text().splitlines()[:3]
    return path.name[:4], path.name, heading.removeprefix(f"# {path.name[:4]}: "), status.removeprefix("Status: ")


def test_the_index_of_decisions_has_each_once_with_its_title_and_status() -> None:
    rows = re.findall(r"^\| \[(\d+)\]\(([^)]+)\) \| (.*) \| (.*) \|$", text("docs/adr/index.md"), re.MULTILINE)
    assert rows == [decision(path) for path in sorted((ROOT / "docs/adr").glob("0*.md"))]


def test_the_sites_lock_pins_every_version_and_names_no_place() -> None:
    lines = [line for line in text("docs/requirements.lock").splitlines() if not line.startswith("#")]
    assert {"mkdocs", "mkdocs-material"} <= {line.split("==")[0] for line in lines}
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9a-z.]+", line)] == []
