"""What users, stores and schedulers see is as the files in tests/golden/frozen say.

Moving code changes none of them. If one is to change, say so in a line of CHANGELOG.md, and write the files anew with
`python -m tests.support.frozen`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import frozen

pytestmark = pytest.mark.warm

ADVICE = (
    "Users, stores or schedulers rely on this. Undo the change; or, if it is meant, write a line about it in "
    "CHANGELOG.md, and the files anew with `python -m tests.support.frozen`."
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("frozen")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**frozen.ENVIRONMENT, "TRAINWRIGHT_HOME": str(folder / "home")}.items():
            patch.setenv(name, value)
        yield frozen.workspace(folder)


def changes(name: str, now: str) -> str:
    """The lines of a file that differ, with + for what is now; "" if none does."""
    path = frozen.FROZEN / name
    before = path.read_text() if path.exists() else ""
    return "\n".join(
        difflib.unified_diff(before.splitlines(), now.splitlines(), f"frozen/{name}", "now", "", "", 1, "")
    )


@pytest.mark.parametrize("kind", frozen.KINDS, ids=lambda kind: kind.__name__)
def test_nothing_that_others_rely_on_has_changed(kind: Callable[[Path], dict[str, str]], work: Path) -> None:
    now = kind(work)
    folders = {Path(name).parent for name in now} - {Path()}
    gone = {str(path.relative_to(frozen.FROZEN)) for folder in folders for path in (frozen.FROZEN / folder).iterdir()}
    found = [changes(name, now.get(name, "")) for name in sorted(now.keys() | gone)]
    assert not any(found), "\n".join([ADVICE, *filter(None, found)])
