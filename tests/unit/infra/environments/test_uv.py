"""uv gets the indexes of this machine and their passwords, and nobody else does."""

from __future__ import annotations

import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError, UsageError
from infra.environments import cache, packages
from infra.environments.indexes import source_digests, uv_settings
from infra.environments.packages import packages_folder_in
from tests.support.wheels import write_wheel

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
    monkeypatch.setattr(packages, "uv_binary", lambda: str(program))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return tmp_path / "seen"


def test_a_password_reaches_uv_alone(seen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://me:word@index/simple\ncert = /ca.pem\nno-index = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("UV_INDEX_INNER_PASSWORD", "other word")
    monkeypatch.setenv("WANDB_API_KEY", "key")
    monkeypatch.delenv("PIP_CERT", raising=False)
    with pytest.raises(packages.UvFailed) as caught:
        packages.install(tmp_path / "python", ["--requirements", "file"], ["sourced"], tmp_path / "wheels")
    assert caught.value.reason == "Failed to parse https://index"
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


def test_what_lies_in_the_working_folder_does_not_run(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "working"
    folder.mkdir()
    for name in ("pip", "compileall", "tokenize"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write('{name} ')\n")
    site = packages_folder_in(tmp_path / "made")
    write_wheel(tmp_path, "stranger", "1.0")
    with zipfile.ZipFile(tmp_path / "stranger-1.0-py3-none-any.whl") as wheel:
        wheel.extractall(site)
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://index/simple\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "../pip.conf")
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    variables, _ = uv_settings(os.environ)
    assert variables["UV_DEFAULT_INDEX"] == "https://index/simple"
    cache._compile(site, set())
    assert list((site / "stranger/__pycache__").glob("*.pyc"))
    assert not (folder / "ran").exists()


def test_pip_gets_its_own_settings_and_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\n[ -z "$WANDB_API_KEY" ] && echo ":env:.index-url=\'$PIP_INDEX_URL\'"\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    variables, _ = uv_settings({"WANDB_API_KEY": "key", "PIP_INDEX_URL": "https://me:word@index"})
    assert variables["UV_DEFAULT_INDEX"] == "https://me:word@index"


def test_without_pips_settings_nothing_is_installed_from_another_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text("index-url = https://me:word@index/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    with pytest.raises(UsageError, match="does not say which indexes this machine uses") as caught:
        uv_settings(os.environ)
    assert "pip config list" in caught.value.remedy
    assert "word" not in str(caught.value)


def test_where_packages_come_from_is_told_apart_without_its_words(tmp_path: Path) -> None:
    (tmp_path / "dangling.whl").symlink_to("nowhere")
    config = tmp_path / "pip.conf"
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(config), "PIP_FIND_LINKS": f"file://{tmp_path}"}
    seen = [source_digests(environ)]
    assert source_digests({**environ, "OTHER": "variable"}) == seen[0]
    seen.append(source_digests({**environ, "PIP_INDEX_URL": "https://word@index"}))
    config.write_text("[global]\nindex-url = https://word@index\n")
    seen.append(source_digests(environ))
    config.write_text("[global]\nindex-url = https://word@other\n")
    seen.append(source_digests(environ))
    (tmp_path / "stranger.whl").touch()
    seen.append(source_digests(environ))
    assert len({str(one) for one in seen}) == len(seen)
    assert "word" not in str(seen)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("error: Failed to fetch: `https://index/x/`\n  cause: error sending request", StorageUnavailable),
        ("error: Request failed after 3 retries\n  cause: operation timed out", StorageUnavailable),
        ("error: Failed to download `a==1`\n  cause: Hash mismatch for `a==1`\n\nExpected:\n  sha256:0", CorruptError),
        ("error: Failed to fetch: `https://i/x/`\n  cause: HTTP status client error (401 Unauthorized)", UsageError),
        ("error: Failed to fetch: `https://i/x/`\n  cause: HTTP status client error (403 Forbidden)", UsageError),
        ("error: Failed to fetch: `https://i/x/`\n  cause: HTTP status client error (404 Not Found)", UsageError),
        (
            "error: Failed to fetch: `https://i/x/`\n  cause: status server error (503)",
            StorageUnavailable,
        ),
        ("error: failed to write\n  cause: No space left on device (os error 28)", UsageError),
        ("error: No solution found when resolving dependencies", packages.UvFailed),
    ],
)
def test_a_failure_has_its_cause(text: str, kind: type[TrainwrightError]) -> None:
    assert type(packages._uv_error(text)) is kind


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://dl.cloudsmith.io/word/simple/", "https://dl.cloudsmith.io"),
        ("https://index:8443/simple?auth=word", "https://index:8443"),
        ("https://word@index/simple", "https://index"),
        ("https://me:wo/rd@index/simple", "https://…"),
        ("https://me:wo?rd@index/simple", "https://…"),
        ("https://me:wo@rd@index/simple", "https://index"),
        ("https://me:wo'rd@index/simple", "https://index"),
        ("https://[::1]:80/word", "https://[::1]:80"),
        ("https://me:word", "https://…"),
        ("file:///wheels/a.whl", "file:///wheels/a.whl"),
    ],
)
def test_an_address_is_shown_as_its_host(address: str, shown: str) -> None:
    assert (
        packages.as_sentence(f"Failed to fetch: `{address}`, ({address}).") == f"Failed to fetch: `{shown}`, ({shown})."
    )


def test_a_long_tree_becomes_a_sentence() -> None:
    text = (
        "Using Python 3.11 at: /x\n  × No solution found:\n  ╰─▶ Because a\n      needs b.\n\nhint: use https://a:b@c"
    )
    assert packages.as_sentence(text) == "No solution found: Because a needs b."
    assert len(packages.as_sentence("word " * 1000)) == packages.MAX_CHARACTERS + 1
