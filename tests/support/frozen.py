"""Writes what users, stores and schedulers see as plain files: `python -m tests.support.frozen` writes them anew.

tests/architecture/test_frozen.py compares them with tests/golden/frozen. Each function in KINDS gives the files of one
kind, by the command line and the entry files where they say it. All names of internal modules stand in the constants,
so that moving a module changes nothing else here.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import os
import pkgutil
import re
import shutil
import tempfile
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
FROZEN = GOLDEN / "frozen"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]
# What the command line does not tell, and where it is.
INTERNAL = {
    "errors": "data_contracts.errors.TrainwrightError",
    "features_key": "tasks.stages.validate.features_key",
    "handoffs": "data_contracts.handoffs",
    "metrics": "infra.metrics.METRICS",
    "open_run": "tasks.run.run.open_run",
    "options": "tasks.run.resolve.RunOptions",
    "parser": "flows.cli.parser",
    "predictions_key": "tasks.stages.validate.predictions_key",
    "read_spec": "tasks.run.spec_check.read_spec",
    "report": "data_contracts.run_report.RunReport",
    "run_key": "tasks.run.resolve.ci_key",
    "set_dataset_key": "tasks.stages.shard.dataset_key",
    "set_key": "tasks.stages.validate.set_key",
    "set_requests": "tasks.stages.validate.set_requests",
    "stages": "flows.stages.stages",
}
# The flows of deployments on Prefect's servers, beside those of prefect.yaml.
DEPLOYED = ("flows.node.node", "flows.sense.sensor", "flows.upkeep.upkeep")
# What a launch.json in a store names: the ranks of a gang, and what a remote job runs.
LAUNCHED = (
    *("training.fit.rank", "training.fit.game_day_rank", "training.score.rank", "infra.gang.remote_job"),
    *("training.score.verify_worker", "training.score.evaluate_worker", "training.predict.worker"),
)
# The package whose records a store has, and the module that has its paths.
RECORDS, PATHS = "data_contracts", "infra.store.layout"
# Classes of records, with the names under which stored-fields.json lists them. No store has these names.
LISTED_AS = {
    **{"CanaryStatus": "Standing", "ChunkOffsets": "TextCuts", "ExecutionHeartbeat": "SignOfLife"},
    **{"FileStatistics": "FilePart", "StatisticsGroup": "PartGroup"},
    **{"FailureEvent": "NodeMishap", "ObservationBatch": "Night", "RowPosition": "Place", "TensorSlice": "Piece"},
    **{f"ClusterTask{kind}": f"Piece{kind}" for kind in ("Done", "Order", "Outcome", "Request")},
}
# The functions that take a key of Prefect's artifacts (as the last argument), or the key itself (as the first).
ARTIFACTS = ("artifact_key", "_artifact")
# Names that are not told by their form: the metrics' path, the work pool and the file of a store.
CONSTANTS = ("infra.metrics.PATH", "infra.orchestrator.worker.POOL", "infra.store.layout.STORE")
# What writes a table without a class: to a store, or for those who read events, logs, what CI gets, and `--json`.
WRITERS = (
    *("infra.store.lease._value", "infra.store.seal.write_manifest", "infra.store.opening.make"),
    *("tasks.run.run.Run.provenance", "tasks.run.run.Run.raw_provenance"),
    *("infra.models.registry.move_alias", "infra.models.registry._seal_next"),
    *("infra.orchestrator.events.announce_end", "infra.orchestrator.events._model_resource"),
    *("infra.telemetry.json_line", "tasks.ci.output_values", "flows.commands.guard.fail"),
)
# Specs of which validate and shard are carried out; their bytes are those of no library.
MADE = ("evaluation sets", "documents by tokens")
NAME = re.compile(
    r"(application/vnd\.)?trainwright[._-][\w.+-]*|TRAINWRIGHT_[A-Z_]+|TRACEPARENT|(pipeline|stage|training|node|cost):"
)
ENVIRONMENT = {"COLUMNS": "100", "DO_NOT_TRACK": "1", "PREFECT_API_URL": "", "GX_ANALYTICS_ENABLED": "false"}
# Read-only commands about the golden store, with arguments by which no answer depends on the day.
ANSWERS = (
    *("show tiny@champion", "show tiny@nobody", "history tiny@champion", "diff tiny@1 tiny@2", "prove tiny@champion"),
    *("checkpoints 20261122-185259-50d650", "cost --since 2026-11-01", "nodes", "budget", "policy"),
    *("status", "logs 20261122-185259-50d650", "validate {spec} --quiet", "drift {spec}"),
    *("gc --dry-run --keep-days 0 --grace-hours 0", "plan {spec} --no-estimate"),
)


def internal(what: str) -> Any:
    """The object, or else the module, of this dotted name."""
    return pkgutil.resolve_name(INTERNAL.get(what, what))


def in_json(value: Any, indent: str = "") -> str:
    """JSON to read: sorted, and a list or table that fits stands in one line."""
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(indent + line) <= 120 or not isinstance(value, list | dict):
        return line
    inside = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inside + in_json(one, inside) for one in value) + f"\n{indent}]"
    rows = (f"{inside}{json.dumps(name)}: {in_json(one, inside)}" for name, one in sorted(value.items()))
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def command(*words: str | Path, must_succeed: bool = False) -> str:
    """What a command prints, carried out in this process by the console script's own function."""
    module, _, name = PROJECT["project"]["scripts"]["trainwright"].partition(":")
    output, code = io.StringIO(), None
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        code = getattr(importlib.import_module(module), name)([str(word) for word in words])
    assert code == 0 or not must_succeed, f"{words[0]} ended with exit code {code}; standard error has its sentence"
    return output.getvalue()


