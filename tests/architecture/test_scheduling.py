"""The order in which workers take test files: see `tests/support/scheduling.py`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.support.scheduling import LONGEST, next_file


def test_every_file_is_taken_once_and_integration_tests_in_one_stretch() -> None:
    unit = [f"tests/unit/test_{number}.py" for number in range(9)]
    integration = ["tests/integration/test_a.py", *LONGEST, "tests/integration/test_z.py"]
    files = ["tests/architecture/test_a.py", *integration, *unit]
    taken: dict[bool, list[str]] = {True: [], False: []}
    # The workers that begin with the unit tests take three files in the time of one.
    for turn in range(len(files)):
        waits = turn % 4 == 0
        taken[waits].append(next_file(files, waits=waits))
        files.remove(taken[waits][-1])
    assert files == []
    assert taken[True][:2] == list(LONGEST[:2])
    assert taken[False][0] == unit[-1]
    for part in taken.values():
        kinds = [file.startswith("tests/integration/") for file in part]
        assert sum(one != other for one, other in pairwise(kinds)) <= 1


def test_without_integration_tests_the_rest_is_shared() -> None:
    assert next_file(["tests/unit/a.py", "tests/unit/b.py"], waits=True) == "tests/unit/a.py"
    assert next_file(["tests/unit/a.py", "tests/unit/b.py"], waits=False) == "tests/unit/b.py"


def test_the_longest_files_exist() -> None:
    assert [file for file in LONGEST if not (Path(__file__).parents[2] / file).is_file()] == []
