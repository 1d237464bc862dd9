"""Exports a model version to a folder: the files, the model card and a record with every digest.

Nothing here reads a tensor; the child in `training.export` does.

The folder is new or empty, and complete or not there. One with an ONNX file is also a folder that MLflow's own
`load_model` opens, made from facts alone and without MLflow. The format is that of `MLmodel` files of MLflow 3:
flavours `onnx` and `python_function`, a signature of named tensors, and an input example of zeros.

The model card is Markdown with a metadata block, made of facts only; it says what is not known. The facts about a model
version are read from the store; the export's record is made of them, too. The arguments that a module was made with
leave without credentials and places of this machine. The card has the lines that run the exported model without
Trainwright, on a Parquet file with the dataset's columns.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from data_contracts import quoting
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import (
    ContractReport,
    Dataset,
    Evaluation,
    FileEntry,
    ModelVersion,
    Receipt,
    Ref,
    passed_over,
)
from data_contracts.messages.commands import EXPORT, Exported, ExportRequest, Format, TensorFacts, Tolerance
from data_contracts.pipeline_spec.data import credential_in, is_named_like_secret
from data_contracts.records import GateResult
from data_contracts.run_report import RunReport
from infra import code_bundle, scratch
from infra.audit import now
from infra.child import run_child
from infra.files import check_new, hash_stream
from infra.gang.remote_job import idle_limit, lay_out
from infra.models import registry
from infra.records.handoffs import read_handoff
from infra.settings import on_this_machine
from infra.store import Store, layout
from tasks.run.report import latest_report
from tasks.run.resolve import find_version
from tasks.stages.promote import split_with_rows
from tasks.stages.trainings import TrainedWith, trained_with

Target = Literal["safetensors", "torch", "onnx", "huggingface", "mlflow"]
# The files that a target's folder is made of.
_FORMATS: dict[Target, Format] = {
    "safetensors": "safetensors",
    "torch": "torch",
    "onnx": "onnx",
    "huggingface": "huggingface",
    "mlflow": "onnx",
}
CARD, RECORD, CONFIG = "README.md", "export.json", "config.json"
_HANG_S = 600.0
log = logging.getLogger("trainwright")
_OTHER = "Name a folder that does not exist yet, or an empty one."
MLMODEL, REQUIREMENTS = "MLmodel", "requirements.txt"
EXAMPLE, SERVING = "input_example.json", "serving_input_example.json"
# The version whose format is written.
_MLFLOW = "3.17.0"
_EXAMPLE_ROWS = 2
WITHHELD = "withheld"
_PLACE = re.compile(r"(?i)\s*(?:/|~|file:|[a-z]:[\\/]|\\\\)")
# Tokens whose first letters say whose they are, whatever the argument is called.
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20}|gh[a-z]_[A-Za-z0-9]{20}|github_pat_\w{20}|glpat-[\w-]{20}|AKIA[A-Z0-9]{16}|sk-[\w-]{20}"
    r"|xox[a-z]-[\w-]{10})"
)
_TENSOR = re.compile(r"tensor<(\w+)>\[([\d,]+)\]")
_TIMES = ("timestamp", "duration", "time32", "time64", "date32", "decimal")
# What the file with the rows is called in the lines.
ROWS, ARRAYS = "rows.parquet", "inputs.npz"
# The library that runs each kind of file, and the line that calls it with `{inputs}`.
_CALLS = {
    "torch": ("torch", 'with torch.no_grad(): outputs = torch.export.load("model.pt2").module()({inputs})'),
    "onnx": ("onnxruntime", 'outputs = onnxruntime.InferenceSession("model.onnx").run(None, {inputs})'),
    "mlflow": ("mlflow", 'outputs = mlflow.pyfunc.load_model(".").predict({inputs})'),
}
# As Hugging Face's pages call the libraries.
_LIBRARIES = {
    "safetensors": "pytorch",
    "huggingface": "pytorch",
    "torch": "pytorch",
    "onnx": "onnx",
    "mlflow": "mlflow",
}


@dataclass(frozen=True)
class Export:
    """An export that was written.

    Attributes:
        record: what its `export.json` says.
    """

    folder: Path
    facts: ModelFacts
    exported: Exported
    record: Mapping[str, object]


def export(
    store: Store,
    name: str,
    target: Target,
    folder: Path,
    tolerance: Tolerance | None = None,
    *,
    license_id: str = "",
    on_poll: Callable[[], None] | None = None,
) -> Export:
    """Export the version that `model`, `model@alias` or `model@3` names to a new or empty folder.

    Args:
        tolerance: how far outputs may differ from the checkpoint's; None: by their type.
        license_id: the model's licence, as a model hub calls it; "": not known.
        on_poll: called again and again while the child works; what it raises ends the export.

    Raises:
        UsageError: there is no such model, or the folder is taken.
        UserCodeError: the module cannot be traced; the operation is named.
        GateNotMet: the outputs differ by more than the tolerance.
        CorruptError: a part of the model is not what was sealed.
    """
    check_free(folder)
    facts = replace(model_facts(store, name), license_id=license_id)
    with made_whole(folder) as draft:
        exported = write_files(facts, _FORMATS[target], draft, tolerance, on_poll)
        record = describe(facts, target, exported, draft)
    return Export(folder, facts, exported, record)


def write_files(
    facts: ModelFacts,
    kind: Format,
    folder: Path,
    tolerance: Tolerance | None = None,
    on_poll: Callable[[], None] | None = None,
) -> Exported:
    """Let a child process export the checkpoint into an existing folder, and compare; errors as in `export`."""
    store, version = facts.store, facts.version
    with scratch.make("project") as workspace:
        request = ExportRequest(
            store=store.address,
            checkpoint=version.checkpoint,
            train=facts.trained.train,
            dataset=facts.dataset,
            split=facts.split,
            targets=facts.targets,
            format=kind,
            folder=str(folder.absolute()),
            tolerance=tolerance,
            code=facts.trained.code,
        )
        code = workspace.path / "project"
        here = request.at(lay_out(store, request.needs, lambda ref: code_bundle.unpack(store, ref, code)))
        return run_child(
            EXPORT,
            here,
            project=here.project,
            withhold=facts.withholds,
            limit=idle_limit(store, _HANG_S),
            on_poll=on_poll,
        )


def describe(facts: ModelFacts, target: Target, exported: Exported, folder: Path) -> Mapping[str, object]:
    """Write what a target needs beside the files: its own descriptions, the card and the record, which is returned."""
    written = list(exported.files)
    if target in ("safetensors", "huggingface") and not exported.pretrained:
        (folder / CONFIG).write_text(json.dumps(_config(facts, exported), indent=2) + "\n")
        written.append(CONFIG)
    if target == "mlflow":
        written += write_mlflow_files(folder, exported, created=now().replace("T", " ")[:19], metadata=_identity(facts))
    names = [*sorted(written), CARD, RECORD]
    (folder / CARD).write_text(card(facts, target, exported, names), encoding="utf-8")
    files = [_entry(folder, name).to_json() for name in names if name != RECORD]
    record = {
        "schema_version": 1,
        "target": target,
        **_identity(facts),
        "exported": now(),
        "files": files,
        **exported.model_dump(mode="json", exclude={"schema_version", "files"}),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return record


def _identity(facts: ModelFacts) -> Mapping[str, object]:
    """The version, its checkpoint and its dataset, with ids and seals."""
    version = facts.version
    return {
        "model": version.name,
        "version": version.version,
        "version_ref": version.ref.to_json(),
        "checkpoint": version.checkpoint.ref.to_json(),
        "dataset_id": facts.dataset.ref.id if facts.dataset is not None else None,
        "split": facts.split,
    }


def _config(facts: ModelFacts, exported: Exported) -> Mapping[str, object]:
    """What a person needs to make the module that the tensors belong to."""
    arguments, withheld = facts.arguments
    return {
        "architectures": [facts.model_class.rpartition(".")[2]],
        "class_path": facts.model_class,
        "init_args": arguments,
        **({"withheld": withheld} if withheld else {}),
        "model": facts.version.name,
        "version": facts.version.version,
        "tensors": exported.tensors,
        "parameters": exported.parameters,
        "tied": exported.tied,
    }


def _entry(folder: Path, name: str) -> FileEntry:
    with (folder / name).open("rb") as file:
        size, digest = hash_stream(file)
    return FileEntry(path=name, bytes=size, blake3=digest)


@contextlib.contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A draft beside `folder`, which takes its name once the block has ended well, in one step.

    Raises: UsageError if the folder is a link, a file or not empty, or if its parent does not exist.
    """
    place = folder.absolute()
    check_free(place)
    draft = place.with_name(f".{place.name}.draft-{secrets.token_hex(8)}")
    with on_this_machine(place):
        draft.mkdir(mode=0o700)
    try:
        yield draft
        with on_this_machine(place):
            _settle(draft)
            _take_name(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def check_free(folder: Path) -> None:
    """UsageError unless an export may be written to this folder."""
    if not folder.parent.is_dir():
        raise UsageError(f"{folder.parent} is not a folder.", remedy="Make it first, or name another place.")
    check_new(folder, _OTHER)


def _settle(draft: Path) -> None:
    """Write the files' bytes to the disk and give them the permissions that new files have."""
    mask = os.umask(0)
    os.umask(mask)
    for path in draft.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.chmod(0o666 & ~mask)
    draft.chmod(0o777 & ~mask)


def _take_name(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise UsageError(f"{folder} was filled while the export was made.", remedy=_OTHER) from error


def write_mlflow_files(
    folder: Path, exported: Exported, *, created: str, metadata: Mapping[str, object] | None = None
) -> list[str]:
    """Write `MLmodel` and what it names beside `model.onnx`; returns the names of the files written.

    Args:
        created: UTC, as `2026-11-25 02:00:00`.
        metadata: facts that MLflow keeps with the model, as JSON can hold them.
    """
    versions = exported.versions
    needs = ["mlflow", *(f"{name}=={versions[name]}" for name in ("onnx", "onnxruntime") if name in versions), "numpy"]
    (folder / REQUIREMENTS).write_text("\n".join(needs) + "\n")
    python = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    environment = {"python": python, "build_dependencies": ["pip"], "dependencies": [f"-r {REQUIREMENTS}"]}
    (folder / "python_env.yaml").write_text(yaml.safe_dump(environment, sort_keys=False))
    # No row of the data leaves the store.
    example = {one.name: _zeros(one) for one in exported.inputs}
    (folder / EXAMPLE).write_text(json.dumps(example))
    (folder / SERVING).write_text(json.dumps({"inputs": example}))
    model = {
        "flavors": {
            "onnx": {
                "data": "model.onnx",
                "onnx_version": versions.get("onnx", ""),
                "providers": ["CPUExecutionProvider"],
                "onnx_session_options": None,
                "code": None,
            },
            "python_function": {
                "loader_module": "mlflow.onnx",
                "data": "model.onnx",
                "env": {"virtualenv": "python_env.yaml"},
                "python_version": python,
            },
        },
        "mlflow_version": _MLFLOW,
        "saved_input_example_info": {"artifact_path": EXAMPLE, "type": "ndarray", "serving_input_path": SERVING},
        "signature": {"inputs": _signature(exported.inputs), "outputs": _signature(exported.outputs), "params": None},
        "utc_time_created": created,
        "metadata": metadata or {},
    }
    (folder / MLMODEL).write_text(yaml.safe_dump(model, sort_keys=False, allow_unicode=True))
    return [MLMODEL, REQUIREMENTS, "python_env.yaml", EXAMPLE, SERVING]


def _signature(facts: Sequence[TensorFacts]) -> str:
    """Named tensors as MLflow writes them in a signature; a size that varies is -1."""
    specs = []
    for one in facts:
        shape = [size if isinstance(size, int) else -1 for size in one.shape]
        # ONNX Runtime gives no bfloat16 to NumPy.
        dtype = "float32" if one.dtype == "bfloat16" else one.dtype
        specs.append({"name": one.name, "type": "tensor", "tensor-spec": {"dtype": dtype, "shape": shape}})
    return json.dumps(specs)


def _zeros(tensor: TensorFacts) -> Any:
    """Nested lists of zeros."""
    kind = "bool" if tensor.dtype == "bool" else "float64" if "float" in tensor.dtype else "int64"
    return np.zeros([size if isinstance(size, int) else _EXAMPLE_ROWS for size in tensor.shape], kind).tolist()


@dataclass(frozen=True)
class ModelFacts:
    """A model version and what it was made of.

    Attributes:
        alias: by which it was named; None if by its number.
        metrics_of: the section `evaluate` as it was sealed with the evaluation.
        dataset, contract: None if the data is external, or was not checked.
        receipt: of its promotion; None if it has none that can be found.
        report: of the run that made it; None after a stage command.
        code: commit and dirty flag of the code that trained it.
        license_id: the licence that a person states; "" if it is not known.
        withholds: whether texts that may quote rows stay on this machine; also if that is not known.
    """

    store: Store
    version: ModelVersion
    alias: str | None
    trained: TrainedWith
    evaluation: Evaluation
    metrics_of: Mapping[str, Any]
    dataset: Dataset | None
    contract: ContractReport | None
    receipt: Receipt | None
    report: RunReport | None
    code: Mapping[str, object] = field(default_factory=dict)
    trained_at: str = ""
    withholds: bool = True
    license_id: str = ""

    @property
    def title(self) -> str:
        """The model and its version in words."""
        return f"{self.version.name}, version {self.version.version}"

    @property
    def split(self) -> str:
        """The split whose rows an export is compared on: the one that was scored, else one that has rows."""
        return split_with_rows(self.dataset, str(self.metrics_of.get("split") or "test"))

    @property
    def targets(self) -> list[str]:
        """The entries of a batch that metrics take for the truth."""
        return sorted({one["target"] for one in self.metrics_of.get("metrics", {}).values() if one.get("target")})

    @property
    def model_class(self) -> str:
        """The dotted path of the module's class."""
        model = self.trained.train["lightning"].get("model") or {}
        return str(model.get("class_path", ""))

    @property
    def arguments(self) -> tuple[Mapping[str, object], list[str]]:
        """The module's arguments without what stays on this machine, and the names of those that were withheld."""
        model = self.trained.train["lightning"].get("model") or {}
        return without_private(model.get("init_args") or {})


def model_facts(store: Store, name: str) -> ModelFacts:
    """The facts about the version that `model`, `model@alias` or `model@3` names.

    Raises:
        UsageError: there is no such version. CorruptError: a part of it is changed or gone.
    """
    version, alias = find_version(store, name)
    trained = trained_with(store, version.checkpoint)
    checkpoint = store.manifest(version.checkpoint.ref)
    evaluation = read_handoff(store, version.evaluation, Evaluation)
    if evaluation.checkpoint_id != version.checkpoint.ref.id:
        raise CorruptError(f"{version.evaluation.uri} is an evaluation of another checkpoint than {version.ref.uri}.")
    made = store.manifest(version.ref).provenance
    dataset = None if trained.dataset is None else read_handoff(store, trained.dataset, Dataset)
    contract = None if trained.dataset is None else _contract(store, trained.dataset)
    code = dict(checkpoint.provenance.get("code") or {})
    return ModelFacts(
        store=store,
        version=version,
        alias=alias,
        trained=trained,
        evaluation=evaluation,
        metrics_of=store.manifest(version.evaluation).settings.get("evaluate", {}),
        dataset=dataset,
        contract=contract,
        receipt=_promotion(store, version),
        report=latest_report(store, str(made.get("run_id", ""))) if made.get("run_id") else None,
        code={"commit": code.get("commit"), "dirty": bool(code.get("dirty"))},
        trained_at=str(checkpoint.provenance.get("finished") or ""),
        withholds=_withholds(store, str(made.get("run_id", ""))),
    )


def _contract(store: Store, dataset: Ref) -> ContractReport | None:
    """The report of the contract that a dataset's raw rows met; None if there was no contract."""
    ref = store.manifest(dataset).parent_in("contracts")
    try:
        return None if ref is None else read_handoff(store, ref, ContractReport)
    except FileNotFoundError:
        return None


def _promotion(store: Store, version: ModelVersion) -> Receipt | None:
    """The first receipt of a promotion of this version, of any alias."""
    for alias in store.list(layout.aliases(version.name)):
        if alias == "history":
            continue
        for receipt in registry.history(store, version.name, alias):
            if receipt.decision == "promoted" and receipt.candidate == version.ref and receipt.gates:
                return receipt
    return None


def _withholds(store: Store, run_id: str) -> bool:
    """Whether the run's data has sensitive columns; assumed if the run is not recorded."""
    if not run_id or not store.exists(layout.resolved(run_id)):
        return True
    data = store.read_as(layout.resolved(run_id), lambda resolved: resolved["spec"]["data"])
    return not isinstance(data, dict) or bool(data.get("sensitive"))


def without_private(value: Any, name: str = "") -> tuple[Any, list[str]]:
    """The arguments with `withheld` in place of what stays, and the names of these arguments.

    A value stays if its name says that it is a secret, or if it is a text that holds a credential, a private key or an
    absolute path, or a mapping with such a text as a key.

    Args:
        name: of the argument that holds the value, such as `encoder.weights`.
    """
    last = name.rpartition(".")[2]
    if last and value is not None and not isinstance(value, bool) and is_named_like_secret(last):
        return WITHHELD, [name]
    if isinstance(value, str):
        return (WITHHELD, [name]) if _stays(value) else (value, [])
    if name and isinstance(value, dict) and any(isinstance(key, str) and _stays(key) for key in value):
        return WITHHELD, [name]
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        made = {key: without_private(one, f"{name}.{key}".lstrip(".")) for key, one in items}
        left = [one for _, names in made.values() for one in names]
        plain = {key: one for key, (one, _) in made.items()}
        return (plain if isinstance(value, dict) else list(plain.values())), left
    return value, []


def _stays(text: str) -> bool:
    return bool(_PLACE.match(text) or credential_in(text) or _TOKEN.search(text) or "PRIVATE KEY-----" in text)


def lines_for(kind: str, exported: Exported) -> list[str]:
    """The three lines: imports, the rows, the outputs."""
    library, call = _CALLS[kind]
    columns = from_columns(exported)
    source = f'pyarrow.parquet.read_table("{ROWS}")' if columns else f'numpy.load("{ARRAYS}")'
    inputs = _inputs(exported.inputs, "torch.tensor({value})" if kind == "torch" else "{value}")
    used = ["numpy"] if "numpy." in inputs + source else []
    modules = sorted([library, *used, *(["pyarrow.parquet"] if columns else [])])
    return [f"import {', '.join(modules)}", f"rows = {source}", call.replace("{inputs}", inputs)]


def from_columns(exported: Exported) -> bool:
    """Whether the inputs are columns of the dataset, so that a Parquet file can be read for them."""
    return all(one.column for one in exported.inputs)


def _inputs(facts: Sequence[TensorFacts], wrapped: str) -> str:
    """The dictionary of inputs as an expression: one comprehension if all are read alike, else one entry each."""
    forms = [wrapped.replace("{value}", _form(one)) for one in facts]
    if len(set(forms)) == 1 and len(forms) > 1:
        names = ", ".join(quoted(one.name) for one in facts)
        return f"{{name: {forms[0].replace('{name}', 'name')} for name in [{names}]}}"
    pairs = [(quoted(one.name), form) for one, form in zip(facts, forms, strict=True)]
    return f"{{{', '.join(f'{name}: ' + form.replace('{name}', name) for name, form in pairs)}}}"


def _form(tensor: TensorFacts) -> str:
    """How an input is read from `rows`, with `{name}` where its name stands."""
    match = _TENSOR.fullmatch(tensor.column)
    if match is not None:
        return f'numpy.frombuffer(b"".join(rows[{{name}}].to_pylist()), "{match[1]}").reshape(-1, {match[2]})'
    if tensor.column.startswith(_TIMES):
        return f'rows[{{name}}].cast("{tensor.dtype}").to_numpy()'
    return "rows[{name}].to_numpy()" if tensor.column else "rows[{name}]"


def quoted(name: str) -> str:
    """A name as a literal of Python's, on one line and without a backtick, which could end the page's block."""
    return ascii(name).replace("`", "\\x60")


def card(facts: ModelFacts, target: str, exported: Exported, files: Sequence[str]) -> str:
    """The card of a model version that was exported to `target`; `files` are the names of its files."""
    library = exported.pretrained.partition(".")[0] or _LIBRARIES[target]
    metadata = yaml.safe_dump(_metadata(facts, target, library), sort_keys=False, allow_unicode=True)
    record = (
        "`export.json` has the ids and seals of the version and its checkpoint, the digest of each file, and the "
        "largest differences that were measured."
    )
    parts = [
        [f"# {escaped(facts.title)}", "", *_about(facts, target)],
        ["## Use", "", *_use(target, exported)],
        ["## Data", "", *_data(facts)],
        ["## Evaluation", "", *_evaluation(facts)],
        ["## Training", "", *_training(facts, exported)],
        ["## Limitations", "", *_limitations(facts, exported)],
        ["## Files", "", *(f"- `{name}`" for name in files), "", record],
    ]
    body = "\n\n".join("\n".join(part) for part in parts)
    return f"---\n{metadata}---\n\n{body}\n"


def _metadata(facts: ModelFacts, target: str, library: str) -> Mapping[str, object]:
    found: dict[str, object] = {"library_name": library, "tags": ["trainwright", target]}
    if facts.license_id:
        found["license"] = facts.license_id
    if facts.dataset is not None:
        found["datasets"] = [facts.dataset.ref.id]
    names = list(facts.evaluation.metrics)
    if names:
        found["metrics"] = names
        found["model-index"] = [{"name": facts.version.name, "results": [_result(facts, name) for name in names]}]
    return found


def _result(facts: ModelFacts, name: str) -> Mapping[str, object]:
    """One score, as a `model-index` has it."""
    one = facts.evaluation.metrics[name]
    set_name = name.rpartition("/")[0]
    dataset = facts.evaluation.dataset_ids.get(set_name) or next(iter(facts.evaluation.dataset_ids.values()), "")
    return {
        "task": {"type": "other"},
        "dataset": {
            "name": set_name or facts.split,
            "type": dataset or "external",
            "split": set_name or facts.split,
            **({"revision": dataset} if dataset else {}),
        },
        "metrics": [{"name": name, "type": _class_of(facts, name) or name, "value": one.value}],
    }


def _class_of(facts: ModelFacts, name: str) -> str:
    spec = facts.metrics_of.get("metrics", {}).get(name.rpartition("/")[2], {})
    return str(spec.get("class_path") or "")


def _about(facts: ModelFacts, target: str) -> list[str]:
    version, checkpoint = facts.version, facts.version.checkpoint
    named = f" (`{facts.version.name}@{facts.alias}` when it was exported)" if facts.alias else ""
    return [
        f"This is version {version.version} of the model `{escaped(version.name)}`{named}, exported to {target} by "
        "Trainwright.",
        "",
        f"- Class: `{escaped(facts.model_class) or 'not known'}`",
        f"- Checkpoint: step {checkpoint.step:,}, id `{checkpoint.ref.id}`, seal `{checkpoint.ref.seal}`",
        f"- Version: id `{version.ref.id}`, seal `{version.ref.seal}`",
        f"- License: {facts.license_id or 'not known'}",
    ]


def _use(target: str, exported: Exported) -> list[str]:
    if exported.pretrained:
        package, _, name = exported.pretrained.partition(".")
        return ["```python", f"from {package} import {name}", "", f'model = {name}.from_pretrained(".")', "```"]
    if not exported.inputs:
        return [
            'The folder holds the tensors, not the code: `safetensors.torch.load_file("model.safetensors")` returns '
            "them by name, for a module of the class above.",
        ]
    columns = from_columns(exported)
    rows = f"`{ROWS}` is a Parquet file" if columns else f"`{ARRAYS}` is a NumPy archive"
    order = "returns them in the order below" if target == "onnx" else "returns them by name"
    lines = [
        f"In this folder, without Trainwright; {rows} with any number of rows of the inputs below. The model {order}.",
        "",
        "```python",
        *lines_for(target, exported),
        "```",
        "",
        "| input | type | shape | column |",
        "|---|---|---|---|",
        *(_line(one, columns=True) for one in exported.inputs),
        "",
        "| output | type | shape |",
        "|---|---|---|",
        *(_line(one, columns=False) for one in exported.outputs),
        "",
        f"- It computes what the module's `{exported.step}` returns for a batch, in evaluation mode.",
    ]
    if exported.transform is not None:
        said = "is included" if exported.transform else f"is **not included**: {escaped(exported.transform_fault)}"
        lines.append(f"- The preprocessing `train.transform` {said}")
    if not columns:
        lines.append("- The inputs are the entries of a batch after that preprocessing, not columns of the dataset.")
    if exported.unused:
        lines.append(f"- Parts of a batch that no output depends on are not inputs: {_listed(exported.unused)}.")
    if exported.left_out:
        lines.append(f"- Parts of the result that are not tensors are left out: {_listed(exported.left_out)}.")
    return [*lines, *_agreement(exported)]


def _line(tensor: TensorFacts, *, columns: bool) -> str:
    shape = " × ".join(str(size) for size in tensor.shape) or "one value"
    return f"| `{escaped(tensor.name)}` | {tensor.dtype} | {shape} |{f' {escaped(tensor.column)} |' if columns else ''}"


def _agreement(exported: Exported) -> list[str]:
    """How the file's outputs compare with the checkpoint's."""
    sizes = ", ".join(str(size) for size in exported.batch_sizes)
    lines = [
        f"- Compared with the checkpoint on {exported.sample:,} row{'s' if exported.sample != 1 else ''} of the data, "
        f"in batches of {sizes}, in a process without Trainwright:"
    ]
    for one in exported.agreements:
        allowed = f"{one.tolerance.atol:g} + {one.tolerance.rtol:g} of the value"
        exact = not one.tolerance.atol and not one.tolerance.rtol
        lines.append(
            f"  - `{escaped(one.output)}` differs by at most {one.largest:.3g} "
            f"({'no difference is allowed' if exact else f'{allowed} is allowed'})"
        )
    return lines


def _data(facts: ModelFacts) -> list[str]:
    dataset, contract = facts.dataset, facts.contract
    if dataset is None:
        return ["The model was trained on data of its own data module; what it read is not known."]
    lines = [
        f"- Dataset: id `{dataset.ref.id}`",
        f"- Rows: {', '.join(f'{escaped(name)} {dataset.rows(name):,}' for name in dataset.splits)}",
    ]
    if dropped := {reason: rows for reason, rows in dataset.dropped_rows.items() if rows}:
        lines.append(f"- Left out: {', '.join(f'{rows:,} ({escaped(reason)})' for reason, rows in dropped.items())}")
    if contract is None:
        return [*lines, "- Contract: none"]
    verdict = "accepted" if contract.accepted else "rejected"
    aside = f", {contract.quarantine.rows:,} set aside" if contract.quarantine is not None else ""
    met = f"{contract.met:,} of {contract.expectations:,}" if contract.failures else f"{contract.expectations:,}"
    return [
        *lines,
        f"- Contract: {verdict}; {contract.rows:,} rows met {met} expectations{aside}; suite "
        f"`{escaped(contract.suite_digest)}`",
    ]


def _evaluation(facts: ModelFacts) -> list[str]:
    lines: list[str] = []
    if facts.evaluation.metrics:
        lines += ["| metric | value | better | scored on |", "|---|---|---|---|"]
        for name, one in facts.evaluation.metrics.items():
            better = "higher" if one.mode == "max" else "lower"
            lines.append(f"| `{escaped(name)}` | {one.value:.6g} | {better} | {one.rows:,} rows |")
    else:
        lines.append("No metric is recorded.")
    if facts.evaluation.sealed:
        lines.append("\nScores on sealed sets are not shown.")
    gates = facts.receipt.gates if facts.receipt is not None else []
    if not gates:
        return [*lines, "", "No gate decided the promotion, or its receipt is not known."]
    return [*lines, "", "Gates of the promotion:", "", *(f"- {_gate(one)}" for one in gates)]


def _gate(gate: GateResult) -> str:
    said = f"{'met' if gate.met else 'not met'}: {escaped(gate.sentence)}"
    found = gate.evidence
    if found is None or gate.sealed:
        return said
    return (
        f"{said} Interval at confidence {found.confidence:g}: {found.low:.4g} to {found.high:.4g} "
        f"({escaped(found.method)}, {found.rows:,} rows)."
    )


def _training(facts: ModelFacts, exported: Exported) -> list[str]:
    train, checkpoint = facts.trained.train, facts.version.checkpoint
    trainer = train["lightning"].get("trainer") or {}
    lines = [
        f"- {exported.parameters:,} values in {exported.tensors:,} tensors"
        + (f", of which {len(exported.tied):,} are tied" if exported.tied else ""),
        f"- Steps: {checkpoint.step:,}, global batch {escaped(str(train.get('global_batch_size', 'not known')))}, "
        f"seed {escaped(str(train.get('seed', 'not known')))}, ranks {checkpoint.world_size}, precision "
        f"{escaped(str(exported.precision or trainer.get('precision') or '32-true'))}",
    ]
    lines += [f"- `{escaped(name)}`: {value:.6g} at the end" for name, value in sorted(checkpoint.metrics.items())]
    commit = facts.code.get("commit")
    dirty = ", with changes that were not committed" if facts.code.get("dirty") else ""
    lines.append(f"- Code: {f'commit `{escaped(str(commit))}`{dirty}' if commit else 'not from a commit'}")
    lines.append(f"- Trained: {escaped(facts.trained_at) or 'not known'}")
    cost = facts.report.cost if facts.report is not None else None
    if cost is None:
        return [*lines, "- Cost: not known"]
    machine = escaped(cost.machine)
    return [*lines, f"- Cost of the run: {cost.node_seconds:,.0f} node-seconds on {machine}, {escaped(cost.money)}"]


def _limitations(facts: ModelFacts, exported: Exported) -> list[str]:
    lines = ["- Not known: the intended use, and how the model does on other data than the sets above."]
    if skipped := passed_over(facts.version.checkpoint.skipped):
        lines.append(f"- The training went on{skipped}.")
    if facts.contract is None:
        lines.append("- Not known: whether the data met a contract; there was none.")
    if not any(one.evidence for one in (facts.receipt.gates if facts.receipt else [])):
        lines.append("- Not known: confidence intervals of the metrics; no gate asked for one.")
    if withheld := facts.arguments[1]:
        lines.append(f"- Arguments of the class that are not shown, as they may be private: {_listed(withheld)}.")
    if exported.transform is False:
        lines.append("- The file lacks the preprocessing `train.transform`.")
    return lines


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{escaped(name)}`" for name in names)


def escaped(text: str) -> str:
    """A foreign text on one line, in which nothing is markup: no control character, tag, table cell or code mark."""
    plain = quoting.escaped(text)
    for mark, entity in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("`", "&#96;"), ("[", "&#91;")):
        plain = plain.replace(mark, entity)
    return plain
