"""Bundles of projects without data or secrets keep their names, ids and digests from version to version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.code_bundle import pack, unpack
from infra.store import Store
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tests.support.files import git, write_files
from tests.support.tiny import SPEC, write_project

FILES = {
    "pyproject.toml": '[project]\nname = "golden"\nversion = "0"\n',
    "README.md": "A project.\n",
    "net/__init__.py": "",
    "net/model.py": "class Net: ...\n",
    "net/tokenizer.py": "VOCABULARY = 'vocab.json'\n",
    "net/secrets.py": "def seal(): ...\n",
    "tokens/__init__.py": "",
    "tokens/token.py": "class Token: ...\n",
    "tokens/special_tokens_map.json": "{}",
    "tokenizer.json": '{"a": 0}',
    "vocab.json": '{"b": 1}',
    "vocab.txt": "a\nb\n",
    "labels.json": '["cat", "dog"]',
    "suite.json": "{}",
    "specs/spec.yaml": "version: 1\n",
}
# Kind of project → what the version before code.include made of it: name, id and digest.
GOLDEN = {
    "git": (
        "code/97a5251e185fd9c57e00ca6fbc33a76e2ff593c4",
        "739faf577e800e77223a508ba8ab0089e39d693f3a529f699a2a05a15fd5faa0",
        "4f75f1169deaf9dfa9f4077765fda13c0b74aee0abd0909d6922328cd469f9f0",
    ),
    "plain": (
        "code/60b1c9b20eef086a9a82733d1d34459df5ca8f14",
        "8116fde7822599a78b1d646703b6e19370dc58d489c5dadb771702895bb7d767",
        "4f75f1169deaf9dfa9f4077765fda13c0b74aee0abd0909d6922328cd469f9f0",
    ),
    "vocabulary": (
        "code/3c93980a1d89ec9b65c963087a08da41d25ef394",
        "d7ed51be188f5fe6da00134833beb943854bca45d41f6baec4bad87bc5a288dc",
        "131e5b4176fb31ed37d206ed106b42cc47f5542a00487177b386861d55859e77",
    ),
}


def written(root: Path, kind: str) -> Path:
    write_files(root, FILES)
    (root / "notes").mkdir()
    (root / "notes/link.py").symlink_to("../net/model.py")
    if kind == "git":
        write_files(root, {".gitignore": "ignored\n", "ignored": "1", "table.csv": "1,2\n"})
        git(root, "init")
    return root


@pytest.mark.parametrize("kind", GOLDEN)
def test_a_bundle_keeps_its_name_id_and_digest(kind: str, store: Store, tmp_path: Path) -> None:
    root = written(tmp_path / "project", kind)
    named = [root / "vocab.json", root / "vocab.txt"] if kind == "vocabulary" else []
    bundle = pack(root / "specs", store, named)
    assert (bundle.ref.uri, bundle.ref.id, bundle.digest) == GOLDEN[kind]
    laid = unpack(store, bundle.ref, tmp_path / "out")
    assert (laid / "tokens/token.py").exists()


def test_a_spec_that_names_a_vocabulary_keeps_its_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    lightning = {**SPEC["train"]["lightning"]}
    lightning["model"] = {"class_path": "net.Net", "init_args": {"hidden": 16, "words": "words.json"}}
    folder = write_files(tmp_path / "tiny", {"words.json": json.dumps(["a", "b"])})
    spec = write_project(folder, {"train": {**SPEC["train"], "lightning": lightning}})
    run = open_run(read_spec(spec), recorded=False)
    provenance = run.provenance()
    assert run.resolved.code_digest == "93259e71bb327d7539e7c3194df81d77761af727783a3e40ef3e4eaa81f6d086"
    assert provenance["spec_digest"] == "9323f8df5c3daa1b33b03bcc90701dfc204b3f8c54ac6d323f5624853adca4d1"