def helps(_: Path) -> dict[str, str]:
    """`--help` of each command, and of all."""
    overview = command("--help")
    names = re.findall(r"^  ([a-z]+)  ", overview, re.MULTILINE)
    texts = {name: command(name, "--help").partition("\n\n") for name in names}
    # Python 3.13 breaks the lines of a usage elsewhere.
    helps = {f"help/{name}.txt": " ".join(usage.split()) + f"\n\n{rest}" for name, (usage, _, rest) in texts.items()}
    [commands] = [one.choices for one in internal("parser")()._actions if one.dest == "command"]
    actions = [(name, action) for name, parser in commands.items() for action in parser._actions]
    defaults = {f"{name} {one.option_strings[0]}": one.default for name, one in actions if one.option_strings}
    defaults = {option: default for option, default in defaults.items() if default not in (None, False, "==SUPPRESS==")}
    return {"help/trainwright.txt": overview, "defaults.json": in_json(defaults), **helps}


def spec_schema(_: Path) -> dict[str, str]:
    """What `trainwright schema` prints."""
    return {"spec-schema.json": in_json(json.loads(command("schema")))}


def exit_codes(_: Path) -> dict[str, str]:
    """The exit code and the key of `retry` of each cause, and the causes that each one stands for."""

    def causes(kind: type[Any]) -> dict[str, Any]:
        # Tests of the same process may have classes of their own.
        children = [child for child in kind.__subclasses__() if child.__module__ == kind.__module__]
        below = {name: one for child in children for name, one in causes(child).items()}
        return {kind.cause: {"exit_code": kind.exit_code, "retry": kind.retry_key, "includes": sorted(below)}, **below}

    return {"exit-codes.json": in_json(causes(internal("errors")))}


def sources() -> Iterator[ast.AST]:
    """Each node of the code of Trainwright's packages, without docstrings."""
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = None
            yield node


def names(_: Path) -> dict[str, str]:
    """Names that others search for: events, labels, environment variables, artifact keys, tags, metrics."""
    words, artifacts = {*map(internal, CONSTANTS), *internal("infra.metrics.COMMON")}, set[str]()
    for node in sources():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
            words.add(node.value)
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith(ARTIFACTS):
            key = node.args[-1 if ast.unparse(node.func).endswith("_key") else 0]
            artifacts |= {pattern(key)} if isinstance(key, ast.Constant | ast.JoinedStr) else set()
    metrics = {one.name: f"{one.kind} {' '.join(one.labels)}".strip() for one in internal("metrics")}
    rules = re.findall(r"alert: (\w+)", (ROOT / "infra/alerts/trainwright.yml").read_text())
    found = {"words": sorted(words), "artifacts": sorted(artifacts), "metrics": metrics, "alerts": rules}
    return {"names.json": in_json(found)}


def pattern(text: ast.Constant | ast.JoinedStr) -> str:
    """A text, with {} for each part that is put in."""
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


def entry_points(_: Path) -> dict[str, str]:
    """What schedulers, stores and shells start by name, with the parameters of flows."""
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    kept = ("name", "entrypoint", "parameters", "work_pool", "tags", "concurrency_limit")
    flows = {name: internal(name) for name in sorted({*DEPLOYED, *(one["entrypoint"] for one in deployments)})}
    runnable = {name: 'if __name__ == "__main__":' in source_of(name) for name in LAUNCHED}
    found = {
        "console scripts": PROJECT["project"]["scripts"],
        "prefect.yaml": [{field: one[field] for field in kept if field in one} for one in deployments],
        "flows": {
            name: {"flow": flow.name, "parameters": fields(flow.parameters.model_dump())}
            for name, flow in flows.items()
        },
        "launch.json": runnable,
        "job templates": {
            str(path.relative_to(ROOT)): sorted(json.loads(path.read_text())["variables"]["properties"])
            for package in PACKAGES
            for path in sorted((ROOT / package).rglob("*-job-template.json"))
        },
        "dvc.yaml": {
            name: one["cmd"] for name, one in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].items()
        },
    }
    return {"entry-points.json": in_json(found)}


