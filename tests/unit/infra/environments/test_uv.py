"""uv gets the indexes of this machine and their passwords, and nobody else does."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from data_contracts.errors import StorageUnavailable, TrainwrightError, UsageError
from infra.environments import uv

FAKE = """\
#!/bin/sh
printf '%s\\n' "$@" > "$SEEN.arguments"
env > "$SEEN.environment"
echo "error: Failed to parse https://me:word@index/simple" >&2
exit 2
"""


@pytest.fixture
def seen(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A uv that records how it was called, and fails with an address in its message."""
    program = tmp_path / "uv"
    program.write_text(FAKE)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(uv, "_binary", lambda: str(program))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return tmp_path / "seen"


def test_a_password_reaches_uv_alone(seen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://me:word@index/simple\ncert = /ca.pem\nno-index = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("UV_INDEX_INNER_PASSWORD", "other word")
    monkeypatch.setenv("WANDB_API_KEY", "key")
    monkeypatch.delenv("PIP_CERT", raising=False)
    with pytest.raises(uv.UvFailed) as caught:
        uv.install(tmp_path / "python", ["--requirements", "file"], ["sourced"], tmp_path / "wheels")
    assert caught.value.reason == "Failed to parse https://index/simple"
    arguments = Path(f"{seen}.arguments").read_text()
    assert "me:word" not in arguments
    assert "other word" not in arguments
    assert arguments.split()[:2] == ["pip", "install"]
    assert arguments.count("--no-index\n") == 1
    assert "--only-binary\n:all:\n" in arguments
    assert "--no-binary\nsourced\n" in arguments
    environment = Path(f"{seen}.environment").read_text()
    for line in (
        "UV_DEFAULT_INDEX=https://me:word@index/simple",
        "UV_INDEX_INNER_PASSWORD=other word",
        "SSL_CERT_FILE=/ca.pem",
        "UV_PYTHON_DOWNLOADS=never",
    ):
        assert f"{line}\n" in environment
    assert "WANDB_API_KEY=" not in environment


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("error: Failed to fetch: `https://index/x/`\n  cause: error sending request", StorageUnavailable),
        ("error: Request failed after 3 retries\n  cause: operation timed out", StorageUnavailable),
        ("error: failed to write\n  cause: No space left on device (os error 28)", UsageError),
        ("error: No solution found when resolving dependencies", uv.UvFailed),
    ],
)
def test_a_failure_has_its_cause(text: str, kind: type[TrainwrightError]) -> None:
    assert type(uv._failed(text)) is kind


def test_a_long_tree_becomes_a_sentence() -> None:
    text = (
        "Using Python 3.11 at: /x\n  × No solution found:\n  ╰─▶ Because a\n      needs b.\n\nhint: use https://a:b@c"
    )
    assert uv.as_sentence(text) == "No solution found: Because a needs b."
    assert len(uv.as_sentence("word " * 1000)) == uv.MOST_CHARACTERS + 1
