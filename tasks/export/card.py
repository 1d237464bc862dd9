"""The model card of an export: Markdown with a metadata block, made of facts only. It says what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from data_contracts import quoting
from data_contracts.handoffs import passed_over
from data_contracts.messages.commands import Exported, TensorFacts
from data_contracts.records import GateResult
from tasks.export.facts import ModelFacts
from tasks.export.usage import ARRAYS, ROWS, from_columns, lines_for

# As Hugging Face's pages call the libraries.
_LIBRARIES = {
    "safetensors": "pytorch",
    "huggingface": "pytorch",
    "torch": "pytorch",
    "onnx": "onnx",
    "mlflow": "mlflow",
}


def card(facts: ModelFacts, target: str, exported: Exported, files: Sequence[str]) -> str:
    """The card of a model version that was exported to `target`; `files` are the names of its files."""
    library = exported.pretrained.partition(".")[0] or _LIBRARIES[target]
    metadata = yaml.safe_dump(_metadata(facts, target, library), sort_keys=False, allow_unicode=True)
    parts = [
        [f"# {escaped(facts.title)}", "", *_about(facts, target)],
        ["## Use", "", *_use(target, exported)],
        ["## Data", "", *_data(facts)],
        ["## Evaluation", "", *_evaluation(facts)],
        ["## Training", "", *_training(facts, exported)],
        ["## Limitations", "", *_limitations(facts, exported)],
        ["## Files", "", *(f"- `{name}`" for name in files), "", _RECORD],
    ]
    body = "\n\n".join("\n".join(part) for part in parts)
    return f"---\n{metadata}---\n\n{body}\n"


_RECORD = (
    "`export.json` has the ids and seals of the version and its checkpoint, the digest of each file, and the largest "
    "differences that were measured."
)


def _metadata(facts: ModelFacts, target: str, library: str) -> dict[str, Any]:
    found: dict[str, Any] = {"library_name": library, "tags": ["trainwright", target]}
    if facts.license_id:
        found["license"] = facts.license_id
    if facts.dataset is not None:
        found["datasets"] = [facts.dataset.ref.id]
    names = list(facts.evaluation.metrics)
    if names:
        found["metrics"] = names
        found["model-index"] = [{"name": facts.version.name, "results": [_result(facts, name) for name in names]}]
    return found


def _result(facts: ModelFacts, name: str) -> dict[str, Any]:
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


def _line(one: TensorFacts, *, columns: bool) -> str:
    shape = " × ".join(str(size) for size in one.shape) or "one value"
    return f"| `{escaped(one.name)}` | {one.dtype} | {shape} |{f' {escaped(one.column)} |' if columns else ''}"


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
