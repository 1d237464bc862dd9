"""`init`, `schema`, `store`, `key`: what people make before their first run.

`init` writes a starter pipeline and `schema` prints the spec's JSON Schema. `store` works on a store itself, apart
from any pipeline, and on the credentials that addresses are sent. `key` makes keys to sign receipts with.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from data_contracts.canonical import valid_name
from data_contracts.errors import UsageError
from data_contracts.load import json_schema, load_spec, load_store
from flows.commands.guard import Answer
from infra.project import project_extras
from infra.settings import CLUSTER, approve, remember_store
from infra.store import absolute_address, layout, open_store
from infra.store.s3 import credentials_sent, database_password

EXAMPLES = Path(__file__).parents[2] / "examples"
TEMPLATE = EXAMPLES / "digits"
FILES = ("pyproject.toml", "pipeline.yaml", "lightning.yaml", "suite.json", "model.py")
# A person's own model and data replace what prepare.py makes.
FINE_TUNING = (*FILES, "requirements.txt", "prepare.py")
_CREDENTIAL = re.compile(rf"env:[A-Za-z_]\w*|profile:.+|block:.+|{CLUSTER}")


def init(arguments: argparse.Namespace) -> Answer:
    """The `init` command: copies the digits pipeline and its data under the folder's name, ready to be changed.

    With `--from huggingface`, it copies the example of fine-tuning, without a model and data. With `--with`, it also
    writes other files, and nothing else in a folder that has a pipeline.
    """
    folder = Path(arguments.folder)
    spec = folder / "pipeline.yaml"
    adds = bool(arguments.extras) and spec.is_file()
    name = load_spec(spec).name if adds else _free_name(folder)
    extras = project_extras(list(dict.fromkeys(arguments.extras)), name, folder)
    if taken := [file for file in extras if file.exists() or file.is_symlink()]:
        raise UsageError(f"{taken[0]} exists already.", remedy="Move it away, or leave this file out.")
    above = [file.parents[up] for file in extras if file.parent.name == "workflows" for up in (1, 0)]
    if other := [path for path in above if path.is_symlink() or path.is_file()]:
        raise UsageError(f"{other[0]} is not a folder of the project.", remedy="Move it away, or leave the file out.")
    fine_tunes = arguments.origin == "huggingface"
    if not adds:
        _write_pipeline(folder, name, fine_tunes=fine_tunes)
    for file, content in extras.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    begins = "needs your model in base/ and its digest, and your data; or run prepare.py, which makes small ones"
    lines = [] if adds else [f"{spec} {begins if fine_tunes else 'is a pipeline that runs as it is'}."]
    lines += [f"wrote {file}" for file in extras]
    lines += [] if adds else [f"Next: trainwright run {spec}"]
    return Answer(
        "\n".join(lines), {"spec": str(spec), "name": name, "files": [os.path.relpath(file, folder) for file in extras]}
    )


def _free_name(folder: Path) -> str:
    """A pipeline's name by its folder; UsageError if the folder is in use."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        raise UsageError(f"{folder} {what}.", remedy="Name a folder that does not exist yet.")
    name = re.sub(r"[^a-z0-9._-]", "-", folder.resolve().name.lower()).lstrip("._-")
    try:
        return valid_name(name)
    except ValueError as error:
        raise UsageError(f"{folder}: {error}.", remedy="Choose another name for the folder.") from error


def _write_pipeline(folder: Path, name: str, *, fine_tunes: bool) -> None:
    template = EXAMPLES / "finetune" if fine_tunes else TEMPLATE
    (folder / "data").mkdir(parents=True)
    for file in FINE_TUNING if fine_tunes else FILES:
        shutil.copy(template / file, folder / file)
    if not fine_tunes:
        subprocess.run([sys.executable, str(TEMPLATE / "prepare.py")], check=True, stdout=sys.stderr)
        shutil.copy(TEMPLATE / "data" / "digits.parquet", folder / "data")
    spec = folder / "pipeline.yaml"
    written = re.sub(r"(?m)^name: .*$", f'name: "{name}"', spec.read_text())
    if not fine_tunes:  # the example compares two values, so that its test rows are never used up
        written = written.replace("min_gain: 0}", "min_gain: 0, confidence: 0.95}")
    spec.write_text(written)
    (folder / ".gitignore").write_text(".trainwright/\ndata/\n" + ("base/\n" if fine_tunes else ""))


def schema(arguments: argparse.Namespace) -> Answer:
    """The `schema` command."""
    value = json_schema()
    return Answer(json.dumps(value, indent=2), value)


def store(arguments: argparse.Namespace) -> Answer:
    """The `store` command: `init` makes a store or says how it was made, `approve` records where credentials may go."""
    if arguments.action == "approve":
        return _approve(arguments.address.rstrip("/"), arguments.names)
    if arguments.names:
        raise UsageError("store init takes one address.", remedy="Name options with --set.")
    spec = load_store(absolute_address(arguments.address), arguments.pointers, arguments.set)
    # Whoever types an address and the credentials for it has approved them.
    fields, address = credentials_sent(spec.storage_options)
    for place, names in ((address, fields), (spec.pointers, database_password(spec.pointers or ""))):
        if place and names:
            approve(place, names)
    opened = open_store(spec.uri, spec.storage_options, pointers=spec.pointers)
    remember_store(opened.uri, spec.storage_options, opened.pointers)
    about = opened.read_json(layout.STORE)
    where = "itself" if about["pointers"] == "store" else about["pointers"]
    text = f"{opened.uri} is a store, made {about['made']}, with its pointers in {where}."
    return Answer(text, {"uri": opened.uri, "pointers": about["pointers"], "made": about["made"]})


def _approve(address: str, names: list[str]) -> Answer:
    if not names or not all(map(_CREDENTIAL.fullmatch, names)):
        raise UsageError(
            "store approve needs an address and the credentials that it may be sent.",
            remedy="Name them as a spec does: trainwright store approve http://minio:9000 env:KEY env:SECRET.",
        )
    approved = approve(address, names)
    return Answer(f"{address} may be sent {', '.join(approved)}.", {address: approved})


def key(arguments: argparse.Namespace) -> Answer:
    """The `key` command."""
    from infra.signing.keys import load_public_key, make_key_pair

    private, public = make_key_pair(Path(arguments.folder).expanduser())
    identity = load_public_key(public).id
    lines = [
        f"{private} is the private key; only you may read it.",
        f"{public} is the public key, id {identity[:16]}…: give it to everyone who verifies.",
        f"Next: export TRAINWRIGHT_SIGNING_KEY={private.resolve()}",
    ]
    return Answer("\n".join(lines), {"private": str(private), "public": str(public), "id": identity})
