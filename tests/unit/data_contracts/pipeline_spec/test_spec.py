"""The rules of the spec's sections, each as the error that `load_spec` points to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.errors import SpecError
from data_contracts.load import load_spec
from data_contracts.pipeline_spec import CallableSpec, InitSpec, PipelineSpec, SplitSpec
from tests.support.refusals import refusal

Write = Callable[..., Path]
KEY = "    key: id"
TARGET = "      target: 1\n"
SOURCE = "source: digits.parquet"
EXTERNAL = [
    ("data:\n  source: digits.parquet\n  sensitive: [id]\n", "data: external\n"),
    ("contract: {suite: suite.json}\n", ""),
    ("shards:\n  split:\n    key: id\n", ""),
]

# (what is replaced, by what, the error without place)
BROKEN: list[tuple[str, str, str]] = [
    (SOURCE, "source: ''", "data.source: must not be empty"),
    (SOURCE, "source: gs://b/c.csv", "data.source: gs:// is not supported; give a path or an s3:// address"),
    (
        SOURCE,
        "source: s3://key:secret@bucket/c.csv",
        "data.source: must not hold credentials; name them in storage_options (env:NAME or profile:NAME)",
    ),
    (
        SOURCE,
        "source: {uri: s3://b/c, storage_options: {key: AKIA}}",
        "data.source.storage_options.key: must name a credential (env:NAME or profile:NAME), not hold one",
    ),
    (
        SOURCE,
        "source: {uri: s3://b/c, storage_options: {client_kwargs: {aws_secret_access_key: x}}}",
        "data.source.storage_options.client_kwargs.aws_secret_access_key: must name a credential (env:NAME or "
        "profile:NAME), not hold one",
    ),
    (
        SOURCE,
        "source: 'a-{{ start }}.csv'",
        "data.source.0.uri: has {{ start }} or {{ end }}, which data.window.path must say how to "
        "write (such as %Y-%m-%d)",
    ),
    (
        SOURCE,
        "source: [a.csv, 'b-{{end}}.csv']\n  window: {column: at}",
        "data.source.1.uri: has {{ start }} or {{ end }}, which data.window.path must say how to "
        "write (such as %Y-%m-%d)",
    ),
    (
        SOURCE,
        f"{SOURCE}\n  window: {{path: '%Y'}}",
        "data.window.path: fills {{ start }} and {{ end }}, but no data.source.uri has either",
    ),
    (SOURCE, f"{SOURCE}\n  window: {{}}", "data.window: give either column or path, and not both"),
    (SOURCE, f"{SOURCE}\n  window: {{path: '%Y', column: a}}", "data.window: give either column or path, and not both"),
    (KEY, "    seed: 1", "shards.split: does not say how to split; give key, time, column, or by: position"),
    (KEY, "    key: []", "shards.split: does not say how to split; give key, time, column, or by: position"),
    (
        KEY,
        "    by: position",
        "shards.split.by: needs documents, but no data.source has format: text; give it one, or split by key or time",
    ),
    (
        KEY,
        "    by: key",
        "shards.split.by: must be position, got 'key'; to split by key, leave by out and write key: COLUMN",
    ),
    (KEY, "    by: positon", "shards.split.by: must be position, got 'positon'"),
    (KEY, "    time: at\n    column: part", "shards.split.column: and time exclude each other; keep one"),
    (KEY, f"{KEY}\n    gap_s: 3", "shards.split.gap_s: needs time; add shards.split.time, or leave it out"),
    (
        KEY,
        f"{KEY}\n    boundaries: {{test: 2026-01-01}}",
        "shards.split.boundaries: needs time; add shards.split.time, or leave it out",
    ),
    (
        KEY,
        f"{KEY}\n    fractions: {{train: 0.8, test: 0.1}}",
        "shards.split.fractions: must add up to 1, but adds up to 0.9",
    ),
    (
        KEY,
        f"{KEY}\n    fractions: {{train: 1.5, test: -0.5}}",
        "shards.split.fractions.train: must be a share between 0 and 1, got 1.5",
    ),
    (
        KEY,
        f"{KEY}\n    fractions: {{val: 0.5, test: 0.5}}",
        "shards.split.fractions: leaves nothing for train; give it a share",
    ),
    (
        KEY,
        "    time: at\n    boundaries: {test: January}",
        "shards.split.boundaries.test: must be an ISO time such as 2026-01-31T12:00:00, got 'January'",
    ),
    (
        KEY,
        "    time: at\n    boundaries: {train: 2026-01-01}",
        "shards.split.boundaries.train: train is what comes before the first boundary; name the later splits only",
    ),
    (
        KEY,
        "    time: at\n    boundaries: {val: 2026-01-02, test: 2026-01-02}",
        "shards.split.boundaries.test: must be later than the boundary before it",
    ),
    (
        KEY,
        "    time: at\n    boundaries: {val: 2026-01-01, test: 2026-01-02T00:00:00Z}",
        "shards.split.boundaries.test: must have a time zone if the one before has one, and none if it has none",
    ),
    (
        "    key: id",
        f"{KEY}\n  transform: prepare",
        "shards.transform: 'prepare' is not a dotted path; write it as module.name",
    ),
    (
        "    key: id",
        f"{KEY}\n  transform: {{call: 'a:b', args: {{}}}}",
        "shards.transform.call: 'a:b' is not a dotted path; write it as module.name",
    ),
    (
        KEY,
        f"{KEY}\n  workers: 2\n  runner: {{dask: 'tcp://scheduler:8786', scratch: /shared}}",
        "shards.workers: and runner.dask exclude each other: the cluster decides how many work at once; leave workers "
        "out",
    ),
    (
        "devices: 2",
        "devices: 2\n  strategy: single",
        "train.strategy: single is one rank, but train.nodes x train.devices = 2; use ddp or fsdp, or one device",
    ),
    (
        "devices: 2",
        "devices: 2\n  micro_batch_size: 10",
        "train.micro_batch_size: 10 does not divide the 32 rows of train.global_batch_size that a rank takes",
    ),
    (
        "devices: 2",
        "devices: 2\n  shard_modules: 100",
        "train.shard_modules: needs strategy fsdp or hsdp, but it is ddp; leave it out",
    ),
    (
        "devices: 2",
        "strategy: fsdp\n  shard_modules: 0",
        "train.shard_modules: must be at least 1 parameter, got 0",
    ),
    (
        "devices: 2",
        "devices: 2\n  init_from: base.safetensors",
        "train.init_from.digest: is missing; weights from outside need it (sha256:… or blake3:…)",
    ),
    (
        "devices: 2",
        f"devices: 2\n  init_from: {{weights: digits@champion, digest: 'sha256:{'0' * 64}'}}",
        "train.init_from.digest: has an effect only on weights from outside; leave it out",
    ),
    (
        "devices: 2",
        f"devices: 2\n  init_from: {{weights: ./a@b, digest: '{'0' * 64}'}}",
        "train.init_from.digest: must be sha256: or blake3: and 64 hexadecimal digits in lower case",
    ),
    (
        "devices: 2",
        "devices: 2\n  loader: {block_rows: 5}",
        "train.loader.block_rows: has an effect only with shuffle: block; set that, or leave this out",
    ),
    (
        "devices: 2",
        "devices: 2\n  loader: {shuffle: block, mixture: {column: c, weights: {a: 1}}}",
        "train.loader.mixture: takes rows from anywhere, so it needs shuffle global",
    ),
    (
        "devices: 2",
        "devices: 2\n  loader: {mixture: {column: c, weights: {a: 1, b: -1}}}",
        "train.loader.mixture.weights.b: must be a weight of 0 or more, got -1",
    ),
    (
        "devices: 2",
        "devices: 2\n  loader: {mixture: {column: c, weights: {a: 1, b: 0.0001}}}",
        "train.loader.mixture.weights: must have a weight above 0; each other weight is 0 or at least a thousandth of "
        "their sum",
    ),
    (
        "devices: 2",
        "devices: 2\n  loader: {mixture: {weights: {a: 1}}}",
        "train.loader.mixture: give either column or datasets, and not both",
    ),
    (
        "devices: 2",
        "devices: 2\n  loader: {mixture: {datasets: {this: old}, weights: {this: 1}}}",
        "train.loader.mixture.datasets.this: is the run's own dataset; give the other one another name",
    ),
    (
        "devices: 2",
        "devices: 2\n  loader: {mixture: {datasets: {old: old}, weights: {old: 1}}}",
        "train.loader.mixture.weights: must have this, old and no others",
    ),
    (
        "devices: 2",
        "devices: 2\n  loader: {mixture: {datasets: {old: datasets/../x}, weights: {this: 1, old: 1}}}",
        "train.loader.mixture.datasets.old: '../x' cannot be a name: use 1 to 63 characters (a-z, 0-9, '.', '_', '-') "
        "that begin with a letter or digit",
    ),
    (
        TARGET,
        "",
        "evaluate.metrics.accuracy.target: is missing; name the entry of the batch that holds the "
        "truth (key or position)",
    ),
    (TARGET, "      target: true\n", "evaluate.metrics.accuracy.target: must be text, got true; put quotes around it"),
    (TARGET, "      logged: a\n", "evaluate.metrics.accuracy: give either class_path or logged, and not both"),
    (
        "torchmetrics.Accuracy",
        "Accuracy",
        "evaluate.metrics.accuracy.class_path: 'Accuracy' is not a dotted path; write it as module.name",
    ),
    (
        "  metrics:\n",
        "  metrics:\n    a/b: {logged: a, mode: max}\n",
        "evaluate.metrics.a/b: a metric's name must be text without '/', which stands for <set>/<metric>",
    ),
    (
        "evaluate:\n",
        "evaluate:\n  split: tset\n",
        "evaluate.split: 'tset' is not a split of shards.split; it makes train, val, test",
    ),
    (
        "evaluate:\n",
        "evaluate:\n  sets: {old: {split: past}}\n",
        "evaluate.sets.old.split: 'past' is not a split of shards.split; it makes train, val, test",
    ),
    (
        "evaluate:\n",
        "evaluate:\n  sets: {old: {}}\n",
        "evaluate.sets.old: give either split or source, and not both",
    ),
    (
        "metric: accuracy, min: 0.9",
        "metric: old/accuracy, min: 0.9",
        "promote.gates.0.metric: 'old' is not a set of evaluate.sets; it has none",
    ),
    (
        "promote:\n  gates:\n    - {metric: accuracy",
        "  sets: {new: {split: val}}\npromote:\n  gates:\n    - {metric: old/accuracy",
        "promote.gates.0.metric: 'old' is not a set of evaluate.sets; it has new",
    ),
    (
        "promote:\n",
        "promote:\n  alias: history\n",
        "promote.alias: history cannot be an alias: the store keeps the receipts under that name; choose another",
    ),
    ("min: 0.9", "min: 0.9, max: 1", "promote.gates.0: give exactly one of min, max, min_gain, margin and max_gap"),
    (
        "contract: {suite: suite.json}\n",
        "",
        "contract: is missing; only a pipeline with data: external may leave it out",
    ),
    (
        "shards:\n  split:\n    key: id\n",
        "",
        "shards: is missing; only a pipeline with data: external may leave it out",
    ),
]


@pytest.mark.parametrize(("old", "new", "error"), BROKEN, ids=[error.partition(";")[0] for *_, error in BROKEN])
def test_a_broken_rule_names_its_field(old: str, new: str, error: str, spec_file: Write) -> None:
    place, _, said = refusal(SpecError, load_spec, spec_file((old, new))).partition(": ")
    assert said == error
    assert place.startswith("spec.yaml:")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ([], ""),
        ([("evaluate:\n", "evaluate:\n  split: anything\n")], ""),
        (
            [("evaluate:\n", "evaluate:\n  sets: {old: {source: a.csv}}\n")],
            "evaluate.sets.old.source: needs shards, and with data: external there are none; name a split instead",
        ),
        (
            [("train:\n", "contract: {suite: {}}\ntrain:\n")],
            "contract: has no effect with data: external; leave it out",
        ),
    ],
)
def test_external_data(change: list[tuple[str, str]], error: str, spec_file: Write) -> None:
    assert refusal(SpecError, load_spec, spec_file(*EXTERNAL, *change)).partition(": ")[2] == error


@pytest.mark.parametrize(
    "change",
    [
        (KEY, "    column: part"),
        (KEY, "    key: [a, b]\n    time: at\n    gap_s: 60"),
        (KEY, "    time: at\n    boundaries: {val: 2026-01-01, test: '2026-02-01T12:00:00'}"),
        (KEY, f"{KEY}\n    fractions: {{train: 0.9, val: 0, test: 0.1}}"),
        (SOURCE, "source: {uri: 'a-{{ start }}.csv'}\n  window: {path: '%Y'}"),
        (SOURCE, "source: {uri: s3://b/c, storage_options: {key: env:K, secret: profile:p, anon: false, token: null}}"),
        (SOURCE, "source: {uri: s3://b/c, storage_options: {client_kwargs: {endpoint_url: http://localhost}}}"),
        ("devices: 2", "devices: 2\n  micro_batch_size: 1000"),
        ("devices: 2", "strategy: single"),
        ("devices: 2", "loader: {shuffle: block, block_rows: 5, window_blocks: 2, pad: {a: 0, b: 0.5, c: true}}"),
        ("devices: 2", "loader: {mixture: {column: c, weights: {a: 1, b: 0.5, c: 0}}}"),
        ("devices: 2", "loader: {mixture: {datasets: {o: other, p: datasets/ab-0}, weights: {this: 1, o: 1, p: 0}}}"),
        ("devices: 2", "strategy: fsdp\n  shard_modules: [Block]"),
        ("devices: 2", "strategy: fsdp\n  shard_modules: 1000"),
        (TARGET, "      target: label\n"),
        ("evaluate:\n", "evaluate:\n  sets: {old: {split: val}, new: {source: n.csv}}\n"),
        ("class_path: torchmetrics.Accuracy\n      target: 1", "logged: test_acc"),
    ],
)
def test_what_is_right(change: tuple[str, str], spec_file: Write) -> None:
    spec = load_spec(spec_file(change))
    assert PipelineSpec.model_validate(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("split", "names"),
    [
        ({"key": "id"}, ["train", "val", "test"]),
        ({"key": "id", "fractions": {"train": 0.5, "late": 0.5}}, ["train", "late"]),
        ({"time": "at", "boundaries": {"test": "2026-01-01"}}, ["train", "test"]),
        ({"column": "part"}, None),
    ],
)
def test_the_splits_that_a_setting_makes(split: dict[str, Any], names: list[str] | None) -> None:
    assert SplitSpec(**split).names == names


def test_a_section_is_frozen_and_says_its_rule_without_the_loader_too() -> None:
    call = CallableSpec.model_validate("module.function")
    assert (call.call, call.args) == ("module.function", {})
    with pytest.raises(ValidationError):
        call.call = "other.function"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="fractions: must add up to 1"):
        SplitSpec(key="id", fractions={"train": 0.5})


def test_the_models_name_is_the_pipelines_unless_given(spec_file: Write) -> None:
    assert load_spec(spec_file()).model_name == "digits"
    assert load_spec(spec_file(("promote:\n", "promote:\n  model: other\n"))).model_name == "other"


# what is written, what it names
NAMED = [
    ("trainings/0a1b-0/checkpoints/24-g1", "checkpoint"),
    ("digits@champion", "model"),
    ("digits@3", "model"),
    ("./digits@champion", "outside"),
    ("trainings/0a1b-0/checkpoints/24-g1/weights-0.safetensors", "outside"),
    ("s3://bucket/base.safetensors", "outside"),
]


@pytest.mark.parametrize(("weights", "source"), NAMED)
def test_what_a_training_begins_with_goes_by_its_form(weights: str, source: str) -> None:
    digest = {"digest": f"blake3:{'0' * 64}"} if source == "outside" else {}
    assert InitSpec.model_validate({"weights": weights, **digest}).source == source
    if not digest:
        assert InitSpec.model_validate(weights) == InitSpec(weights=weights)
