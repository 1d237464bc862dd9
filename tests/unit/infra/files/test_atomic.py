"""Files that are replaced whole, with the permissions that were asked for."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from infra.files import replace_json, replace_private, replace_text
from tests.support.files import umask


def test_a_reader_that_has_opened_the_old_file_reads_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    replace_json(path, {"step": 1})
    with path.open() as old:
        replace_json(path, {"step": 2})
        assert json.load(old) == {"step": 1}
    assert json.loads(path.read_text()) == {"step": 2}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("write", "mode"), [(replace_text, 0o640), (replace_private, 0o600)])
def test_permissions_follow_the_umask_unless_it_is_private(write: object, mode: int, tmp_path: Path) -> None:
    with umask(0o026):
        write(tmp_path / "x", "text")  # type: ignore[operator]
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode
