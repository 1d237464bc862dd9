"""uv installs from the indexes that pip would use, or leaves it to pip."""

from __future__ import annotations

import pytest

from infra.environments.uv_install import variables


def test_the_environment_counts_more_than_a_file_and_other_commands_do_not_count() -> None:
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
    assert variables(listed) == {
        "UV_DEFAULT_INDEX": "https://environment/?a=1&b",
        "UV_INDEX": "https://one https://two",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


@pytest.mark.parametrize("setting", ["no-index='true'", "cert='/ca.pem'", "proxy='http://proxy'", "constraint='c.txt'"])
def test_what_uv_is_not_told_is_left_to_pip(setting: str) -> None:
    assert variables(f"global.{setting}") is None
