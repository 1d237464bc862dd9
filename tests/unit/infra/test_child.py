"""A child answers through its file; whatever happens on either side, no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from data_contracts.errors import (
    Cancelled,
    CorruptError,
    Hung,
    NodeLost,
    OutOfMemory,
    TrainwrightError,
    UsageError,
    UserCodeError,
)
from infra import child, stopping
from infra.child import answer_of, run_child
from infra.processes.child_main import ChildFiles
from infra.processes.environment import IdleLimit
from infra.processes.processes import find_marked, kill_marked, marked_env, new_mark
from tests.support.child_module import CHILD, Ask, Hanging, Step
from tests.support.pool import until

MODULE = CHILD.module


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A mark that everything started by this test carries."""
    mark = new_mark()
    monkeypatch.setenv("TRAINWRIGHT_MARK", mark)
    return mark


def test_it_answers_reports_and_runs_in_the_project(tmp_path: Path, mark: str) -> None:
    (tmp_path / "infra.py").write_text("raise SystemExit('the wrong infra')")
    records: list[Step] = []
    # The child goes on once its first record was heard: they arrive as they come, and each once.
    request = Ask(report=[1, 2], text="für", heard=str(tmp_path / "heard"))

    def hear(record: Step) -> None:
        records.append(record)
        (tmp_path / "heard").touch()

    answer = run_child(CHILD, request, project=tmp_path, on_report={Step: hear})
    assert Ask.from_json(answer.got) == request
    assert answer.cwd == answer.project == str(tmp_path)
    assert answer.path0 != str(tmp_path), "the user's folder comes first only once our modules are loaded"
    assert [record.step for record in records] == request.report
    assert run_child(CHILD, Ask(stray=str(tmp_path / "stray"))).project == ""
    assert find_marked(mark) == [], "nor is a descendant left"


CASES = [
    ({"do": "raise", "error": "UserCodeError"}, UserCodeError, "as asked."),
    ({"do": "raise", "error": "CorruptError"}, CorruptError, "as asked."),
    ({"do": "raise", "error": "Cancelled"}, Cancelled, "as asked."),
    ({"do": "memory"}, OutOfMemory, f"{MODULE} ran out of memory."),
    ({"do": "bug"}, TrainwrightError, f"{MODULE} failed: ZeroDivisionError: a bug of ours."),
    ({"do": "exit", "exit_code": 3}, TrainwrightError, f"{MODULE} ended with exit code 3 and no answer."),
    ({"do": "exit", "exit_code": 0}, TrainwrightError, f"{MODULE} ended with exit code 0 and no answer."),
    ({"do": "signal", "signal": "SIGKILL"}, NodeLost, f"{MODULE} was ended by SIGKILL."),
    ({"do": "signal", "signal": "SIGSEGV"}, NodeLost, f"{MODULE} was ended by SIGSEGV."),
    ({"do": "hang"}, Hung, f"{MODULE} had not ended after 0.5 s and was killed."),
]


@pytest.mark.warm
@pytest.mark.parametrize(("request_", "kind", "message"), CASES)
@pytest.mark.parametrize("stray", [False, True])
def test_a_failure_is_raised_as_its_class_and_nothing_is_left(
    request_: dict, kind: type[TrainwrightError], message: str, stray: bool, tmp_path: Path, mark: str
) -> None:
    if stray:
        request_ = {**request_, "stray": str(tmp_path / "stray")}
    with pytest.raises(TrainwrightError) as caught:
        run_child(CHILD, Ask(**request_), limit=0.5 if kind is Hung else None)
    assert type(caught.value) is kind
    assert caught.value.message == message
    assert find_marked(mark) == []
    if request_["do"] == "raise":
        assert caught.value.user_traceback == "Traceback: here"
    if request_["do"] == "bug":
        assert "what was printed before the bug" in caught.value.details["log"]
        assert "ZeroDivisionError" in caught.value.details["log"]


def test_a_child_that_cannot_be_killed_is_hung(tmp_path: Path) -> None:
    files = ChildFiles(tmp_path)
    with pytest.raises(Hung, match=r"^m does not end after SIGKILL; its machine may need a restart\."):
        child._answer(None, "m", files, memory_ran_out=False)
    files.answer.write_text('{"value": {"x": 1}}')
    assert child._answer(None, "m", files, memory_ran_out=False) == {"x": 1}, "it had answered"


