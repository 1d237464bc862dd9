"""Predicts for raw rows with a model version: looks everything up once, checks the contract, and runs the child."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_contracts.canonical import digest
from data_contracts.errors import UsageError
from data_contracts.handoffs import Ref, SourceFile
from data_contracts.messages.raw_data import COLUMNS, PREDICT, LookRequest, Predicted, PredictRequest, ShardProgress
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.pipeline_spec.data import MEMORY_SHARE, may_be_csv
from infra import code_bundle, scratch
from infra.child import run_child
from infra.gang.remote_job import idle_limit, lay_out
from infra.settings import state_folder
from infra.sources import resolve_sources
from infra.sources.named_places import refuse_foreign_credentials
from infra.sources.places import base_name
from infra.store import Store
from tasks.predict.contract import check_input, suite_of, without
from tasks.predict.model import Model, open_model
from training.predict.output import output_exists, unfinished_work
from training.predict.raw_rows import label_columns

FORMAT = 2
# Seconds between two batches; a longer pause is a hang. Ten times the longest batch so far applies if that is longer.
HANG_S = 300.0


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What to predict for, and how.

    Attributes:
        contract: a suite's file; "" the model's own; None: no contract.
        label: columns that the rows may lack, besides those that the metrics call their target.
    """

    model: str
    input: str
    output: str
    keep: list[str] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    batch_size: int | None = None
    contract: str | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class PredictSummary:
    """The version, what was written, how many expectations were checked, and which were not."""

    name: str
    version: int
    predicted: Predicted
    expectations: int
    not_checked: list[str]


def predict(store: Store, options: PredictOptions, on_progress: Callable[[ShardProgress], None]) -> PredictSummary:
    """Write one line of predictions for each row of the input.

    Raises:
        UsageError: the model, the input or the output cannot be used as given.
        ContractRejected: the rows break the contract; nothing is written.
        UserCodeError: the user's code raised.
        CorruptError: the checkpoint, the code or an input file is not what it was.
    """
    output = _writable(options)
    model = open_model(store, options.model)
    sources, files = resolve_input(options.input, model.sources)
    if any(file.uri == str(output) for file in files):
        raise UsageError(f"{output} is one of the files of the input.", remedy="Write to another folder.")
    with scratch.make("project") as workspace:

        def unpacked(ref: Ref) -> Path:
            known = model.trained.sealed["code_digest"] if ref == model.trained.code else None
            return code_bundle.unpack(store, ref, workspace.path / ref.id[:16], code_digest=known)

        request = _request(store, options, model, sources, files, output)
        here = request.at(lay_out(store, request.needs, unpacked))
        expectations, left = _contract(model, options, here)
        predicted = run_child(
            PREDICT,
            here,
            project=here.project,
            withhold=bool(model.sensitive),
            limit=idle_limit(store, HANG_S),
            on_report={ShardProgress: on_progress},
        )
    return PredictSummary(model.version.name, model.version.version, predicted, expectations, left)


def _writable(options: PredictOptions) -> Path:
    """The absolute path of the output; UsageError if it cannot be written or exists."""
    if "://" in options.output:
        raise UsageError(f"{options.output} is not a path.", remedy="Write to a file of this machine, and copy it.")
    path = Path(options.output).expanduser()
    output = Path(os.path.realpath(path.parent)) / path.name
    if not output.parent.is_dir():
        raise UsageError(f"There is no folder {output.parent}.", remedy="Make it, or name another file.")
    if output.is_dir():
        raise UsageError(f"{output} is a folder.", remedy="Name a file.")
    if os.path.lexists(output) and not options.overwrite and not unfinished_work(output).exists():
        raise output_exists(output)
    return output


def _request(
    store: Store,
    options: PredictOptions,
    model: Model,
    sources: list[SourceSpec],
    files: list[SourceFile],
    output: Path,
) -> PredictRequest:
    size = options.batch_size or int(model.evaluate.get("batch_size", 512))
    settings = [FORMAT, size, options.keep, options.label, output.suffix.lower(), [one.columns for one in sources]]
    return PredictRequest(
        store=store.address,
        code=model.trained.code,
        checkpoint=model.version.checkpoint,
        train=model.trained.train,
        evaluate=model.evaluate,
        transform=model.transform,
        rows_code=model.rows_code,
        dataset_columns=model.dataset.columns,
        raw_types=model.types_to_read,
        files=files,
        sources=sources,
        root=str(Path.cwd()),
        output=str(output),
        batch_size=size,
        keep=options.keep,
        label=options.label,
        overwrite=options.overwrite,
        identity={
            "the model": model.version.ref.seal,
            "the input": digest([[file.uri, file.bytes, file.blake3] for file in files]),
            "the options": digest(settings),
        },
    )


def _contract(model: Model, options: PredictOptions, request: PredictRequest) -> tuple[int, list[str]]:
    """How many expectations were checked, and those that were left out because the rows have no label."""
    if options.contract is None:
        return 0, []
    suite, fail_on = suite_of(model, options.contract)
    left: list[str] = []
    if not options.contract:
        suite, left = without(suite, _label_lacking(model, options, request))
    project = request.path(request.rows_code)
    return check_input(model, suite, fail_on, request.files, request.sources, project), left


def _label_lacking(model: Model, options: PredictOptions, request: PredictRequest) -> list[str]:
    """Columns of the label that the input does not have."""
    look = LookRequest(files=request.files, sources=request.sources, root=request.root)
    there = set(run_child(COLUMNS, look, withhold=bool(model.sensitive), memory_share=MEMORY_SHARE).names)
    metrics = model.evaluate.get("metrics", {})
    label = label_columns(model.trained.train["batch"], metrics, list(model.dataset.columns)) | set(options.label)
    return sorted(label - there)


ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")


def resolve_input(text: str, trained_on: Sequence[SourceSpec]) -> tuple[list[SourceSpec], list[SourceFile]]:
    """The sources and the files, with their digests.

    Args:
        text: path, glob, folder or s3:// address.
        trained_on: sources of the training's rows; they name the columns of CSV files without a header line, how CSV
            files are written, and the credentials for S3, and say whether folders' names give columns.

    Raises: UsageError if there is no file, or one that is not CSV, JSON Lines or Parquet.
    """
    columns = next((one.columns for one in trained_on if one.columns), None)
    csv = next((one.csv for one in trained_on if one.csv), None)
    options = next((one.storage_options for one in trained_on if one.storage_options), {})
    is_s3 = text.startswith("s3://")
    if is_s3:
        refuse_foreign_credentials(options)
    ending = base_name(text)[0]
    if ending not in ENDINGS and not is_s3 and os.path.isfile(os.path.expanduser(text)):
        raise UsageError(
            f"The format of {text} is not clear from its name.",
            remedy="Name a folder, a glob or a file that ends in .csv, .jsonl or .parquet, also compressed.",
        )
    named = None if ending in ENDINGS and ending not in (".csv", ".tsv") else columns
    sources = [
        SourceSpec(
            uri=text,
            columns=named,
            csv=csv if may_be_csv(text, "auto") else None,
            hive_partitioning=all(one.hive_partitioning for one in trained_on),
            storage_options=options if is_s3 else {},
        )
    ]
    files = resolve_sources(
        sources, root=Path.cwd(), window=None, window_path=None, cache=state_folder(), field="INPUT"
    )
    return sources, [file for file in files if file.bytes]