def source_of(module: str) -> str:
    """A module's text, without importing it; "" if there is none."""
    spec = importlib.util.find_spec(module)
    return "" if spec is None or spec.origin is None else Path(spec.origin).read_text()


def stored_fields(_: Path) -> dict[str, str]:
    """The fields of every record with their types, the keys of those that are written by hand, and the paths."""
    package = importlib.import_module(RECORDS)
    for module in pkgutil.walk_packages(package.__path__, f"{RECORDS}."):
        importlib.import_module(module.name)
    kinds = [kind for kind in descendants(internal(f"{RECORDS}.records.Record")) if kind.__module__.startswith(RECORDS)]
    records: dict[str, dict[str, str]] = {}
    for kind in kinds:  # two classes of one name are one entry, with the fields of both
        records.setdefault(listed_as(kind.__name__), {}).update(fields(kind.model_json_schema()))
    by_hand = set()
    for node in sources():
        if isinstance(node, ast.Dict) and "schema_version" in (keys := [constant(key) for key in node.keys]):
            by_hand.add(", ".join(sorted(keys)))
        # Records of other packages, which may import torch, as they are written.
        elif isinstance(node, ast.ClassDef) and {"Record", "HandOff"} & set(map(ast.unparse, node.bases)):
            lines = [line for line in node.body if isinstance(line, ast.AnnAssign)]
            records.setdefault(
                listed_as(node.name), {stored_name(line): listed_as(ast.unparse(line.annotation)) for line in lines}
            )
    for text in (textwrap.dedent(inspect.getsource(internal(name))) for name in WRITERS):
        tables = [node.keys for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Dict) and node.keys]
        by_hand |= {", ".join(sorted(map(constant, table))) for table in tables}
    return {"stored-fields.json": in_json({"records": records, "by hand": sorted(by_hand), "paths": paths()})}


def listed_as(type_: str) -> str:
    """A type with the names under which its records are listed."""
    return re.sub(r"\w+", lambda name: LISTED_AS.get(name[0], name[0]), type_)


def stored_name(field: ast.AnnAssign) -> str:
    """The name under which a record's field is stored."""
    given = field.value.keywords if isinstance(field.value, ast.Call) else []
    aliases = [constant(one.value) for one in given if one.arg == "alias"]
    return aliases[0] if aliases else ast.unparse(field.target)


def constant(node: ast.expr | None) -> str:
    """A key of a table in the code; "..." for others that are put in."""
    return str(node.value) if isinstance(node, ast.Constant) else "..."


def descendants(kind: type[Any]) -> list[type[Any]]:
    """All classes that are derived from a class."""
    return [one for child in kind.__subclasses__() for one in (child, *descendants(child))]


def fields(schema: dict[str, Any]) -> dict[str, str]:
    """Each field of a JSON schema with its type and default; `*` marks those that must be given."""
    required = schema.get("required", ())
    return {
        f"{name}{'*' if name in required else ''}": typed(one) + (f" = {one['default']!r}" if "default" in one else "")
        for name, one in schema.get("properties", {}).items()
    }


