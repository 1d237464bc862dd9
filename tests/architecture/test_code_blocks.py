"""Every code block of the pages is run or read by a test, or says why not.

The tutorial's blocks are run (`tests/integration/test_tutorial.py`). Everywhere else Python is compiled and JSON is
read; a whole spec in YAML is validated, and the keys of a part of one are looked up; shell is checked by bash, and each
`trainwright` command is given to the argument parser. A block that none of this fits has `<!-- not run: REASON -->`
above it.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from data_contracts.pipeline_spec import EvaluateSpec, PipelineSpec, PromoteSpec, ShardsSpec, TrainSpec
from data_contracts.price_book import PriceBook
from data_contracts.rules import Budgets, Objectives, Policy
from data_contracts.yaml_text import parse
from flows.cli import parser
from tests.support.pages import Block, blocks, script

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^ *```+", re.MULTILINE)
# Whose fields a block of that page may begin with.
OWN_SECTION = {"shard": ShardsSpec, "train": TrainSpec, "evaluate": EvaluateSpec, "promote": PromoteSpec}
# What else than a spec a whole block of that page may be, by a key that it then has.
PRICES = {"machines": PriceBook, "hours": PriceBook}
RULES = {"budgets": Budgets, "tags": Policy, "objectives": Objectives}
OTHERS: dict[str, Any] = {"cost": PRICES, "plan": PRICES, "budgets": RULES, "slo": RULES}
SECTION = re.compile(r"^(?=[a-z])", re.MULTILINE)
# What a LightningCLI config begins with.
LIGHTNING = {"model", "data", "trainer", "optimizer", "lr_scheduler"}
# Read as shell if they look like commands; else they show what a file, a folder or a screen holds.
COMMANDS = re.compile(r"^(trainwright|make|prefect|pip|docker|kubectl|dvc|git|python|\. |export) ?", re.MULTILINE)


def fields_of(page: str) -> dict[str, Any]:
    """Types of the fields that a YAML block of a page may begin with: sections, and fields of the page's own."""
    top = {name: field.annotation for name, field in PipelineSpec.model_fields.items()}
    own = OWN_SECTION.get(page)
    return top if own is None else {**{name: field.annotation for name, field in own.model_fields.items()}, **top}


def unknown_keys(text: str, page: str) -> list[str]:
    """What is wrong in a part of a spec; ValidationError for a whole spec that cannot be loaded."""
    value = yaml.safe_load(text)
    if "version" in value:
        model = next((model for key, model in OTHERS.get(page, {}).items() if key in value), PipelineSpec)
        model.model_validate(parse(text, page).value)
        return []
    if "model" in value:
        return [name for name in value if name not in LIGHTNING]
    known, unknown = fields_of(page), []
    # A page may show a section in several ways, one below the other.
    for section in SECTION.split(text):
        for name, part in (parse(section, page).value or {}).items():
            if name not in known:
                unknown.append(f"no field is called {name}")
                continue
            try:
                TypeAdapter(known[name]).validate_python(part)
            except ValidationError as error:
                # A part may lack what a whole spec needs.
                unknown += [f"{one['loc']}: {one['msg']}" for one in error.errors() if one["type"] != "missing"]
    return unknown


def refuse(block: Block, page: str = "") -> None:
    """Raise what is wrong with a block."""
    if block.language == "python":
        ast.parse(block.text)
    elif block.language == "yaml":
        unknown = unknown_keys(block.text, page)
        assert not unknown, ", ".join(unknown)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language in ("bash", "sh") or (not block.language and COMMANDS.match(block.text)):
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True, capture_output=True)
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["trainwright"]:
                parser().parse_args(words[1:])
    elif block.language:
        raise AssertionError(f"no test reads {block.language}")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_block_is_read_or_says_why_not(page: Path) -> None:
    found = blocks(page)
    assert 2 * len(found) == len(FENCE.findall(page.read_text())), "a fence that is not a block"
    for block in found:
        if not block.reason:
            try:
                refuse(block, page.stem)
            except (Exception, SystemExit) as error:
                pytest.fail(f"{page.name}:{block.line}: {type(error).__name__}: {error}")


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "def build(:\n"),
        ("yaml", "train: {seed: 1\n"),
        ("yaml", "train: {sead: 1}\n"),
        ("yaml", "tarin: {seed: 1}\n"),
        ("yaml", "version: 1\nname: orders\n"),
        ("yaml", "train:\n  loader: {shuffle: block, mixture: {column: a, weights: {x: 0.5, y: 0.5}}}\n"),
        ("json", "{...}\n"),
        ("bash", "if true\n"),
        ("bash", "trainwright run\n"),
        ("", "trainwright run pipeline.yaml --no-such-option\n"),
        ("toml", "a = 1\n"),
    ],
)
def test_a_wrong_block_would_be_found(language: str, text: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        refuse(Block(1, language, "", text, ""))


@pytest.mark.parametrize(("command", "code"), [("false", 99), ("false  # exit code 1", 0), ("true  # exit code 1", 99)])
def test_a_command_that_ends_otherwise_than_its_page_says_is_found(command: str, code: int, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    saved = '```text title="said.txt"\nwell\n```\n'
    page.write_text(
        f"{saved}```bash\ngrep -q well said.txt\n{command}\n```\n<!-- not run: why -->\n```bash\nfalse\n```\n"
    )
    done = subprocess.run(["bash", "-c", script(page)], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == code