def test_a_kill_for_memory_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([4, 5])
    monkeypatch.setattr(child, "oom_kills", lambda: next(counts))
    with pytest.raises(OutOfMemory, match="the machine ran out of memory"):
        run_child(CHILD, Ask(do="signal", signal="SIGKILL"))


@pytest.mark.warm
@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        ({"do": "memory"}, OutOfMemory, f"Reading f.csv ended at row 7: {MODULE} ran out of memory."),
        (
            {"do": "signal", "signal": "SIGSEGV"},
            UsageError,
            f"Reading f.csv ended at row 7: {MODULE} was ended by SIGSEGV.",
        ),
        ({"do": "signal", "signal": "SIGKILL"}, NodeLost, f"{MODULE} was ended by SIGKILL."),
    ],
)
def test_a_file_that_ends_its_reader_is_named(
    request_: dict, kind: type[TrainwrightError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TrainwrightError) as caught:
        run_child(CHILD, Ask(**request_, reading="f.csv"), memory_share=0.8)
    assert (type(caught.value), caught.value.message) == (kind, message)
    assert (kind is OutOfMemory) == ("data.memory_share" in caught.value.remedy)


def test_what_descendants_take_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "machine_bytes", lambda: 2**30)
    with pytest.raises(OutOfMemory, match=r"^It took more than 0\.4 GiB of memory, 40% of this machine's\."):
        run_child(CHILD, Ask(do="hang", stray=str(tmp_path / "stray"), stray_bytes=2**29), memory_share=0.4)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_an_exception_in_the_parent_kills_the_tree(kind: type[BaseException], tmp_path: Path, mark: str) -> None:
    def stop(record: Hanging) -> None:
        raise kind

    with pytest.raises(kind):
        run_child(CHILD, Ask(do="hang", stray=str(tmp_path / "stray")), on_report={Hanging: stop})
    assert find_marked(mark) == []


PARENT = """import sys
from infra.child import answer_of, run_child
from tests.support.child_module import CHILD, Ask, Hanging
from tests.support.processes import foreground
foreground()
request = Ask(do="hang", stray=sys.argv[1])
run_child(CHILD, request, on_report={Hanging: lambda record: print("up", flush=True)})
"""


SIGNALS = [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, True), (signal.SIGKILL, False)]
MORE = [(number, not to_group) for number, to_group in SIGNALS]


@pytest.mark.parametrize(
    ("number", "to_group"), [*SIGNALS, *(pytest.param(*one, marks=pytest.mark.sweep) for one in MORE)]
)
def test_a_signal_to_the_parent_leaves_no_process(number: int, to_group: bool, tmp_path: Path) -> None:
    mark = new_mark()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "stray")],
        env=marked_env(mark),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert parent.stdout.readline() == "up\n"
        assert len(find_marked(mark)) == 3
        (os.killpg if to_group else os.kill)(parent.pid, number)
        parent.wait()
        parent.stdout.close()
        if number == signal.SIGKILL:
            # It is the child that notices and ends itself.
            until(lambda: find_marked(mark) == [])
        assert find_marked(mark) == []
    finally:
        kill_marked(mark)


def test_a_signal_whose_exception_was_lost_ends_the_wait(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hear(record: Step) -> None:
        stopping.received.append(signal.SIGINT)

    monkeypatch.setattr(stopping, "received", [])
    with pytest.raises(KeyboardInterrupt):
        run_child(CHILD, Ask(report=[1], heard=str(tmp_path / "never")), on_report={Step: hear})
    assert find_marked(mark) == []


def test_an_answer_that_does_not_fit_is_damage_and_its_values_are_not_said() -> None:
    with pytest.raises(CorruptError, match=r"^The answer of \S+ does not fit Told: cwd\.") as caught:
        answer_of(CHILD, {"cwd": ["a value"]})
    assert "a value" not in caught.value.message


def test_a_child_without_progress_is_hung_and_leaves_its_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "STACKS_S", 60.0)
    with pytest.raises(Hung, match=rf"{MODULE} has made no progress for \d+ s and was killed") as caught:
        run_child(CHILD, Ask(do="hang", advance=[0.0]), limit=IdleLimit(hang_s=1.0, stall_s=200))
    assert "child_module.py" in caught.value.details["log"]