def typed(schema: dict[str, Any]) -> str:
    """A JSON schema's type in a few words."""
    if "$ref" in schema:
        return listed_as(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema or "oneOf" in schema:
        return " | ".join(typed(one) for one in schema.get("anyOf") or schema["oneOf"])
    if "enum" in schema or "const" in schema:
        return " | ".join(map(repr, schema.get("enum") or [schema["const"]]))
    if "items" in schema or "prefixItems" in schema:
        return f"[{', '.join(map(typed, schema.get('prefixItems') or [schema['items']]))}]"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"{{{typed(schema['additionalProperties'])}}}"
    return schema.get("type", "any")


def paths() -> list[str]:
    """Every path of a store. In it, a name is a letter and a number is 7."""
    found = set()
    for function in filter(inspect.isfunction, vars(importlib.import_module(PATHS)).values()):
        types = [str(one.annotation) for one in inspect.signature(function).parameters.values()]
        letters = [7 if "int" in kind else letter for kind, letter in zip(types, "abcdefgh", strict=False)]
        with contextlib.suppress(Exception):
            found.add(function(*letters))
    return sorted(path for path in found if isinstance(path, str) and len(path) > 1)


def reports(work: Path) -> dict[str, str]:
    """The report of a run: its schema, and two reports as they are written today."""
    kind, runs = internal("report"), sorted((work / "store/runs").glob("*/report.json"))
    real = [kind.from_json(json.loads(path.read_text())).to_json() for path in (runs[0], runs[2])]
    return {"report.json": in_json({"schema": kind.model_json_schema(), "promoted": real[0], "rejected": real[1]})}


def answers(work: Path) -> dict[str, str]:
    """The names and types of what commands print with `--json`."""
    project = work / "store-project/pipeline.yaml"
    found = {}
    for words in ANSWERS:
        line = words.format(spec=project).split()
        found[words] = shape(json.loads(command(*line, "--store", work / "store", "--json") or "null"))
    return {"answers.json": in_json(found)}


def shape(value: Any) -> Any:
    """The types of a JSON value; a list has the shape of its first entry."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    return [shape(one) for one in value[:1]] if isinstance(value, list) else type(value).__name__


def keys(work: Path) -> dict[str, str]:
    """The reuse keys of each spec, and the ids of what validate and shard make of some."""
    specs = yaml.safe_load((FROZEN / "specs.yaml").read_text())
    before = {path.parent for path in (work / "store").rglob("manifest.json")}
    for name in MADE:
        words = [work / "project/pipeline.yaml", *(f"--set={one}" for one in overrides(specs[name]["set"]))]
        for stage in ("validate", "shard"):
            command(stage, *words, "--store", work / "store", "--quiet", must_succeed=True)
    new = sorted({path.parent for path in (work / "store").rglob("manifest.json")} - before)
    made = {str(one.relative_to(work / "store")): json.loads((one / "manifest.json").read_text())["id"] for one in new}
    of_specs = {name: keys_of(work, spec) for name, spec in specs.items()}
    return {"keys.json": in_json({"made": made, "specs": of_specs})}


def overrides(fields: dict[str, Any]) -> list[str]:
    """Fields and their values as `--set` takes them; JSON is YAML."""
    return [f"{name}={json.dumps(value)}" for name, value in fields.items()]


def keys_of(work: Path, spec: dict[str, Any]) -> dict[str, Any]:
    """The digests of a spec and its code, and the key of each result, after hand-offs that are always the same."""
    run = internal("open_run")(
        internal("read_spec")(work / spec.get("spec", "project/pipeline.yaml"), overrides(spec.get("set", {}))),
        store_uri=str(work / "store"),
        options=internal("options")(window=spec.get("window")),
        recorded=False,
    )
    kinds, values = internal("handoffs"), json.loads((GOLDEN / "handoffs-v1.json").read_text())
    given = {name: getattr(kinds, name).from_json(values[name]) for name in ("Dataset", "Checkpoint", "Evaluation")}
    dataset = None if run.external else given["Dataset"]
    checkpoint, evaluation = given["Checkpoint"], given["Evaluation"]
    taken = {
        "shard": [None],
        "train": [dataset],
        "verify": [checkpoint],
        "evaluate": [checkpoint, dataset],
        "promote": [checkpoint, dataset, evaluation],
    }
    found = {stage.name: stage.key(run, *taken.get(stage.name, ())) for stage in internal("stages")()}
    resolved = run.resolved
    found |= {"code": resolved.code_digest, "bundle": resolved.code.id, "run": internal("run_key")(resolved)}
    found |= {f"validate {name}": internal("set_key")(run, one) for name, one in internal("set_requests")(run).items()}
    found |= {f"shard {name}": internal("set_dataset_key")(run, name) for name in resolved.sets}
    if dataset is not None and (features := internal("features_key")(run, dataset)):
        found |= {"features": features, "predictions": internal("predictions_key")(run, evaluation, "")}
    return found


def workspace(work: Path) -> Path:
    """The projects of the specs, with data that are the same everywhere, and a copy of the golden store."""
    shutil.copytree(FROZEN / "project", work / "project")
    shutil.copytree(GOLDEN / "store-v1/store", work / "store")
    shutil.copytree(GOLDEN / "store-v1/project", work / "store-project")
    (work / "data").mkdir()
    for name in ("digits.parquet", "abc.txt"):  # no key looks into them
        (work / "data" / name).write_text("always the same\n")
    for name in ("digits", "stdlib_gpt"):
        left = shutil.ignore_patterns("data", "handoffs", ".trainwright", "__pycache__")
        shutil.copytree(ROOT / "examples" / name, work / name, ignore=left)
    return work


KINDS: tuple[Callable[[Path], dict[str, str]], ...] = (
    *(helps, spec_schema, exit_codes, names, entry_points, stored_fields, reports, answers, keys),
)


def main() -> None:
    """Write all files anew."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(ENVIRONMENT, TRAINWRIGHT_HOME=f"{folder}/home")
        work = workspace(Path(folder))
        shutil.rmtree(FROZEN / "help")  # with the files of commands that are gone
        for kind in KINDS:
            for name, text in kind(work).items():
                (FROZEN / name).parent.mkdir(exist_ok=True)
                (FROZEN / name).write_text(text.rstrip("\n") + "\n")


if __name__ == "__main__":
    main()
