"""uv installs from the indexes that pip would use, or leaves it to pip."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def uv_install(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repository / ".ci"))
    import uv_install

    return uv_install


def test_the_environment_counts_more_than_a_file_and_other_commands_do_not_count(uv_install: ModuleType) -> None:
    listed = "\n".join(
        [
            ":env:.index-url='https://environment/?a=1&b'",
            ":env:.disable-pip-version-check='1'",
            "download.find-links='/elsewhere'",
            "global.extra-index-url='\\nhttps://one\\nhttps://two'",
            "global.index-url='https://user:secret@file'",
            "install.find-links='/wheels /more'",
            "wheel.index-url='https://wheel'",
        ]
    )
    assert uv_install.variables(listed) == {
        "UV_DEFAULT_INDEX": "https://environment/?a=1&b",
        "UV_INDEX": "https://one https://two",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


@pytest.mark.parametrize("setting", ["no-index='true'", "cert='/ca.pem'", "proxy='http://proxy'", "constraint='c.txt'"])
def test_what_uv_is_not_told_is_left_to_pip(setting: str, uv_install: ModuleType) -> None:
    assert uv_install.variables(f"global.{setting}") is None
