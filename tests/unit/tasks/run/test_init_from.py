"""`train.init_from` looked up once: which checkpoint, model or file may be begun with, and what the key holds of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from safetensors.numpy import save

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Checkpoint, Receipt, Ref
from infra.models import registry
from infra.store import Store, layout
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages.trainings import training_key
from tests.support.damage import overwrite
from tests.support.files import write_files
from tests.support.stored_checkpoints import stored_checkpoint
from tests.support.tiny import SPEC, write_project

pytestmark = pytest.mark.usefixtures("home")
URI = "trainings/k-0/checkpoints/8-g0"
WEIGHTS = save({"w": np.ones(3, np.float32)})
DIGEST = f"sha256:{hashlib.sha256(WEIGHTS).hexdigest()}"


def opened(store: Store, init_from: Any, **train: Any) -> Run:
    folder = Path(store.uri).parent / "tiny"
    spec = write_project(folder, {"train": {**SPEC["train"], "init_from": init_from, **train}})
    return open_run(read_spec(spec), store_uri=store.uri, recorded=False)


def sealed(store: Store, step: int = 8, *, verified: bool = True) -> Checkpoint:
    checkpoint = stored_checkpoint(store, step)
    if verified:
        store.create_json(layout.verified(checkpoint.ref.uri), {"checkpoint": checkpoint.ref.to_json()})
    return checkpoint


def test_a_checkpoint_a_model_and_a_file_are_recorded_as_what_they_are_now(store: Store, tmp_path: Path) -> None:
    checkpoint = sealed(store)
    assert opened(store, URI).resolved.init_from == checkpoint.ref
    evaluation = Ref(uri="evaluations/e-0", id="e" * 64, seal="s" * 64)
    version = registry.write_version(store, "digits", checkpoint, evaluation, {}, {"parents": []})
    receipt = Receipt(decision="promoted", model="digits", alias="champion", version=1, previous=None, sentence="")
    registry.move_alias(store, None, version, receipt, {"run_id": "r"}, ())
    for name in ("digits@champion", "digits@1"):
        assert opened(store, name).resolved.init_from == checkpoint.ref
    write_files(tmp_path / "tiny", {"w.safetensors": WEIGHTS})
    outside = opened(store, {"weights": "w.safetensors", "digest": DIGEST}).resolved
    manifest = store.verify(outside.init_from)
    assert (manifest.kind, manifest.provenance["tags"]) == ("import", {"team": "tests"})
    assert json.loads(outside.model_dump_json())["init_from"] == outside.init_from.to_json()


def test_the_key_holds_what_is_begun_with_and_how_but_not_where_it_lies(store: Store, tmp_path: Path) -> None:
    def key(init_from: Any) -> str:
        return training_key(opened(store, init_from), None)

    write_files(tmp_path / "tiny", dict.fromkeys(("a.safetensors", "b.safetensors"), WEIGHTS))
    sealed(store)
    sealed(store, 16)
    a, b = ({"weights": f"{name}.safetensors", "digest": DIGEST} for name in ("a", "b"))
    other = {"weights": "a.safetensors", "digest": f"blake3:{blake3(WEIGHTS).hexdigest()}"}
    assert key(a) == key(b) == key(other), "which of two imports of one content it is does not count"
    assert len({key(None), key(a), key({**a, "strict": False}), key(URI), key(URI.replace("8-g0", "16-g0"))}) == 5


# what is done to the checkpoint, how it was sealed, what is raised
REFUSED: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "no such checkpoint": (lambda *_: None, {}, UsageError, "has no checkpoint trainings/k-0/checkpoints/9-g0"),
    "not verified": (
        lambda *_: None,
        {"verified": False},
        UsageError,
        "8-g0 is not verified. Run `trainwright verify`",
    ),
    "quarantined": (
        lambda store, uri: store.create_json(layout.quarantined(uri), {"schema_version": 1, "reason": "it is old."}),
        {},
        UsageError,
        "8-g0 is quarantined: it is old. Name another",
    ),
    "changed": (
        lambda store, uri: overwrite(Path(store.uri) / uri / "state.json", b"{} "),
        {},
        CorruptError,
        "state.json does not hold the bytes that were sealed",
    ),
    "marked as verified by another's mark": (
        lambda store, uri: store.create_json(
            layout.verified(uri), {"checkpoint": sealed(store, 16, verified=False).ref.to_json()}
        ),
        {"verified": False},
        CorruptError,
        "8-g0 is not the checkpoint that was verified",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_starts(case: str, store: Store) -> None:
    harm, how, kind, sentence = REFUSED[case]
    harm(store, sealed(store, **how).ref.uri)
    with pytest.raises(kind, match=sentence):
        opened(store, URI.replace("8-g0", "9-g0") if case == "no such checkpoint" else URI)
