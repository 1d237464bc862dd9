"""The Lightning config: what the spec owns is refused with both fields named, what has no effect is said."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import SpecError
from data_contracts.lightning_config import check_lightning, inline_lightning, trainer_arguments
from data_contracts.load import load_spec
from tests.support.refusals import refusal

Write = Callable[..., Path]
MODEL = {"class_path": "m.Model"}
EPOCHS = {"max_epochs": 1}

# (what the config holds besides a model, the error)
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"trainer": {"strategy": "fsdp"}},
        "trainer.strategy: is 'fsdp', but train.strategy of the spec is ddp; leave it out here",
    ),
    (
        {"trainer": {"strategy": {"class_path": "DDPStrategy"}}},
        "trainer.strategy: is a mapping, but train.strategy of the spec is ddp; leave it out here",
    ),
    ({"trainer": {"devices": 4}}, "trainer.devices: is 4, but train.devices of the spec is 2; leave it out here"),
    (
        {"trainer": {"devices": [0, 1]}},
        "trainer.devices: is a list, but train.devices of the spec is 2; leave it out here",
    ),
    ({"trainer": {"num_nodes": 2}}, "trainer.num_nodes: is 2, but train.nodes of the spec is 1; leave it out here"),
    (
        {"trainer": {"accumulate_grad_batches": 4}},
        "trainer.accumulate_grad_batches: is 4, but train.global_batch_size and "
        "train.micro_batch_size of the spec make it "
        "1; leave it out here",
    ),
    (
        {"trainer": {"enable_checkpointing": False}},
        "trainer.enable_checkpointing: is false, but train.checkpoint of the spec says when "
        "checkpoints are written; leave "
        "it out here",
    ),
    (
        {"trainer": {"use_distributed_sampler": False}},
        "trainer.use_distributed_sampler: is false, but the spec decides the sample order "
        "(train.seed); leave it out here",
    ),
    (
        {"trainer": {"default_root_dir": "out"}},
        "trainer.default_root_dir: is 'out', but store of the spec says where results lie; leave it out here",
    ),
    (
        {"trainer": {"fast_dev_run": True}},
        "trainer.fast_dev_run: is true, but it switches off the checkpoints that train.checkpoint "
        "of the spec asks for; "
        "leave it out here",
    ),
    (
        {
            "trainer": {
                "callbacks": [{"class_path": "EarlyStopping"}, {"class_path": "lightning.pytorch.ModelCheckpoint"}]
            }
        },
        "trainer.callbacks.1: lightning.pytorch.ModelCheckpoint is not used: train.checkpoint and "
        "train.select of the spec "
        "say what is kept; leave it out here",
    ),
    (
        {"trainer": {"callbacks": "OnExceptionCheckpoint"}},
        "trainer.callbacks: OnExceptionCheckpoint is not used: train.checkpoint and train.select of "
        "the spec say what is "
        "kept; leave it out here",
    ),
    (
        {"ckpt_path": "last.ckpt"},
        "ckpt_path: is 'last.ckpt', but a training resumes from its own last committed checkpoint; leave it out here",
    ),
    (
        {"trainer": {"callbacks": [{"class_path": "lightning.pytorch.callbacks.GradientAccumulationScheduler"}]}},
        "trainer.callbacks.0: lightning.pytorch.callbacks.GradientAccumulationScheduler is not used: "
        "train.global_batch_size and train.micro_batch_size of the spec say what is accumulated; leave it out here",
    ),
    (
        {"trainer": {"overfit_batches": 0.5}},
        "trainer.overfit_batches: is 0.5, but train.global_batch_size and train.seed of the spec say which rows a step "
        "takes; leave it out here",
    ),
    (
        {"trainer": {"limit_val_batches": 1}},
        "trainer.limit_val_batches: is 1, but train.micro_batch_size and train.devices of the spec change how many "
        "rows that is; give val fewer rows; leave it out here",
    ),
    (
        {"data": {"class_path": "m.Data"}, "trainer": {"accumulate_grad_batches": 2}},
        "trainer.accumulate_grad_batches: is 2, but with a data module of your own each step of "
        "train.global_batch_size rows is one batch of it on each rank; leave it out here",
    ),
    ({"seed_everything": 42}, "seed_everything: is 42, but train.seed of the spec is 0; leave it out here"),
    ({"seed_everything": False}, "seed_everything: is false, but train.seed of the spec is 0; leave it out here"),
    (
        {"model": None},
        "model: model.class_path must name the LightningModule as module.Class; write model: {class_path: …}",
    ),
    (
        {"model": {"init_args": {}}},
        "model.class_path: model.class_path must name the LightningModule as module.Class; write "
        "model: {class_path: …}",
    ),
    (
        {"model": {"class_path": "Model"}},
        "model.class_path: model.class_path must name the LightningModule as module.Class, got 'Model'; write model: "
        "{class_path: …}",
    ),
    (
        {"data": "data.yaml"},
        "data: data.class_path must name the LightningDataModule as module.Class; write data: {class_path: …}",
    ),
    ({"trainer": "gpu"}, "trainer: must be a mapping, got 'gpu'"),
    ({"trainer": {"max_epoch": 3}}, "trainer.max_epoch: unknown key; did you mean trainer.max_epochs?"),
    ({"optimiser": {}}, "optimiser: unknown key; did you mean optimizer?"),
    (
        {"zzz": {}},
        "zzz: unknown key; a LightningCLI config has model, data, trainer, optimizer, lr_scheduler, seed_everything, "
        "ckpt_path",
    ),
    (
        {"model": None, "fit": {"model": MODEL}},
        "fit: is a subcommand's section; move its content one level up, without fit:",
    ),
]


@pytest.mark.parametrize(("config", "error"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(config: dict[str, Any], error: str, spec_file: Write) -> None:
    said = refusal(SpecError, check_lightning, {"model": MODEL, **config}, load_spec(spec_file()))
    assert said == f"lightning.yaml: {error}"


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ({"strategy": "auto", "devices": "auto", "num_nodes": 1, "accumulate_grad_batches": 1}, []),
        ({"strategy": None, "enable_checkpointing": None, "callbacks": None, "default_root_dir": None}, []),
        (
            {"enable_checkpointing": True, "use_distributed_sampler": True, "fast_dev_run": False, "barebones": False},
            [],
        ),
        ({"strategy": "ddp", "devices": 2, "callbacks": [{"class_path": "EarlyStopping"}, 3]}, []),
        ({"accumulate_grad_batches": 4}, [("devices: 2", "devices: 2\n  micro_batch_size: 8")]),
        ({"limit_train_batches": 5, "limit_val_batches": 1.0, "overfit_batches": 0.0, "val_check_interval": 2}, []),
        ({"limit_val_batches": 0, "limit_test_batches": 1.0}, []),
        ({"accumulate_grad_batches": 1}, [("devices: 2", "devices: 2\n  micro_batch_size: 500")]),
    ],
)
def test_defaults_and_the_specs_own_values_are_accepted(
    config: dict[str, Any], changes: list[tuple[str, str]], spec_file: Write
) -> None:
    spec = load_spec(spec_file(*changes))
    for seed in (None, True, 0):
        whole = {
            "model": MODEL,
            "trainer": {**EPOCHS, **config},
            "seed_everything": seed,
            "ckpt_path": None,
            "data": None,
        }
        assert check_lightning(whole, spec) == []


def test_a_file_is_read_from_the_specs_folder_and_its_errors_have_lines(spec_file: Write) -> None:
    folder = Path("project")
    folder.mkdir()
    spec = load_spec(spec_file())
    sentence = "there is no such file; correct train.lightning in the spec, or write the file."
    assert refusal(SpecError, inline_lightning, spec, folder) == f"project/lightning.yaml: {sentence}"
    (folder / "lightning.yaml").write_text("model: {class_path: m.Model, init_args: {lr: 1e-3}}\n")
    assert inline_lightning(spec, folder) == {"model": {"class_path": "m.Model", "init_args": {"lr": 0.001}}}
    (folder / "lightning.yaml").write_text("trainer:\n  max_epochs: 3\n  devices: 4\nmodel: {class_path: m.Model}\n")
    sentence = "trainer.devices: is 4, but train.devices of the spec is 2; leave it out here"
    assert refusal(SpecError, inline_lightning, spec, folder) == f"project/lightning.yaml:3: {sentence}"


def test_an_inline_config_is_handed_over_as_it_is(spec_file: Write) -> None:
    spec = load_spec(spec_file(("lightning.yaml", "{model: {class_path: m.Model}, trainer: {max_steps: 5}}")))
    assert inline_lightning(spec, Path("nowhere")) == {"model": MODEL, "trainer": {"max_steps": 5}}
    assert check_lightning(inline_lightning(spec, Path("nowhere")), spec) == []
    assert refusal(SpecError, check_lightning, {}, spec).startswith("train.lightning: model: ")


def test_external_data_needs_a_data_module_and_has_no_sealed_dataset(spec_file: Write) -> None:
    path = spec_file(
        ("data:\n  source: digits.parquet\n  sensitive: [id]\n", "data: external\n"),
        ("contract: {suite: suite.json}\n", ""),
        ("shards:\n  split:\n    key: id\n", ""),
    )
    spec = load_spec(path)
    assert refusal(SpecError, check_lightning, {"model": MODEL}, spec) == (
        "lightning.yaml: data: data: external of the spec needs the data module that reads it; name "
        "it as data.class_path"
    )
    data = {"class_path": "m.Data", "init_args": {"folders": ["${dataset.path}/train"]}}
    sentence = "data.init_args.folders.0: ${dataset.path} names the sealed dataset, but"
    assert sentence in refusal(SpecError, check_lightning, {"model": MODEL, "data": data}, spec)
    fine = {"model": MODEL, "data": {"class_path": "m.Data", "init_args": {"folder": "raw"}}, "trainer": EPOCHS}
    assert check_lightning(fine, spec) == [f"train.batch has no effect: {OWN}"]


OWN = "the Lightning config brings a data module, which makes its own batches."
DATA = {"class_path": "m.Data", "init_args": {"folder": "${dataset.path}"}}

# (change to the spec, what the config holds besides, what is said)
WITHOUT_EFFECT: list[tuple[list[tuple[str, str]], dict[str, Any], list[str]]] = [
    ([], {"trainer": EPOCHS}, []),
    (
        [("devices: 2", "devices: 2\n  micro_batch_size: 8"), ("evaluate:\n", "evaluate:\n  batch_size: 9\n")],
        {"trainer": EPOCHS, "data": DATA},
        [
            f"train.batch has no effect: {OWN}",
            f"train.micro_batch_size has no effect: {OWN}",
            f"evaluate.batch_size has no effect: {OWN}",
        ],
    ),
    (
        [],
        {},
        ["trainer of the Lightning config has neither max_epochs nor max_steps: Lightning trains for 1000 epochs."],
    ),
    (
        [],
        {
            "trainer": {
                **EPOCHS,
                "plugins": [{"class_path": "lightning.pytorch.plugins.AsyncCheckpointIO"}, "bitsandbytes"],
            }
        },
        [
            "trainer.plugins: lightning.pytorch.plugins.AsyncCheckpointIO has no effect: checkpoints are sealed by "
            "Trainwright."
        ],
    ),
    (
        [],
        {"trainer": {**EPOCHS, "limit_test_batches": 1, "limit_predict_batches": 0.5}},
        [
            "trainer.limit_test_batches has no effect: evaluate scores every row.",
            "trainer.limit_predict_batches has no effect: evaluate scores every row.",
        ],
    ),
    (
        [("class_path: torchmetrics.Accuracy", "logged: test_acc")],
        {"trainer": EPOCHS},
        ["evaluate.metrics.accuracy.target has no effect with logged."],
    ),
    (
        [("source: digits.parquet", "source: {uri: d.parquet, format: parquet, columns: [a], pattern: '{b}'}")],
        {"trainer": EPOCHS},
        [
            "data.source.0.columns has no effect: format parquet names its own columns.",
            "data.source.0.pattern has no effect: it needs format files or text.",
        ],
    ),
    (
        [("source: digits.parquet", "source: [a.csv, {uri: b, storage_options: {anon: true}, format: csv}]")],
        {"trainer": EPOCHS},
        ["data.source.1.storage_options has no effect: b is not an s3:// address."],
    ),
    (
        [("version: 1", "version: 1\nstore: {uri: here, storage_options: {anon: true}}")],
        {"trainer": EPOCHS},
        ["store.storage_options has no effect: here is not an s3:// address."],
    ),
    (
        [("    key: id", "    column: part\n    seed: 3\n    fractions: {train: 1}")],
        {"trainer": EPOCHS},
        ["shards.split.fractions has no effect with column.", "shards.split.seed has no effect with column."],
    ),
    (
        [("    key: id", "    time: at\n    seed: 3\n    boundaries: {test: 2026-01-01}\n    fractions: {train: 1}")],
        {"trainer": EPOCHS},
        ["shards.split.fractions has no effect with boundaries.", "shards.split.seed has no effect with time."],
    ),
    ([("    key: id", "    time: at\n    fractions: {train: 0.5, test: 0.5}")], {"trainer": EPOCHS}, []),
]


@pytest.mark.parametrize(("changes", "config", "said"), WITHOUT_EFFECT, ids=range(len(WITHOUT_EFFECT)))
def test_what_has_no_effect_is_said(
    changes: list[tuple[str, str]], config: dict[str, Any], said: list[str], spec_file: Write
) -> None:
    assert check_lightning({"model": MODEL, **config}, load_spec(spec_file(*changes))) == said


def test_the_trainers_arguments_are_known_without_importing_lightning(repository: Path) -> None:
    code = (
        "import sys; from data_contracts.lightning_config import trainer_arguments as known; "
        "print(*known()); print('lightning' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    names, loaded = done.stdout.splitlines()
    assert loaded == "False False"
    # Every argument that the spec owns is one that Lightning still has.
    ours = {
        "strategy", "devices", "num_nodes", "accumulate_grad_batches", "enable_checkpointing", "callbacks", "plugins",
        "default_root_dir", "use_distributed_sampler", "fast_dev_run", "barebones", "max_epochs", "max_steps",
        "max_time", "overfit_batches", "limit_train_batches", "limit_val_batches", "limit_test_batches",
        "limit_predict_batches", "val_check_interval",
    }  # fmt: skip
    assert ours <= set(names.split())


@pytest.mark.parametrize("laid_out", [False, True], ids=["absent", "laid out otherwise"])
def test_without_lightnings_source_the_trainers_keys_go_unchecked(
    laid_out: bool, spec_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if laid_out:
        (tmp_path / "path" / "lightning").mkdir(parents=True)
        (tmp_path / "path" / "lightning" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "path")])
    monkeypatch.delitem(sys.modules, "lightning", raising=False)
    trainer_arguments.cache_clear()
    try:
        config = {"model": MODEL, "trainer": {**EPOCHS, "max_epoch": 3}}
        assert trainer_arguments() == ()
        assert check_lightning(config, load_spec(spec_file())) == []
    finally:
        trainer_arguments.cache_clear()


def test_a_credential_in_an_address_of_the_file_is_refused_and_never_repeated(spec_file: Write) -> None:
    path = spec_file()
    lines = ["model: {class_path: m.M, init_args: {urls: ['https://x.org', 'https://ann:hunter2@x.org']}}"]
    lines += ["trainer: {default_root_dir: 's3://ann:hunter2@b'}"]
    (path.parent / "lightning.yaml").write_text("\n".join(lines))
    shown = refusal(SpecError, inline_lightning, load_spec(path), path.parent)
    sentence = "has an address with a password; the spec and its Lightning config are stored with each run."
    assert f"lightning.yaml:1: model.init_args.urls.1: {sentence}" in shown
    assert f"lightning.yaml:2: trainer.default_root_dir: {sentence}" in shown
    assert "hunter2" not in shown
