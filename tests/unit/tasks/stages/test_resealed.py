"""What someone changed in the store and sealed again in its place is refused wherever a decision depends on it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Ref
from infra.models import registry
from infra.records.handoffs import FILE
from infra.store import Store, layout
from tasks.queries.proof import prove, read_again
from tasks.run.resolve import existing_version, find_version
from tasks.run.run import Run, open_run, reopen_run
from tasks.run.spec_check import read_spec
from tasks.stages.shard import shard
from tasks.stages.trainings import trained_with
from tests.support.reseal import reseal
from tests.support.tiny import MODEL

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.warm]
EVIL = {"project/net.py": MODEL.replace("hidden: int = 16", "hidden: int = 17").encode()}


class Held:
    """A copy of the store, in which anything may be changed, and what its run made."""

    def __init__(self, spec: Path, folder: Path) -> None:
        self.spec, self.folder = spec, folder
        (self.run_id,) = sorted(path.name for path in (folder / "runs").iterdir())
        self.run = reopen_run(self.run_id, str(folder))
        self.store: Store = self.run.store
        self.version = registry.read_version(self.store, "tiny", 1)

    def reseal(self, uri: str, **changes: Any) -> Ref:
        return reseal(self.folder, uri, **changes)


@pytest.fixture
def held(promoted: tuple[Path, Path], tmp_path: Path) -> Held:
    return Held(promoted[0], Path(shutil.copytree(promoted[1], tmp_path / "store")))


def test_code_is_not_run_and_a_new_run_packs_its_own(held: Held) -> None:
    honest = held.run.resolved.code
    forged = held.reseal(honest.uri, files=EVIL)
    checkpoint = held.version.checkpoint
    told = held.run.resolved.model_copy(update={"code": forged})
    consumers: dict[str, Callable[[], object]] = {
        "resume": held.run.project,
        "resume of a run that was changed, too": Run(told, held.store).project,
        "evaluate": lambda: trained_with(held.store, checkpoint),
        "prove": lambda: prove(held.store, "tiny@champion"),
        "prove, the chain changed, too": lambda: read_again(held.store, forged, "a checkpoint"),
    }
    for name, consumer in consumers.items():
        with pytest.raises(CorruptError) as caught:
            consumer()
        assert honest.uri in caught.value.message, name
    again = open_run(read_spec(held.spec), store_uri=str(held.folder), recorded=False)
    assert (again.resolved.code.uri, again.resolved.code.id) == (f"{honest.uri}-1", honest.id)
    assert (again.project() / "net.py").read_text() == MODEL


def test_a_checkpoint_of_other_code_than_it_was_trained_with(held: Held, tmp_path: Path) -> None:
    other = shutil.copytree(held.spec.parent, tmp_path / "tiny", ignore=shutil.ignore_patterns(".trainwright"))
    (other / "net.py").write_text(EVIL["project/net.py"].decode())
    evil = open_run(read_spec(other / held.spec.name), store_uri=str(held.folder), recorded=False).resolved.code
    checkpoint = held.version.checkpoint
    ref = held.reseal(checkpoint.ref.uri, provenance=lambda told: told["code"].update(ref=evil.to_json()))
    assert ref.id == checkpoint.ref.id
    with pytest.raises(CorruptError, match=rf"^{evil.uri} does not hold the code that its name, or what refers"):
        trained_with(held.store, checkpoint.model_copy(update={"ref": ref}))


def test_a_version_is_the_one_that_its_receipts_name(held: Held) -> None:
    assert find_version(held.store, "tiny@1")[0] == held.version
    held.reseal(held.version.ref.uri, provenance=lambda told: told["checkpoint"].update(step=1))
    for consumer in (
        lambda: find_version(held.store, "tiny@1"),
        lambda: existing_version(held.store, "tiny", 1),  # as rollback looks for where to go back to
        lambda: prove(held.store, "tiny@1"),
        lambda: prove(held.store, "tiny@champion"),
    ):
        with pytest.raises(
            CorruptError, match=r"models/tiny/1/manifest\.json is whole, but is not the (one|version 1) that"
        ):
            consumer()


def test_an_alias_names_what_its_newest_receipt_names(held: Held) -> None:
    other = layout.model("tiny", 1) + "0"
    shutil.copytree(held.folder / held.version.ref.uri, held.folder / other)
    with pytest.raises(
        CorruptError, match=r"models/tiny/10/manifest\.json is whole, but is not the version 10 that was"
    ):
        find_version(held.store, "tiny@10")


def test_a_hand_off_of_another_key_is_not_believed(held: Held) -> None:
    (name,) = (path.name for path in (held.folder / "datasets").iterdir())
    path = held.folder / "datasets" / name / FILE
    told = json.loads(path.read_text())
    held.reseal(f"datasets/{name}", files={FILE: json.dumps({**told, "key": "a" * 40}).encode()})
    with pytest.raises(CorruptError, match=rf"^datasets/{name}/handoff\.json is the hand-off of another reuse key"):
        shard(open_run(read_spec(held.spec), store_uri=str(held.folder), recorded=False), None)
