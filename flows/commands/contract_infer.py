"""`contract infer`: drafts a suite and a section of a spec from data, and keeps what holds for all rows."""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from data_contracts.contract.inference import Draft
from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.messages.raw_data import CONTRACT, DRAFT, ContractRequest, LookRequest
from data_contracts.pipeline_spec import CsvSpec, SourceSpec
from data_contracts.pipeline_spec.data import MEMORY_SHARE
from flows.commands.guard import Answer
from infra import settings
from infra.child import run_child
from infra.sources import resolve_sources

SUITE, SECTION = "suite.json", "contract.yaml"
_UNIQUE = "expect_column_values_to_be_unique"


def infer(arguments: argparse.Namespace) -> Answer:
    """Draft a suite, check it on the same data, and write what holds."""
    out = None if arguments.out is None else Path(arguments.out)
    taken = [out / name for name in (SUITE, SECTION) if (out / name).exists()] if out is not None else []
    if taken:
        raise UsageError(f"{taken[0]} exists already.", remedy="Name another folder with --out.")
    [uri] = arguments.names
    try:
        source = SourceSpec(uri=uri)
    except ValidationError as error:
        raise UsageError(f"{uri}: {error.errors()[0]['msg']}.", remedy="Name a file, a glob or s3://….") from error
    files = resolve_sources(
        [source], root=Path.cwd(), window=None, window_path=None, cache=settings.state_folder(), field="SOURCE"
    )
    request = LookRequest(files=files, sources=[source], root=str(Path.cwd()))
    drafted = run_child(DRAFT, request, memory_share=MEMORY_SHARE)
    if not drafted.rows:
        raise UsageError(f"{uri} has no rows to learn from.", remedy="Name a source with rows.")
    made = Draft(**drafted.model_dump(exclude={"schema_version", "text_from", "csv"}))
    source = source.model_copy(update={"csv": drafted.csv})
    made.unsure += _words_among_others(drafted.text_from)
    _leave_out_broken(made, files, source)
    suite = {"name": _name(uri), "expectations": made.expectations}
    section = _section(made, _from(uri, out), uri, drafted.csv)
    value = {"suite": suite, "section": yaml.safe_load(section), "unsure": made.unsure, "sensitive": made.sensitive}
    text = f"{section}\n{json.dumps(suite, indent=2)}\n"
    if out is not None:
        text = _written(out, suite, section, made)
    return Answer(text, {**value, "out": None if out is None else str(out)})


def _words_among_others(text_from: dict[str, tuple[str, int]]) -> list[tuple[str, str]]:
    """A note on each column that is text only because of a value that is not like the ones before it."""
    return [
        (
            name,
            f"it is text because of row {row} of {_quoted(Path(uri).name)}; the values before it are of another kind",
        )
        for name, (uri, row) in text_from.items()
    ]


def _leave_out_broken(made: Draft, files: list[SourceFile], source: SourceSpec) -> None:
    """Check the draft on all rows, as validate would, and leave out what does not hold."""
    while True:
        request = ContractRequest(
            suite={"name": "draft", "expectations": made.expectations},
            files=files,
            sources=[source],
            root=str(Path.cwd()),
            window=None,
            window_column=None,
            fail_on="info",
            sensitive=sorted(made.sensitive),
        )
        outcome = run_child(CONTRACT, request, withhold=bool(made.sensitive), memory_share=MEMORY_SHARE)
        broken = {(one.expectation, one.column) for one in outcome.failures}
        if not broken:
            return
        made.expectations = [
            one for one in made.expectations if (one["type"], one["kwargs"].get("column")) not in broken
        ]
        for name, column in sorted(broken, key=str):
            if name == _UNIQUE:  # it was only worth a check
                made.keys.remove(str(column))
                expectations, unsure = made.ranges[str(column)]
                made.expectations += expectations
                made.unsure += unsure
            else:
                made.unsure.append((column or "", f"{name} does not hold for all rows and was left out"))


def _section(made: Draft, source: str, uri: str, csv: CsvSpec | None = None) -> str:
    """The sections `data` and `contract` of a spec as YAML, with comments on what is not certain."""
    lines = [
        f"# Inferred from {_quoted(uri)}: {made.rows:,} rows. It holds for these rows; read it before you rely on it.",
        "data:",
        f"  source: {_quoted(source)}",
    ]
    if csv is not None:
        lines += [
            f"  csv: {csv}",
            "  # how the file is written, guessed from its beginning: compare some values with the file",
        ]
    if made.sensitive:
        lines.append(f"  sensitive: {_quoted(sorted(made.sensitive))}")
        lines += [
            f"  # {_quoted(name)}: {why}, so the suite holds none of its values" for name, why in made.sensitive.items()
        ]
    lines += ["contract:", f"  suite: {SUITE}"]
    lines += [f"  # {f'{_quoted(column)}: ' if column else ''}{note}" for column, note in made.unsure]
    if made.keys:
        lines.append(
            f"# No value occurs twice in {', '.join(map(_quoted, made.keys))}: perhaps a key for shards.split."
        )
    return "\n".join(lines) + "\n"


def _quoted(value: Any) -> str:
    """A name or names as YAML on one line, whatever they hold."""
    for style in (None, '"'):
        dumped = yaml.safe_dump(value, default_style=style, default_flow_style=True, width=math.inf, allow_unicode=True)
        text = dumped.removesuffix("\n...\n").strip()
        if len(text.splitlines()) == 1:
            break  # otherwise the rest of a name would be YAML; in double quotes its line breaks are escaped
    return text


def _written(out: Path, suite: dict[str, Any], section: str, made: Draft) -> str:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in ((SUITE, json.dumps(suite, indent=2) + "\n"), (SECTION, section)):
            with (out / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{error.filename} exists already.", remedy="Name another folder with --out.") from error
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}.", remedy="Name another folder.") from error
    count = len(suite["expectations"])
    return (
        f"{out / SUITE} has {count} expectations, which hold for all {made.rows:,} rows.\n"
        f"{out / SECTION} has the sections data and contract; {len(made.unsure)} comments say what is not certain.\n"
        f"Next: trainwright contract explain {out / SUITE}"
    )


def _name(uri: str) -> str:
    return Path(uri.rstrip("/")).name.partition(".")[0].strip("*?[]") or "data"


def _from(uri: str, out: Path | None) -> str:
    """The source as a spec in the folder `out` names it."""
    local = out is not None and "://" not in uri and not uri.startswith("/")
    return os.path.relpath(uri, out) if local and out is not None else uri
