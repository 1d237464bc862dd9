"""uv installs from the indexes that pip would use, or leaves it to pip."""

from __future__ import annotations

import pytest

from infra.environments.indexes import pip_settings, settings_for_uv, uv_can


def test_the_environment_counts_more_than_a_file_and_other_commands_do_not_count() -> None:
    listed = "\n".join(
        [
            ":env:.index-url='https://environment/?a=1&b'",
            ":env:.disable-pip-version-check='1'",
            "download.find-links='/elsewhere'",
            "global.extra-index-url='\\nhttps://one\\nhttps://two'",
            "global.index-url='https://user:secret@file'",
            "global.cert='/ca.pem'",
            "global.constraint='/c.txt'",
            "install.find-links='/wheels /more'",
            "wheel.index-url='https://wheel'",
        ]
    )
    settings = pip_settings(listed)
    assert uv_can(settings)
    variables, options = settings_for_uv(settings, {"HOME": "/home/me", "UV_INDEX": "https://uv"})
    assert variables == {
        "UV_DEFAULT_INDEX": "https://environment/?a=1&b",
        "UV_INDEX": "https://uv",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/ca.pem",
        "UV_CONSTRAINT": "/c.txt",
    }
    assert options == []


@pytest.mark.parametrize("word", ["y", "Yes", "t", "true", "on", "1"])
def test_what_pip_takes_for_true_keeps_uv_from_the_index(word: str) -> None:
    assert settings_for_uv({"no-index": word}, {})[1] == ["--no-index"]
    assert settings_for_uv({"no-index": "false"}, {})[1] == []


def test_values_are_read_as_pip_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    listed = [
        ":env:.index-url=''", "global.index-url='https://private'", ":env:.default-timeout='180.5'",
        "global.timeout='15'", "global.cert='~/ca.pem'", "global.find-links='~/wheels https://more'",
    ]  # fmt: skip
    variables, _ = settings_for_uv(pip_settings("\n".join(listed)), {})
    assert variables == {
        "UV_DEFAULT_INDEX": "https://private",
        "UV_HTTP_TIMEOUT": "180",
        "SSL_CERT_FILE": "/home/me/ca.pem",
        "UV_FIND_LINKS": "/home/me/wheels,https://more",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


@pytest.mark.parametrize("setting", ["require-hashes='true'", "only-binary=':all:'", "pre='true'", "target='/t'"])
def test_what_uv_is_not_told_is_left_to_pip(setting: str) -> None:
    assert not uv_can(pip_settings(f"global.{setting}"))
