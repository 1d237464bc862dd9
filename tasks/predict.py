"""Predicts for raw rows with a model version: looks everything up once, and runs the child.

What the rows need is sealed with the version: how its own were prepared, and their types. Nothing here writes a store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_contracts.canonical import digest
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Dataset, ModelVersion, Ref, SourceFile
from data_contracts.messages.raw_data import PREDICT, Predicted, PredictRequest, ShardProgress
from data_contracts.pipeline_spec import SourceSpec, TrainSpec
from data_contracts.pipeline_spec.base import CallableSpec
from data_contracts.pipeline_spec.data import may_be_csv
from infra import code_bundle, scratch
from infra.child import run_child
from infra.contract.file_statistics import read_profile
from infra.gang.remote_job import idle_limit, lay_out
from infra.records.handoffs import read_handoff
from infra.settings import state_folder
from infra.sources import resolve_sources
from infra.sources.named_places import refuse_foreign_credentials
from infra.sources.places import base_name
from infra.store import Manifest, Store
from tasks.run.resolve import find_inputs, find_version
from tasks.run.run import RunInputs
from tasks.stages.shard import dataset_key
from tasks.stages.trainings import TrainedWith, trained_with
from training.predict.output import output_exists, unfinished_work

FORMAT = 2
# Seconds between two batches; a longer pause is a hang. Ten times the longest batch so far applies if that is longer.
HANG_S = 300.0
_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What to predict for, and how.

    Attributes:
        label: columns that the rows may lack, besides those that the metrics call their target.
    """

    model: str
    input: str
    output: str
    keep: list[str] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    batch_size: int | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class PredictSummary:
    """The version, and what was written."""

    name: str
    version: int
    predicted: Predicted


def predict(store: Store, options: PredictOptions, on_progress: Callable[[ShardProgress], None]) -> PredictSummary:
    """Write one line of predictions for each row of the input.

    Raises:
        UsageError: the model, the input or the output cannot be used as given.
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
        predicted = run_child(
            PREDICT,
            here,
            project=here.project,
            withhold=bool(model.sensitive),
            limit=idle_limit(store, HANG_S),
            on_report={ShardProgress: on_progress},
        )
    return PredictSummary(model.version.name, model.version.version, predicted)


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
    if ending not in _ENDINGS and not is_s3 and os.path.isfile(os.path.expanduser(text)):
        raise UsageError(
            f"The format of {text} is not clear from its name.",
            remedy="Name a folder, a glob or a file that ends in .csv, .jsonl or .parquet, also compressed.",
        )
    named = None if ending in _ENDINGS and ending not in (".csv", ".tsv") else columns
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


@dataclass(frozen=True)
class Model:
    """A version, and what it was made with.

    Attributes:
        evaluate: settings of its evaluation.
        transform: `shards.transform`; rows_code: the bundle that has it.
        raw_types: columns of the raw rows and their Arrow types; empty if no profile of them was kept.
        sensitive: columns whose values no message may show.
        sources: that the raw rows came from.
    """

    version: ModelVersion
    trained: TrainedWith
    dataset: Dataset
    evaluate: dict[str, Any]
    transform: CallableSpec | None
    rows_code: Ref
    raw_types: dict[str, str]
    sensitive: list[str]
    sources: list[SourceSpec]

    @property
    def types_to_read(self) -> dict[str, str]:
        """The part of `raw_types` that a prediction needs: without a transform, the columns of a batch.

        So a column that no batch holds, such as an id, may have another type than in training.
        """
        columns = TrainSpec.columns_in(self.trained.train["batch"])
        if self.transform is not None or columns is None:
            return self.raw_types
        return {name: kind for name, kind in self.raw_types.items() if name in columns}


def open_model(store: Store, name: str) -> Model:
    """The version that `name`, `name@alias` or `name@3` names; an alias is looked up once.

    Raises:
        UsageError: there is none, or its batches come from a data module of the user's.
        CorruptError: something that it was made with is gone or was changed.
    """
    version, _ = find_version(store, name)
    trained = trained_with(store, version.checkpoint)
    called = f"{version.name} version {version.version}"
    if trained.dataset is None or trained.train["lightning"].get("data"):
        raise UsageError(
            f"{called} gets its batches from a data module of yours, which reads its own data, so predict cannot give "
            "it rows.",
            remedy="Use its own predict_dataloader, or train it on sealed shards (train.batch).",
        )
    try:
        dataset = read_handoff(store, trained.dataset, Dataset)
        evaluate = store.manifest(version.evaluation).settings["evaluate"]
        made = store.manifest(trained.dataset)
        ref = made.parent_in("contracts")
        contract = None if ref is None else store.manifest(ref)
    except FileNotFoundError as error:
        raise CorruptError(f"Part of what {called} was made with is missing: {error}.") from error
    preparation = _preparation(store, version, dataset, made)
    profile = None if contract is None else read_profile(store, contract.ref)
    transform = preparation["transform"]
    return Model(
        version=version,
        trained=trained,
        dataset=dataset,
        evaluate=evaluate,
        transform=None if transform is None else CallableSpec.model_validate(transform),
        rows_code=Ref.model_validate(made.provenance["code"]["ref"]),
        raw_types={} if profile is None else {one.name: one.type for one in profile.columns},
        sensitive=list(preparation["sensitive"]),
        sources=[SourceSpec.model_validate(one) for one in made.provenance.get("raw_sources", [])],
    )


def _preparation(store: Store, version: ModelVersion, dataset: Dataset, made: Manifest) -> Mapping[str, Any]:
    """The transform and the sensitive columns; for a dataset of an earlier version, from the run that promoted it."""
    if "preparation" in made.provenance:
        return dict(made.provenance["preparation"])
    run_id = store.manifest(version.ref).provenance.get("run_id", "")
    resolved = find_inputs(store, run_id) if run_id else None
    run = None if resolved is None else RunInputs(resolved, store)
    # The key is the digest of all that decides the rows: only the run's true settings give it.
    if run is None or run.external or run.spec.shards is None or dataset_key(run) != dataset.key:
        raise UsageError(
            f"{dataset.ref.uri} does not say how its rows were prepared, and the run that made it is gone.",
            remedy="Run the pipeline again: datasets record it now.",
        )
    data, transform = run.spec.data, run.spec.shards.transform
    assert not isinstance(data, str)
    return {
        "transform": None if transform is None else transform.model_dump(mode="json"),
        "sensitive": data.sensitive,
    }
