"""The shipped examples: every spec and Lightning config is read as a run would, and their data is what they say."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.lightning_config import check_lightning, inline_lightning
from data_contracts.load import load_spec

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def _module(path: Path) -> ModuleType:
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(path.read_text(), path, "exec"), module.__dict__)
    return module


def _arguments(path: Path) -> list[str]:
    words = shlex.split(path.read_text())
    assert set(words[::2]) == {"--set"}
    return words[1::2]


@pytest.mark.parametrize(
    ("example", "overrides"),
    [
        ("digits", []),
        ("digits", ["train.lightning=worse.yaml"]),
        ("digits", ["data.source=data/digits_faulty.parquet"]),
        ("stdlib_gpt", []),
        ("stdlib_gpt", _arguments(EXAMPLES / "stdlib_gpt" / "short.args")),
    ],
)
def test_shipped_specs_parse_without_a_warning(example: str, overrides: list[str]) -> None:
    spec = load_spec(EXAMPLES / example / "pipeline.yaml", overrides)
    config = inline_lightning(spec, EXAMPLES / example)
    assert check_lightning(config, spec) == []
    assert config["model"]["class_path"].split(".")[0] in {"model", "gpt"}


def test_every_example_is_a_project_of_its_own() -> None:
    specs = sorted(EXAMPLES.glob("*/pipeline.yaml"))
    assert len(specs) >= 2
    assert [spec for spec in specs if not (spec.parent / "pyproject.toml").is_file()] == []


@pytest.mark.parametrize("example", ["digits", "stdlib_gpt"])
def test_preparing_twice_changes_nothing(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = _module(EXAMPLES / example / "prepare.py")
    monkeypatch.setattr(prepare, "DATA", tmp_path / "data")
    prepare.main()
    first = {path.name: path.read_bytes() for path in prepare.DATA.iterdir()}
    (prepare.DATA / "leftover.txt").write_text("of an older interpreter")
    prepare.main()
    left = {} if example == "stdlib_gpt" else {"leftover.txt": b"of an older interpreter"}
    assert {path.name: path.read_bytes() for path in prepare.DATA.iterdir()} == first | left


def test_faults_are_planted_where_they_are_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = _module(EXAMPLES / "digits" / "prepare.py")
    monkeypatch.setattr(prepare, "DATA", tmp_path)
    prepare.main()
    true, faulty = (pq.read_table(tmp_path / name) for name in ("digits.parquet", "digits_faulty.parquet"))
    assert true.schema == faulty.schema
    assert (true.num_rows, true.num_columns) == (1797, 66)
    differing = {
        name: {row: new for row, (old, new) in enumerate(zip(*columns, strict=True)) if old != new}
        for name in true.column_names
        if (columns := [table[name].to_pylist() for table in (true, faulty)]) and columns[0] != columns[1]
    }
    assert differing == prepare.FAULTS


def test_library_text_is_large_and_has_no_installed_packages(tmp_path: Path) -> None:
    prepare = _module(EXAMPLES / "stdlib_gpt" / "prepare.py")
    library = tmp_path / "lib"
    for name, text in {
        "a.py": "x" * 6_000_000,
        "b/c.py": "y" * 3_000_000,
        "b/empty.py": "",
        "test/t.py": "z" * 2_000_000,
        "site-packages/p.py": "p" * 9_000_000,
    }.items():
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text(text)
    assert list(prepare.library_text(library)) == ["a", "b.c", "test.t"]
    (library / "b" / "d.py").write_text("d" * 1_000_000)
    assert list(prepare.library_text(library)) == ["a", "b.c", "b.d"]


@pytest.mark.parametrize(
    ("sizes", "starts"),
    [
        ([0], [[]]),
        ([4], [[]]),
        ([5], [[0]]),
        ([6], [[0, 1]]),
        ([9], [[0, 4]]),
        ([10, 3, 5], [[0, 4, 5], [], [0]]),
    ],
)
def test_windows_are_full_and_cover_each_file(sizes: list[int], starts: list[list[int]]) -> None:
    texts = [bytes(range(size)) for size in sizes]
    transform = _module(EXAMPLES / "stdlib_gpt" / "transform.py")
    windows = transform.to_windows(pa.record_batch({"bytes": pa.array(texts, pa.binary())}), length=5)
    expected = [list(text[at : at + 5]) for text, of_text in zip(texts, starts, strict=True) for at in of_text]
    assert windows.schema == pa.schema({"tokens": pa.list_(pa.uint8())})
    assert windows["tokens"].to_pylist() == expected
