"""`backfill`: each window once, with a real server and a contract that rejects every window after validate."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.run_report import RunReport
from infra.processes.processes import CODE_ROOT, module_command
from infra.sources.resolve import Window
from infra.store import Store, layout, open_store
from tasks.schedules import Backfill, windows_between
from tests.support.commands import output_of
from tests.support.pool import until
from tests.support.tiny import answer, home_with_server, trainwright, write_project

SPAN = ["--from", "2026-01-01", "--to", "2026-01-03"]
WINDOWED = {"data": {"source": "rows-{{ start }}.csv", "window": {"path": "%Y-%m-%d"}}}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory, shared_folder: Path) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("backfill")
    path = write_project(folder / "tiny", WINDOWED)
    for day in ("2026-01-01", "2026-01-02"):
        (path.parent / f"rows-{day}.csv").write_text("id,a,b,c,label\n1,7,0,0,1\n")
    with home_with_server(folder / "home", shared_folder):
        yield path


def test_each_window_runs_once_and_is_not_run_again(spec: Path) -> None:
    done = trainwright("backfill", spec, *SPAN, "--parallel", "2", "--json")
    told = answer(done)["windows"]
    assert done.returncode == 3, done.stderr
    assert [(one["window"][:10], one["verdict"]) for one in told] == [
        ("2026-01-01", "rejected"), ("2026-01-02", "rejected"),
    ]  # fmt: skip
    store = open_store(str(spec.parent / ".trainwright"), create=False)
    assert sorted(store.list(layout.runs())) == sorted(one["run"] for one in told)

    shutil.rmtree(Path(store.uri) / "runs")  # as gc does after a while
    shutil.rmtree(Path(store.uri) / "triggers")
    again = trainwright("backfill", spec, *SPAN, "--json")
    assert again.returncode == 3, again.stderr
    assert [one["verdict"] for one in answer(again)["windows"]] == ["rejected before"] * 2
    assert [one["run"] for one in answer(again)["windows"]] == [one["run"] for one in told]
    assert store.list(layout.runs()) == []

    shifted = trainwright("backfill", spec, "--from", "2026-01-01T12:00", "--to", "2026-01-02T12:00")
    assert shifted.returncode == 2
    assert "overlaps 2026-01-01T00:00:00+00:00..2026-01-02T00:00:00+00:00, which an earlier" in shifted.stderr


def test_a_window_s_process_imports_nothing_from_the_current_folder(spec: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(spec.parent, tmp_path / "copy", ignore=shutil.ignore_patterns(".trainwright")))
    place = tmp_path / "place"
    place.mkdir()
    for name in ("argparse", "sitecustomize"):
        (place / f"{name}.py").write_text(f"import os\nos.mkdir({str(tmp_path / name)!r})\nraise SystemExit(77)\n")
    done = subprocess.run(
        module_command("flows.cli", "backfill", str(copy / "pipeline.yaml"), *SPAN[:3], "2026-01-02", "--json"),
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(CODE_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not any((tmp_path / name).exists() for name in ("argparse", "sitecustomize")), done.stderr
    assert [one["verdict"] for one in answer(done)["windows"]] == ["rejected"]


@pytest.mark.parametrize("with_children", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_a_backfill_that_is_killed_continues_with_each_window_once(spec: Path, with_children: bool) -> None:
    project = Path(shutil.copytree(spec.parent, spec.parent.with_name(f"killed-{with_children}")))
    shutil.rmtree(project / ".trainwright", ignore_errors=True)
    words = ["backfill", str(project / "pipeline.yaml"), *SPAN, "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *words],
        env={**os.environ, "PYTHONPATH": str(CODE_ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until(lambda: list(project.glob(".trainwright/runs/*/resolved.json")))
    if with_children:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    again = trainwright(*words)
    assert again.returncode == 3, again.stderr
    assert [one["verdict"].removesuffix(" before") for one in answer(again)["windows"]] == ["rejected"] * 2
    store = open_store(str(project / ".trainwright"), create=False)
    assert sorted(store.list(layout.runs())) == sorted(one["run"] for one in answer(again)["windows"])
    assert len(store.list("triggers")) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "2026-01-01"], "the following arguments are required: --to"),
        (["--from", "2025-12-31", "--to", "2999-01-01"], "lies in the future, so the data of the last window is not"),
        (["--from", "2026-01-03", "--to", "2026-01-01"], "its end is not after its start"),
        (["--from", "2026-01-01", "--to", "2026-01-01"], "its end is not after its start"),
        (["--from", "2026-01-01", "--to", "2999-01-01"], "--to: 2999-01-01 lies in the future"),
        (["--from", "soon", "--to", "2026-01-01"], "cannot be read"),
        ([*SPAN, "--every", "0d"], "--every: '0d' is not a length above 0"),
        ([*SPAN, "--every", "2026-01-01..2026-01-02"], "is not a length"),
        ([*SPAN, "--every", "7h"], "does not divide the time from 2026-01-01 to 2026-01-03: 6:00:00 would be left"),
        (["--from", "2000-01-01", "--to", "2026-01-01", "--every", "1m"], "more than 10,000"),
        ([*SPAN, "--parallel", "0"], "--parallel: 0 is not a number of runs"),
    ],
)
def test_bad_input_is_one_sentence(spec: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in output_of(capsys, "backfill", str(spec), *words, code=2)


def test_a_spec_without_a_window_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "data.window: the spec reads no window, so each run would read the same data." in output_of(
        capsys, "backfill", str(write_project(tmp_path / "tiny")), *SPAN, code=2
    )


@pytest.mark.parametrize(("verdict", "is_final"), [("canary", True), ("promoted", True), ("waiting", False)])
def test_a_final_verdict_is_kept(tmp_path: Path, verdict: Any, is_final: bool) -> None:
    [window] = windows_between("2026-01-01", "2026-01-02", "1d")
    backfill = Backfill(open_store(str(tmp_path / "store")), "tiny", [window])
    backfill.end(window, RunReport(run_id="r", pipeline="tiny", verdict=verdict, exit_code=0, sentence="", stages=[]))
    assert (backfill.ended(window) is not None) == is_final


def test_windows_are_half_open_and_the_last_ends_at_the_end() -> None:
    day = timedelta(days=1)
    first = datetime(2026, 1, 1, tzinfo=UTC)
    found = windows_between("2026-01-01", "2026-01-04", "1d")
    assert [(one.start, one.end) for one in found] == [(first + n * day, first + (n + 1) * day) for n in range(3)]
    with pytest.raises(UsageError, match="lies in the future"):
        windows_between("2026-01-01", "2026-01-04", "1d", datetime(2026, 1, 3, 23, tzinfo=UTC))


def test_the_same_times_in_another_zone_are_the_same_window(store: Store) -> None:
    (utc,) = windows_between("2026-01-01T00:00+00:00", "2026-01-02T00:00+00:00", "1d")
    (berlin,) = windows_between("2026-01-01T01:00+01:00", "2026-01-02T01:00+01:00", "1d")
    first, second = Backfill(store, "tiny", [utc]), Backfill(store, "tiny", [berlin])
    first.begin(utc)
    second.refuse_overlaps()
    assert first.key(utc) == second.key(berlin)
    other = Backfill(store, "tiny", windows_between("2026-01-01T12:00", "2026-01-02T12:00", "1d"))
    with pytest.raises(UsageError, match="overlaps"):
        other.refuse_overlaps()
    Backfill(store, "other", other.windows).refuse_overlaps()


def test_a_year_of_hours_beside_another_year_is_soon_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = Backfill(open_store(str(tmp_path / "store")), "tiny", windows_between("2025-01-01", "2025-01-02", "1h"))
    for window in earlier.windows:
        earlier.begin(window)
    looked: list[int] = []

    class Counted(list[Window]):
        def __iter__(self) -> Iterator[Window]:
            looked.append(1)
            return super().__iter__()

    Backfill(earlier.store, "tiny", Counted(windows_between("2025-01-02", "2025-01-03", "1h"))).refuse_overlaps()
    assert len(looked) < 3, "not once for each earlier window"
    with pytest.raises(UsageError, match="overlaps"):
        Backfill(earlier.store, "tiny", windows_between("2025-01-01T23:30", "2025-01-03T23:30", "1h")).refuse_overlaps()
