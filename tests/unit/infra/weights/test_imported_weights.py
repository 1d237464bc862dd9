"""Weights from outside: one import for one content, wherever it lies, and nothing that is not what was named."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs
from blake3 import blake3
from safetensors.numpy import save

from data_contracts.errors import CorruptError, TrainwrightError, UsageError
from data_contracts.handoffs import Ref
from data_contracts.pipeline_spec import InitSpec
from infra.store import Store
from infra.weights import check_import, import_weights
from tests.support.damage import overwrite
from tests.support.files import write_files
from tests.support.reseal import reseal
from tests.support.s3 import S3Server

pytestmark = pytest.mark.usefixtures("home")
ONE = save({"w": np.ones((2, 3), np.float32)})
TWO = save({"b": np.zeros(4, np.float16)})


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def of_folder(**files: bytes) -> str:
    return sha256("".join(f"{hashlib.sha256(files[n]).hexdigest()}  {n}.safetensors\n" for n in sorted(files)).encode())


def imported(store: Store, root: Path, weights: str, digest: str, **more: Any) -> Ref:
    wanted = InitSpec(weights=weights, digest=digest, **more)
    return import_weights(store, wanted, root, {"run_id": "r"}, field="pipeline.yaml: train.init_from")


def test_the_same_content_is_one_parent_however_it_is_called_and_digested(store: Store, tmp_path: Path) -> None:
    write_files(tmp_path, {"a.safetensors": ONE, "elsewhere/README.md": ""})
    (tmp_path / "elsewhere" / "b.safetensors").symlink_to(tmp_path / "a.safetensors")
    first = imported(store, tmp_path, "a.safetensors", sha256(ONE))
    second = imported(store, tmp_path, str(tmp_path / "elsewhere/b.safetensors"), f"blake3:{blake3(ONE).hexdigest()}")
    assert (first.id, first.uri == second.uri) == (second.id, False)
    manifest = store.verify(first)
    assert [(file.path, file.blake3) for file in manifest.files] == [("model.safetensors", blake3(ONE).hexdigest())]
    assert manifest.provenance["origin"] == {"from": "a.safetensors", "digest": sha256(ONE)}


def test_what_is_imported_is_not_fetched_again_unless_it_is_damaged(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(ONE)
    first = imported(store, tmp_path, "a.safetensors", sha256(ONE))
    (tmp_path / "a.safetensors").unlink()
    assert imported(store, tmp_path, "a.safetensors", sha256(ONE)) == first
    overwrite(Path(store.uri) / first.uri / "model.safetensors", TWO)
    (tmp_path / "model.pt").touch()
    for name in ("a.safetensors", "model.pt"):
        with pytest.raises(UsageError, match=rf"no weights at {name}\. Name a file that ends in \.safetensors, or"):
            imported(store, tmp_path, name, sha256(ONE))
    (tmp_path / "a.safetensors").write_bytes(ONE)
    assert imported(store, tmp_path, "a.safetensors", sha256(ONE)).id == first.id


def test_a_folder_goes_by_the_digest_of_its_list_as_sha256sum_prints_it(store: Store, tmp_path: Path) -> None:
    files = {"one.safetensors": ONE, "two.safetensors": TWO, "README.md": "not weights"}
    folder = write_files(tmp_path / "run[1]", files)
    listed = subprocess.run("sha256sum *.safetensors", shell=True, cwd=folder, capture_output=True, check=True).stdout
    assert sha256(listed) == of_folder(one=ONE, two=TWO)
    ref = imported(store, tmp_path, "run[1]/", sha256(listed))
    assert [file.path for file in store.verify(ref).files] == ["one.safetensors", "two.safetensors"]


def test_from_s3(store: Store, tmp_path: Path, s3_server: S3Server) -> None:
    bucket = s3_server.bucket()
    files = s3fs.S3FileSystem(
        key="an-access-key", secret="a-secret-key", endpoint_url=s3_server.url, skip_instance_cache=True
    )
    files.pipe_file(f"{bucket}/w/one.safetensors", ONE)
    files.pipe_file(f"{bucket}/w/two.safetensors", TWO)
    options = {"storage_options": s3_server.options}
    one = imported(store, tmp_path, f"s3://{bucket}/w/one.safetensors", sha256(ONE), **options)
    both = imported(store, tmp_path, f"s3://{bucket}/w", of_folder(one=ONE, two=TWO), **options)
    assert [len(store.verify(ref).files) for ref in (one, both)] == [1, 2]
    with pytest.raises(UsageError, match=f"there are no weights at s3://{bucket}/none"):
        imported(store, tmp_path, f"s3://{bucket}/none", sha256(b""), **options)


class Runs:
    """A pickle that would run code when opened."""

    def __reduce__(self) -> Any:
        return (open, ("ran", "w"))


TRUNCATED = ONE[:-1]
REFUSED: dict[str, tuple[bytes, str, type[TrainwrightError], str]] = {
    "other bytes": (TWO, sha256(ONE), CorruptError, "has the digest sha256:"),
    "a pickle": (pickle.dumps(Runs()), "", UsageError, "is not a safetensors file"),
    "cut off": (TRUNCATED, "", UsageError, "is not a safetensors file"),
    "empty": (b"", "", UsageError, "is not a safetensors file"),
    "a head without end": ((2**40).to_bytes(8, "little") + b"{}", "", UsageError, "is not a safetensors file"),
    "no tensors": (save({}), "", UsageError, "has no tensors"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence_and_nothing_is_sealed(
    case: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, digest, kind, sentence = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(kind, match=sentence) as caught:
        imported(store, tmp_path, "a.safetensors", digest or sha256(data))
    assert caught.value.message.startswith("pipeline.yaml: train.init_from: a.safetensors")
    assert store.list("imports") == []
    assert not (tmp_path / "ran").exists()


BOTH = {"one": ONE, "two": TWO}
RESEALED = {
    "sha256": ("one.safetensors", sha256(ONE), {"model.safetensors": TWO}),
    "blake3": ("one.safetensors", f"blake3:{blake3(ONE).hexdigest()}", {"model.safetensors": TWO}),
    "a folder": (".", of_folder(**BOTH), {"two.safetensors": ONE}),
}


@pytest.mark.parametrize("case", RESEALED)
def test_weights_that_were_sealed_anew_under_the_old_digest_are_not_used(
    case: str, store: Store, tmp_path: Path
) -> None:
    write_files(tmp_path, {f"{name}.safetensors": data for name, data in BOTH.items()})
    place, digest, changed = RESEALED[case]
    honest = imported(store, tmp_path, place, digest)
    check_import(store, store.verify(honest))
    forged = reseal(Path(store.uri), honest.uri, changed)
    with pytest.raises(CorruptError, match=rf"^{honest.uri} does not hold the weights that its name stands for"):
        check_import(store, store.verify(forged))
    again = imported(store, tmp_path, place, digest)
    assert (again.uri, again.id) == (f"{honest.uri}-1", honest.id)
