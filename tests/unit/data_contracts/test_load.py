"""Each mistake in a spec, and every word of what a user then reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from data_contracts.errors import SpecError
from data_contracts.load import json_schema, load_spec
from tests.support.refusals import refusal

Write = Callable[..., Path]

# (what is replaced, by what, the error without the file's name)
MISTAKES = {
    "unknown key": (
        "global_batch_size: 64",
        "global_batchsize: 64",
        "12: train.global_batchsize: unknown key; did you mean global_batch_size?",
    ),
    "unknown key beside the right one": (
        "devices: 2",
        "device: 2",
        "13: train.device: unknown key; did you mean devices?",
    ),
    "key of another section": (
        "version: 1",
        "version: 1\nglobal_batch_size: 3",
        "2: global_batch_size: unknown key here; did you mean train.global_batch_size?",
    ),
    "unknown key like no other": (
        "contract: {suite: suite.json}",
        "contract: {suite: suite.json, zzz: 1}",
        "6: contract.zzz: unknown key; contract has arrival, contamination, drift, fail_on, features, parameters, "
        "predictions, quarantine, runner and suite",
    ),
    "no version": ("version: 1\n", "", "1: version: is missing; write `version: 1` as the first line"),
    "unknown key at the top": (
        "version: 1",
        "version: 1\nzzz: 3",
        "2: zzz: unknown key; a spec has code, contract, data, environment, evaluate, mirrors, name, notify, promote, "
        "retry, schedule, search, shards, store, tags, train, until, verify and version",
    ),
    "unknown key in a source without its list": (
        "source: digits.parquet",
        "source: {uri: a, formt: csv}",
        "4: data.source.formt: unknown key; did you mean format?",
    ),
    "unknown key in a list": (
        "min: 0.9",
        "minimum: 0.9",
        "23: promote.gates.0.minimum: unknown key; did you mean min?",
    ),
    "text for a whole number": (
        "global_batch_size: 64",
        "global_batch_size: ten",
        "12: train.global_batch_size: must be a whole number, got 'ten'",
    ),
    "quoted number": (
        "global_batch_size: 64",
        "global_batch_size: '64'",
        "12: train.global_batch_size: must be a whole number, got '64'; take the quotes off",
    ),
    "fraction for a whole number": ("devices: 2", "devices: 1.5", "13: train.devices: must be a whole number, got 1.5"),
    "true for a whole number": ("devices: 2", "devices: true", "13: train.devices: must be a whole number, got true"),
    "nothing for a whole number": (
        "devices: 2",
        "devices:",
        "13: train.devices: must be a whole number, but nothing is written here",
    ),
    "text for a number": (
        "min_gain: 0",
        "min_gain: a bit",
        "25: promote.gates.1.min_gain: must be a number, got 'a bit'",
    ),
    "number for text": (
        "name: digits",
        "name: digits\ntags: {year: 2026}",
        "3: tags.year: must be text, got 2026; put quotes around it",
    ),
    "list for text": ("name: digits", "name: [digits]", "2: name: must be text, got a list"),
    "long text": (
        "devices: 2",
        f"devices: {'x' * 80}",
        f"13: train.devices: must be a whole number, got '{'x' * 55}…'",
    ),
    "text for a mapping": (
        "contract: {suite: suite.json}",
        "contract: suite.json",
        "6: contract: must be a mapping, got 'suite.json'",
    ),
    "number for text or a mapping": (
        "source: digits.parquet",
        "source: [a.csv, 4]",
        "4: data.source.1: must be text or a mapping, got 4",
    ),
    "number for a list": ("sensitive: [id]", "sensitive: 3", "5: data.sensitive: must be a list, got 3"),
    "no branch of a union": (
        "suite: suite.json",
        "suite: 3",
        "6: contract.suite: must be text or a mapping, got 3",
    ),
    "a nested union": (
        "batch: [[p0, p1], label]",
        "batch:\n  - p0\n  - 7",
        "16: train.batch.1: must be text or a list, got 7",
    ),
    "a branch within a nested union": (
        "batch: [[p0, p1], label]",
        "batch: {x: [p0, 1]}",
        "14: train.batch.x.1: must be text, got 1; put quotes around it",
    ),
    "no branch of data": (
        "data:\n  source: digits.parquet\n  sensitive: [id]\n",
        "data: extern\n",
        "3: data: must be a mapping or 'external', got 'extern'",
    ),
    "a section of which nothing is written": (
        "source: digits.parquet\n  sensitive: [id]",
        "<<: {}",
        "3: data.source: is missing; add it (Files or globs, read in this order, the files of a glob by name. "
        "A single source needs no list)",
    ),
    "not one of the choices": (
        "devices: 2",
        "strategy: dpd",
        "13: train.strategy: must be one of ddp, fsdp, hsdp or single, got 'dpd'; did you mean ddp?",
    ),
    "none of the launchers": (
        "devices: 2",
        "launcher: lsf",
        "13: train.launcher: must be one of local, work-pool, slurm, ssh or kubernetes, got 'lsf'",
    ),
    "neither of two choices": (
        "mode: max",
        "mode: up",
        "20: evaluate.metrics.accuracy.mode: must be max or min, got 'up'",
    ),
    "too small": ("devices: 2", "devices: 0", "13: train.devices: must be at least 1, got 0"),
    "not more than": (
        "devices: 2",
        "rollcall_timeout_s: 0",
        "13: train.rollcall_timeout_s: must be more than 0, got 0",
    ),
    "an empty list": ("source: digits.parquet", "source: []", "4: data.source: must not be empty"),
    "an empty mapping": (
        "metrics:\n    accuracy:\n      class_path: torchmetrics.Accuracy\n      target: 1\n      mode: max",
        "metrics: {}",
        "16: evaluate.metrics: must not be empty",
    ),
    "missing field": (
        "  global_batch_size: 64\n",
        "",
        "10: train.global_batch_size: is missing; add it (Rows per optimizer step, over all ranks)",
    ),
    "missing name": (
        "name: digits\n",
        "",
        "1: name: is missing; add it (Name of the pipeline; its runs, artifacts, deployments and model are named after "
        "it)",
    ),
    "name that is no path": (
        "name: digits",
        "name: Digits 1",
        "2: name: 'Digits 1' cannot be a name: use 1 to 63 characters (a-z, 0-9, '.', '_', '-') that begin "
        "with a letter or digit",
    ),
    "key that is no name": (
        "evaluate:\n",
        "evaluate:\n  sets: {A B: {split: val}}\n",
        "16: evaluate.sets.A B: 'A B' cannot be a name: use 1 to 63 characters (a-z, 0-9, '.', '_', '-') that begin "
        "with a letter or digit",
    ),
    "options that are no mapping": (
        "version: 1",
        "version: 1\nstore: {uri: s3://b/c, storage_options: hunter2}",
        "2: store.storage_options: must be a mapping, and is something else",
    ),
    "password of a database": (
        "version: 1",
        "version: 1\nstore: {uri: s3://b/c, pointers: postgresql://tw:hunter2@db/names}",
        "2: store.pointers: must name its password (postgresql://user:env:NAME@host/database), not hold it",
    ),
    "password behind a database's address": (
        "version: 1",
        'version: 1\nstore: {uri: s3://b/c, pointers: "postgresql://db/names?password=hunter2"}',
        "2: store.pointers: must not hold a credential after its '?' (password); name the password "
        "(user:env:NAME@host)",
    ),
    "password that only the database's driver reads": (
        "version: 1",
        'version: 1\nstore: {uri: s3://b/c, pointers: "postgresql://tw?:env:KEY@db/names"}',
        "2: store.pointers: must be postgresql://[user[:env:NAME]@]host[:port]/database, or sqlite:////path",
    ),
    "password after a mark of a fragment": (
        "version: 1",
        'version: 1\nstore: {uri: s3://b/c, pointers: "postgresql://tw#:env:KEY@db/names"}',
        "2: store.pointers: must be postgresql://[user[:env:NAME]@]host[:port]/database, or sqlite:////path",
    ),
    "password with a slash": (
        "version: 1",
        'version: 1\nstore: {uri: s3://b/c, pointers: "postgresql://tw:a/b@db/names"}',
        "2: store.pointers: must name its password (postgresql://user:env:NAME@host/database), not hold it",
    ),
    "database at another host than its password": (
        "version: 1",
        'version: 1\nstore: {uri: s3://b/c, pointers: "postgresql://db/names?hostaddr=192.0.2.1"}',
        "2: store.pointers: must not have hostaddr after its '?': the password of one host would be sent to another",
    ),
    "database that is none": (
        "version: 1",
        "version: 1\nstore: {uri: s3://b/c, pointers: mysql://db/names}",
        "2: store.pointers: must be postgresql://[user[:env:NAME]@]host[:port]/database, or sqlite:////path",
    ),
    "database without a name": (
        "version: 1",
        "version: 1\nstore: {uri: s3://b/c, pointers: postgresql://db}",
        "2: store.pointers: must be postgresql://[user[:env:NAME]@]host[:port]/database, or sqlite:////path",
    ),
    "database at a relative path": (
        "version: 1",
        "version: 1\nstore: {uri: s3://b/c, pointers: sqlite:///names.db}",
        "2: store.pointers: must give an absolute path, such as sqlite:////srv/names.db",
    ),
    "database for a folder": (
        "version: 1",
        "version: 1\nstore: {uri: here, pointers: sqlite:////srv/names.db}",
        "2: store.pointers: is for an s3:// store; here decides its names itself, leave it out",
    ),
    "secret in an option": (
        "version: 1",
        "version: 1\nstore: {uri: s3://b/c, storage_options: {secret: hunter2}}",
        "2: store.storage_options.secret: must name a credential (env:NAME or profile:NAME), not hold one",
    ),
    "newer version": (
        "version: 1",
        "version: 7",
        "1: version: 7 is newer than the 1 that this Trainwright reads; upgrade Trainwright",
    ),
    "version as text": ("version: 1", "version: '1'", "1: version: must be 1, got '1'; take the quotes off"),
    "rule between fields": (
        "devices: 2",
        "devices: 3",
        "12: train.global_batch_size: 64 is not divisible by train.nodes x train.devices = 3",
    ),
    "gate on no metric": (
        "metric: accuracy, min: 0.9",
        "metric: recall, min: 0.9",
        "23: promote.gates.0.metric: 'recall' is not a metric of evaluate; it has accuracy",
    ),
    "rule of a section": (
        "    - metric: accuracy\n",
        "    - metric: accuracy\n      max: 1\n",
        "24: promote.gates.1: give exactly one of min, max, min_gain, margin and max_gap",
    ),
    "inline Lightning config": (
        "lightning: lightning.yaml",
        "lightning:\n    model: {class_path: m.M}\n    trainer:\n      devices: 4",
        "14: train.lightning.trainer.devices: is 4, but train.devices of the spec is 2; leave it out here",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_file_line_and_field(mistake: str, spec_file: Write) -> None:
    old, new, expected = MISTAKES[mistake]
    assert refusal(SpecError, load_spec, spec_file((old, new))) == f"spec.yaml:{expected}"


def test_several_mistakes_are_listed_in_their_order_in_the_file(spec_file: Write) -> None:
    path = spec_file(
        ("devices: 2", "devices: two"), ("version: 1\n", "version: 1\nstor: x\n"), ("min: 0.9", "mim: 0.9")
    )
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert str(caught.value).splitlines() == [
        "spec.yaml:2: stor: unknown key; did you mean store?",
        "spec.yaml:14: train.devices: must be a whole number, got 'two'",
        "spec.yaml:24: promote.gates.0.mim: unknown key; did you mean min?",
    ]
    assert caught.value.details["errors"][1] == {
        "field": "train.devices",
        "sentence": "must be a whole number, got 'two'",
    }


def test_a_secret_is_never_repeated(spec_file: Write) -> None:
    for text in ("storage_options: hunter2", "storage_options: {client_kwargs: {aws_secret_access_key: hunter2}}"):
        with pytest.raises(SpecError) as caught:
            load_spec(spec_file(("version: 1", f"version: 1\nstore: {{uri: s3://b/c, {text}}}")))
        assert "hunter2" not in str(caught.value) + json.dumps(caught.value.to_json())


LEAVE_OUT = "Leave it out of the address."
READ_IT = "Read it from the environment in your code."
IN_STORAGE_OPTIONS = "Name it in storage_options (env:NAME or profile:NAME)"


@pytest.mark.parametrize(
    ("override", "what", "remedy"),
    [
        ("tags.link=https://ann:hunter2@example.org", "a password", LEAVE_OUT),
        ("tags={link: 'see https://x.org/?access_token=hunter2'}", "a field access_token", LEAVE_OUT),
        ("train.lightning.model.init_args.url=https://hunter2@example.org/x", "a user, which may be a token", READ_IT),
        ("train.lightning.model.init_args={url: 'https://x.org/?a=1&sig=hunter2'}", "a field sig", READ_IT),
        ("data.source=s3://b/rows.csv?X-Amz-Credential=hunter2", "a field X-Amz-Credential", IN_STORAGE_OPTIONS),
        ("store.pointers=postgresql://ann:hunter2@db/names", "a password", "Name the password (user:env:NAME@host)"),
    ],
)
def test_a_credential_in_a_setting_is_refused_and_never_repeated(
    override: str, what: str, remedy: str, spec_file: Write
) -> None:
    lightning = ("lightning: lightning.yaml", "lightning: {model: {class_path: m.M}}")
    with pytest.raises(SpecError) as caught:
        load_spec(spec_file(lightning), [override])
    assert f"--set {override.partition('=')[0]}: has an address with {what}" in str(caught.value)
    assert remedy in str(caught.value.to_json())
    assert ("shown in Prefect" in str(caught.value)) == override.startswith("tags")
    assert "hunter2" not in str(caught.value) + json.dumps(caught.value.to_json())


def test_credentials_in_the_file_have_their_lines(spec_file: Write) -> None:
    tags = "version: 1\ntags:\n  team: sales\n  password: hunter2\n  link: https://x.org/?apiKey=hunter2"
    lightning = "lightning:\n    {trainer: {default_root_dir: 's3://ann:hunter2@b'}, model: {class_path: m.M}}"
    said = refusal(SpecError, load_spec, spec_file(("version: 1", tags), ("lightning: lightning.yaml", lightning)))
    shown = "tags are stored with every result and shown in Prefect"
    stored = "the spec and its Lightning config are stored with each run"
    lines = [
        f"spec.yaml:4: tags.password: is named like a secret; {shown}. Leave it out, or rename it.",
        f"spec.yaml:5: tags.link: has an address with a field apiKey that looks like a secret; {shown}. {LEAVE_OUT}",
        f"train.lightning.trainer.default_root_dir: has an address with a password; {stored}. {READ_IT}",
    ]
    for line, expected in zip(said.splitlines(), lines, strict=True):
        assert line.endswith(expected)


@pytest.mark.parametrize(
    "override",
    [
        "tags.api_key=env:KEY",
        "tags.docs=https://example.org/a@b?page=2",
        "tags.board=https://example.org/?projectKey=ABC&sortKey=1&monkey=2&max_tokens=3",
        "tags.repository=ssh://git@example.org/x",
        "data.source=s3://b/part-?.csv",
        "store={uri: 's3://b', pointers: 'postgresql://ann:env:PASSWORD@host/names'}",
    ],
)
def test_what_only_resembles_a_credential_is_not_refused(override: str, spec_file: Write) -> None:
    load_spec(spec_file(), [override])


def test_the_right_spec_is_read_with_its_defaults(spec_file: Write) -> None:
    spec = load_spec(spec_file())
    assert spec.store.uri == ".trainwright"
    assert [source.uri for source in spec.data.source] == ["digits.parquet"]
    assert spec.train.world_size == 2
    assert spec.train.batch == [["p0", "p1"], "label"]
    assert spec.evaluate.metrics["accuracy"].target == "1"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json_schema()


def test_every_spec_that_we_ship_is_read_and_fits_the_schema_of_editors(
    repository: Path, schema: dict[str, Any]
) -> None:
    shipped = sorted((repository / "examples").rglob("pipeline*.yaml"))
    assert shipped
    for path in shipped:
        load_spec(path)
        jsonschema.validate(yaml.safe_load(path.read_text()), schema)


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({"store": "elsewhere"}, True),
        ({"store": {"uri": "s3://bucket/prefix"}}, True),
        ({"store": 3}, False),
        ({"data": {"source": "one.csv"}}, True),
        ({"data": {"source": ["one.csv", {"uri": "two.csv"}]}}, True),
        ({"data": {"source": []}}, False),
        ({"data": {"sourc": "one.csv"}}, False),
        ({"nmae": "x"}, False),
    ],
)
def test_the_schema_of_editors_says_what_the_loader_says(
    change: dict, fits: bool, spec_file: Write, schema: dict[str, Any]
) -> None:
    value = {**yaml.safe_load(spec_file().read_text()), **change}
    assert jsonschema.Draft202012Validator(schema).is_valid(value) is fits
    assert bool(refusal(SpecError, load_spec, spec_file(text=yaml.safe_dump(value)))) is not fits


def test_every_field_of_the_schema_has_a_description(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"] == "Trainwright pipeline spec, version 1"
    sections = [*schema["$defs"].values(), schema]
    objects = [one for section in sections for one in [section, *section.get("anyOf", [])] if "properties" in one]
    assert len(objects) >= 15
    # What a reference leaves unsaid, the section that it names says.
    fields = [(name, field) for one in objects for name, field in one["properties"].items() if "$ref" not in field]
    assert len(fields) >= 40
    bare = [name for name, field in fields if not field.get("description")]
    assert bare == []
