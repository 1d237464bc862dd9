"""Every message between our processes is read as it was written by earlier code, and its golden file says how."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import pytest

from data_contracts import messages
from data_contracts.errors import UsageError
from data_contracts.messages import Message

for module in pkgutil.iter_modules(messages.__path__, "data_contracts.messages."):
    importlib.import_module(module.name)

# Not those of tests.


def sent(kind: type[Message]) -> list[type[Message]]:
    """The messages of a kind that are sent; others are what some of them have in common."""
    return [leaf for part in kind.__subclasses__() for leaf in sent(part)] or [kind]


KINDS = sorted(
    (kind for kind in sent(Message) if kind.__module__.startswith(f"{messages.__name__}.")),
    key=lambda kind: kind.__name__,
)


def golden(repository: Path, kind: type[Message]) -> Path:
    return repository / f"tests/golden/messages/{kind.__name__}-v{kind.model_fields['schema_version'].default}.json"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_is_read_and_written_as_its_golden_file_says(kind, repository):
    written = golden(repository, kind).read_text()
    message = kind.from_json(json.loads(written))
    assert json.dumps(message.to_json(), indent=2) + "\n" == written
    stored_names = {field.alias or name for name, field in kind.model_fields.items()}
    assert set(json.loads(written)) == stored_names  # no field is left to its default unseen


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_of_a_newer_schema_is_refused_in_one_sentence(kind, repository):
    newer = json.loads(golden(repository, kind).read_text()) | {"schema_version": 99}
    with pytest.raises(UsageError, match=f"This {kind.__name__} has schema 99, newer than"):
        kind.from_json(newer)


def test_no_golden_file_is_left_of_a_message_that_is_gone(repository):
    kept = {path.name.rsplit("-v", 1)[0] for path in (repository / "tests/golden/messages").glob("*.json")}
    assert kept == {kind.__name__ for kind in KINDS}
