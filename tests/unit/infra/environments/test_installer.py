"""uv or pip gets its own configuration with its passwords, and no other credentials; its failures have causes."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError, UsageError
from infra.environments import installer

UV = """\
#!/bin/sh
printf '%s\\n' "$@" > "$SEEN.arguments"
env > "$SEEN.environment"
echo "error: Failed to parse https://me:word@index/simple" >&2
exit 2
"""


def test_a_password_reaches_the_installer_alone(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    own = {"UV_INDEX": "https://me:word@index/simple", "PIP_INDEX_URL": "https://me:word@index/simple"}
    for name, value in {**own, "WANDB_API_KEY": "key", "SEEN": str(tmp_path / "seen")}.items():
        monkeypatch.setenv(name, value)
    sources = installer.Sources(["sourced"], tmp_path / "wheels", "2026-11-21T00:00:00+00:00")
    with pytest.raises(UsageError) as caught:
        installer.install("the-python", ["stranger==1"], sources, ["--no-deps"])
    assert caught.value.message == "Failed to parse https://index"
    arguments = (tmp_path / "seen.arguments").read_text().split()
    assert arguments[:-1] == [
        *("pip", "install", "--python", "the-python", "--only-binary", ":all:", "--no-binary", "sourced"),
        *("--no-index", "--find-links", str(tmp_path / "wheels"), "--exclude-newer", "2026-11-21T00:00:00+00:00"),
        *("--no-deps", "--requirement"),
    ]
    environment = (tmp_path / "seen.environment").read_text().splitlines()
    assert {f"{name}={value}" for name, value in own.items()} <= set(environment)
    assert "WANDB_API_KEY=key" not in environment


def test_what_lies_in_the_working_folder_does_not_run(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pip", "compileall", "tokenize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", "")
    assert "pyyaml" not in installer.find_missing(["pyyaml"], installer.Sources(wheels=tmp_path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("error: Failed to fetch: `https://index/x/`\n  cause: error sending request", StorageUnavailable),
        ("error: Request failed after 3 retries\n  cause: operation timed out", StorageUnavailable),
        ("error: Failed to fetch: `https://i/x/`\n  cause: HTTP status server error (503)", StorageUnavailable),
        ("WARNING: Retrying after connection broken by 'x'\nERROR: No matching distribution", StorageUnavailable),
        ("ERROR: HTTP error 502 while getting https://i/x", StorageUnavailable),
        ("error: Failed to download `a==1`\n  cause: Hash mismatch for `a==1`\n\nExpected:\n  sha256:0", CorruptError),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", CorruptError),
        ("error: Failed to fetch: `https://i/x/`\n  cause: HTTP status client error (401 Unauthorized)", UsageError),
        ("ERROR: HTTP error 403 while getting https://i/x", UsageError),
        ("error: failed to write\n  cause: No space left on device (os error 28)", UsageError),
        ("error: No solution found when resolving dependencies", UsageError),
    ],
)
def test_a_failure_has_its_cause(text: str, kind: type[TrainwrightError]) -> None:
    assert type(installer._error(text)) is kind


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://dl.cloudsmith.io/word/simple/", "https://dl.cloudsmith.io"),
        ("https://index:8443/simple?auth=word", "https://index"),
        ("https://word@index/simple", "https://index"),
        ("https://me:wo/rd@index/simple", "https://index"),
        ("https://me:wo@rd@index/simple", "https://index"),
        ("https://me:word", "https://me"),
        ("file:///wheels/a.whl", "file:///wheels/a.whl"),
    ],
)
def test_an_address_is_shown_as_its_host(address: str, shown: str) -> None:
    assert installer._error(f"error: Failed to fetch {address}").message == f"Failed to fetch {shown}"


@pytest.mark.parametrize("words", ["connection broken by 'Refused()':", "Max retries exceeded with url:"])
def test_the_path_of_an_address_is_not_shown(words: str) -> None:
    for path in ("/word/simple/stranger/", "/simple?key=word/stranger/"):
        shown = installer._error(f"WARNING: Retrying after {words} {path}\nERROR: No matching distribution").message
        assert "word" not in shown
        assert "No matching distribution" in shown


def test_a_long_tree_becomes_a_sentence() -> None:
    text = (
        "Using Python 3.11 at: /x\n  × No solution found:\n  ╰─▶ Because a\n      needs b.\n\nhint: use https://a:b@c"
    )
    assert installer._error(text).message == "No solution found: Because a needs b."
