"""A whole line with `promote.sign`: signed and proven by command line, and the key is nowhere but in its file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.signing.keys import PUBLIC_FILE, make_key_pair
from tests.support.tiny import SPEC, answer, trainwright, write_project

pytestmark = [pytest.mark.slow, pytest.mark.warm]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A state folder of this test's own; its server is stopped at the end."""
    own = {"TRAINWRIGHT_HOME": str(tmp_path / "home"), "TRAINWRIGHT_SIGNING_KEY": ""}
    yield own
    trainwright("down", env=own)


def test_a_line_signs_what_it_promotes_and_the_key_stays_in_its_file(tmp_path: Path, home: dict[str, str]) -> None:
    private, public = make_key_pair(tmp_path / "keys")
    spec = write_project(
        tmp_path / "tiny", {"promote": {**SPEC["promote"], "sign": "file:signer", "require": ["signed", "contract"]}}
    )
    key = spec.parent / "signer"  # in the project, under a harmless name
    key.write_bytes(private.read_bytes())
    refused = trainwright("run", spec, env=home)
    assert (refused.returncode, "signer may be read by others" in refused.stderr + refused.stdout) == (2, True)
    key.chmod(0o600)
    done = trainwright("run", spec, env=home)
    assert done.returncode == 0, done.stderr
    proof = answer(trainwright("prove", "tiny", "--key", public, "--json", cwd=spec.parent, env=home))
    assert proof["signed"]["receipts"] == 1
    stranger = make_key_pair(tmp_path / "stranger")[1]
    assert stranger.name == PUBLIC_FILE
    assert trainwright("prove", "tiny", "--key", stranger, cwd=spec.parent, env=home).returncode == 6
    back = trainwright("rollback", "tiny", cwd=spec.parent, env=home)
    assert back.returncode == 2
    body = key.read_bytes().splitlines()[1]
    texts = [done.stdout, done.stderr, refused.stdout, refused.stderr]
    found = [path for path in tmp_path.rglob("*") if path.is_file() and body in path.read_bytes()]
    assert sorted(found) == sorted([key, private])
    assert not any(body.decode() in text for text in texts)
