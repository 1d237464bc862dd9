"""A damaged record of a store is exit code 6, one sentence and no other answer, from each command that reads it."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import ApprovalPending, CorruptError
from data_contracts.messages.gang import Launch
from data_contracts.run_report import RunReport
from flows.cli import main
from flows.commands.guard import Answer, carry_out
from flows.stages import stages
from infra.gang.ledger import Ledger
from infra.store import Store, layout, open_store
from infra.store.lease import ConductorWatch, LeaseKeeper
from tasks.queries.plan import plan_resumed
from tasks.run.meter import metered
from tasks.run.report import latest_report, report
from tasks.run.resolve import RunOptions
from tasks.run.run import Run, open_run, reopen_run
from tasks.run.spec_check import read_spec
from tasks.stages.evaluate import evaluate
from tasks.stages.promote import promote
from tasks.stages.shard import shard
from tasks.stages.stage import EarlierHandoffs
from tasks.stages.train import train
from tasks.stages.validate import validate
from tasks.stages.verify import verify
from tests.support.damage import HARMS, bound_by_permissions, flipped, overwrite, restore
from tests.support.signed import SignedStore
from tests.support.tiny import complaints, write_project

pytestmark = pytest.mark.warm

MANIFEST = "manifest.json"
# The readers of each record; `checkpoints` reads only those stages of a run that say which training it used.
READERS = {
    r"store\.json": ["status"],
    r"aliases/tiny/champion": ["show", "prove", "status", "gc"],
    r"runs/[^/]+/resolved\.json": ["checkpoints", "resume", "open", "gc"],
    r"runs/[^/]+/report\.json": ["show run", "status", "gc"],
    r"runs/[^/]+/stages/(shard|train)\.json": ["checkpoints", "gc"],
    r"runs/[^/]+/stages/(validate|verify|evaluate)\.json": ["resume"],
    r"runs/[^/]+/(stages/promote|attempts/0)\.json": ["gc"],
    r"(runs|trainings)/[^/]+/lease": ["lease"],
    r"trainings/[^/]+/latest": ["checkpoints", "conduct", "gc"],
    r"trainings/[^/]+/result\.json": ["checkpoints", "verified", "gc"],
    r"trainings/[^/]+/g0/launch\.json": ["logs", "gc"],
    r"trainings/[^/]+/g0/(rollcall|beat-0|node-0/exit)\.json": ["logs"],
    r"trainings/[^/]+/g0/cancel": ["watch"],
    r"trainings/[^/]+/checkpoints/[^/]+\.verified": ["verified"],
    r"trainings/[^/]+/checkpoints/[^/]+\.quarantined": ["checkpoints"],
    r"triggers/[^/]+": ["open", "gc"],
    r"pipelines/[^/]+": ["open"],
}
# Records that are read only while a generation runs, or only by people.
NOT_ASKED = r"tombstones/.+|environments/.+|runs/[^/]+/environments/.+"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A promoted run with every kind of record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWRIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        spec = write_project(tmp_path_factory.mktemp("project") / "tiny")
        run = open_run(read_spec(spec), store_uri=str(tmp_path_factory.mktemp("store")), options=RunOptions(key="k"))
        dataset = shard(run, validate(run))
        checkpoint = verify(run, train(run, dataset))
        evaluation = evaluate(run, checkpoint, dataset)
        receipt = promote(run, checkpoint, dataset, evaluation)
        page = report(run, dataset=dataset, checkpoint=checkpoint, evaluation=evaluation, receipt=receipt)
    store = run.store
    keeper = LeaseKeeper(store, layout.lease(layout.run(run.run_id)), "test")
    keeper.start()
    assert keeper.token(60) == 0
    keeper.stop()
    store.create_json(layout.run_attempt(run.run_id, 0), page.to_json())
    store.create_json(layout.cancel(checkpoint.training, 0), {"schema_version": 1, "cause": "cancelled"})
    marked = layout.quarantined(layout.checkpoint(checkpoint.training, 1, 0))
    store.create_json(marked, {"schema_version": 1, "reason": "not finite"})
    store.create_json(layout.tombstone("datasets/gone-0"), {"by": "me", "why": "old"})
    return run


def records(root: Path) -> list[str]:
    """Every record of a store, by its path."""
    sealed = {path.parent for path in root.rglob(MANIFEST)}
    files = [path for path in root.rglob("*") if path.is_file() and not sealed.intersection(path.parents)]
    paths = [str(path.relative_to(root)) for path in files]
    return sorted(path for path in paths if path[0] != "." and not path.startswith("uses/") and path[-4:] != ".txt")


class Reading:
    """Reads a store as commands do; returns the exit code, the answer and the log lines."""

    def __init__(self, run: Run, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.run_id, self.root, self.capsys = run.run_id, root, capsys
        self.spec = run.resolved.spec_path
        self.training = next(iter(f"trainings/{path.name}" for path in (root / "trainings").iterdir()))
        where = ["--store", str(root)]
        self.commands: dict[str, Callable[[], int]] = {
            "status": lambda: main(["status", *where]),
            "gc": lambda: main(["gc", "--dry-run", *where]),
            "show": lambda: main(["show", "tiny@champion", *where]),
            "show run": lambda: main(["show", self.run_id, *where]),
            "prove": lambda: main(["prove", "tiny", *where]),
            "checkpoints": lambda: main(["checkpoints", self.run_id, *where]),
            "logs": lambda: main(["logs", self.run_id, *where]),
            "resume": lambda: self.answer(
                lambda: "\n".join(one.line for one in plan_resumed(reopen_run(self.run_id, str(root)), stages()))
            ),
            "open": lambda: self.answer(
                lambda: open_run(read_spec(self.spec), store_uri=str(root), options=RunOptions(key="k")).run_id
            ),
            "verified": lambda: self.answer(lambda: str(EarlierHandoffs(self.opened()).handoff(verify))),
            "lease": lambda: self.answer(self.take_leases),
            "conduct": lambda: self.answer(lambda: str(Ledger(self.store, self.training, 9).checkpoints)),
            "watch": lambda: self.answer(self.watch),
        }

    @property
    def store(self) -> Store:
        return open_store(str(self.root), create=False)

    def opened(self) -> Run:
        return open_run(read_spec(self.spec), store_uri=str(self.root), recorded=False)

    def take_leases(self) -> str:
        for path in (layout.lease(self.training), layout.lease(layout.run(self.run_id))):
            keeper = LeaseKeeper(self.store, path, "test")
            keeper.start()
            with contextlib.closing(argparse.Namespace(close=keeper.stop)):
                assert keeper.token(60) is not None
        return "taken"

    def watch(self) -> str:
        launch = self.store.read_as(layout.launch(self.training, 0), Launch.from_json)
        launch = launch.model_copy(update={"heartbeat_s": 0})
        try:
            ConductorWatch(self.store, launch).look()
        except CorruptError:
            raise
        except Exception as error:
            return str(error)
        return ""

    def answer(self, work: Callable[[], str]) -> int:
        return carry_out(
            lambda: lambda _: Answer(work(), {}), argparse.Namespace(command="x", json=False, no_color=True)
        )

    def __call__(self, reader: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = self.commands[reader]()
        said = self.capsys.readouterr()
        return code, re.sub(r"\S+ \w+ +old", "old", said.out), complaints(said.err)


@pytest.fixture
def reading(made: Run, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Reading:
    """Readers of a copy of the store."""
    shutil.copytree(made.store.uri, tmp_path / "store")
    return Reading(made, tmp_path / "store", capsys)


def damages(root: Path, path: str) -> Iterator[tuple[str, bytes]]:
    """What may stand in a record's place, by name."""
    data = (root / path).read_bytes()
    yield "bit", flipped(data, 8 * (len(data) // 2) + 1)
    yield "truncated", data[: len(data) // 2]
    yield "brackets", b"[" * 100_000
    yield "another's", (root / next(other for other in records(root) if other != path)).read_bytes()
    yield "schema 1", downgraded(data)


def downgraded(data: bytes) -> bytes:
    """The same, as an earlier Trainwright would have written it."""
    value = json.loads(data)
    del value["digest"], value["path"]
    number = "schema_version" if "schema_version" in value else "schema"
    return json.dumps({**value, number: 1}).encode()


def readers_of(path: str) -> list[str]:
    return next((readers for pattern, readers in READERS.items() if re.fullmatch(pattern, path)), [])


def test_every_record_has_its_readers(made: Run) -> None:
    found = records(Path(made.store.uri))
    assert [path for path in found if not readers_of(path) and not re.fullmatch(NOT_ASKED, path)] == []
    unused = [pattern for pattern in READERS if not any(re.fullmatch(pattern, path) for path in found)]
    assert unused == []


def test_damage_is_exit_code_6_in_one_sentence(reading: Reading) -> None:
    wrong: list[Any] = []
    for path in records(reading.root):
        whole, harm = (reading.root / path).read_bytes(), list(damages(reading.root, path))
        for reader in readers_of(path):
            for name, data in harm:
                if path == layout.STORE and name == "schema 1":
                    continue  # so a store looked that an earlier Trainwright made
                overwrite(reading.root / path, data)
                code, out, err = reading(reader)
                lines = [line for line in err.splitlines() if not line.startswith("ok ")]
                if code != 6 or out or len(lines) != 1 or path not in err:
                    wrong.append((path, reader, name, code, out[:200], err[-300:]))
        overwrite(reading.root / path, whole)
    assert wrong == []


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=[pytest.mark.sweep, pytest.mark.timeout(7200)])])
def test_no_flipped_bit_is_believed(reading: Reading, every: bool) -> None:
    store, believed, tried, unnamed = reading.store, list[Any](), 0, list[Any]()
    for path in records(reading.root):
        file = reading.root / path
        whole = file.read_bytes()
        pointer = isinstance(json.loads(whole).get("version"), int) and "value" in json.loads(whole)
        for bit in range(0, 8 * len(whole), 1 if every else max(1, 8 * len(whole) // 60)):
            tried += 1
            overwrite(file, flipped(whole, bit))
            try:
                believed.append((path, bit, store.pointer(path).read() if pointer else store.read_json(path)))
            except CorruptError as error:
                unnamed += [(path, bit)] if error.details != {"file": path} else []
        overwrite(file, whole)
    assert (believed, unnamed) == ([], [])
    print(f"{tried:,} flipped bits in {len(records(reading.root))} records, each found")


def test_whole_records_are_read_without_a_word(reading: Reading) -> None:
    for reader in reading.commands:
        code, out, err = reading(reader)
        assert (code, bool(out), "earlier Trainwright" in err) == (0, True, False), (reader, err)


def test_a_path_that_leads_out_of_the_store_is_refused_though_the_digest_is_right(reading: Reading) -> None:
    pointer = reading.store.pointer(layout.latest(reading.training))
    held = pointer.read()
    [checkpoint] = held.value["checkpoints"][-1:]
    pointer.swap(held, {**held.value, "checkpoints": [{**checkpoint, "ref": {**checkpoint["ref"], "uri": "../.."}}]})
    code, out, err = reading("checkpoints")
    assert (code, out, err.count("\n")) == (6, "", 1), err
    assert layout.latest(reading.training) in err


def test_a_store_of_an_earlier_version_is_read_with_one_warning(reading: Reading, tmp_path: Path) -> None:
    before = {reader: reading(reader) for reader in reading.commands if reader not in ("lease", "conduct")}
    alias = reading.root / "aliases/tiny/champion"
    for path in records(reading.root):
        if reading.root / path != alias:
            overwrite(reading.root / path, downgraded((reading.root / path).read_bytes()))
    warned = 0
    for reader, (code, out, _) in before.items():
        again = reading(reader)
        assert (again[0], ageless(again[1])) == (code, ageless(out)), (reader, again)
        warned += again[2].count("earlier Trainwright")
    assert warned == 1
    overwrite(alias, downgraded(alias.read_bytes()))
    # "open" is not among them: a run that its key names has its inputs, and no alias is read for it.
    for reader in ("show", "prove", "status"):
        code, out, err = reading(reader)
        assert (code, out) == (6, ""), reader
        assert "aliases/tiny/champion has schema 1, although the receipt that it names" in err
    with contextlib.redirect_stderr(io.StringIO()):
        assert reading("conduct")[0] == 0
    moved = json.loads((reading.root / layout.latest(reading.training)).read_bytes())
    assert (moved["schema"], "digest" in moved) == (2, True), "its next move"


# How long ago a checkpoint was made, in a table for people, and the minute in which an estimate was made.
AGE = re.compile(r"  +[0-9.]+ (s|min|h)\b|[ T]\d\d:\d\d\b")


def ageless(table: str) -> str:
    """A table without ages, whose column has another width after a minute, and without times of day."""
    return re.sub(" +", " ", AGE.sub("", table))


# What reads a store for a person; `=` stands for `--store STORE`. Those in PARTIAL show what is left, and say what they
# lack. SLOW start children, which take seconds where the file is not needed.
COMMANDS = {
    "status": "status =",
    "day": "status --html OUT =",
    "show": "show tiny@champion =",
    "show run": "show RUN =",
    "history": "history tiny =",
    "report": "report RUN =",
    "diff": "diff RUN RUN =",
    "diff version": "diff tiny@1 RUN =",
    "prove": "prove tiny =",
    "affected": "affected torch =",
    "checkpoints": "checkpoints RUN =",
    "logs": "logs RUN =",
    "cost": "cost =",
    "cost month": f"cost --month {time.strftime('%Y-%m', time.gmtime())} =",
    "slo": "slo STORE",
    "budget": "budget =",
    "policy": "policy =",
    "nodes": "nodes =",
    "gc": "gc --dry-run =",
    "docs": "contract docs RUN --out OUT =",
    "plan": "plan SPEC =",  # the last: it may pack the code again
}
SLOW = {
    "predict": "predict tiny ROWS OUT.csv =",
    "export": "export tiny OUT --to safetensors =",
    "reproduce": "reproduce tiny --here --into OUT =",
}
# What moves, decides or deletes something, in a store without a training and in one whose run waits for an approval.
MOVES = {
    "rollback": "rollback tiny --reason tested =",
    "release": "release tiny --reason tested =",
    "protect": "protect tiny --reason tested =",
    "collect": "gc --keep-days 0 --grace-hours 0 =",
}
DECISIONS = {
    "promote": "promote SPEC =",
    "approve": "approve WAITING --yes --reason tested =",
    "refuse": "refuse WAITING --yes --reason tested =",
    "hold": "affected torch --hold --reason tested =",
    "budget apply": "budget apply BUDGETS =",
}
ALL = {**COMMANDS, **SLOW, **MOVES, **DECISIONS}
PARTIAL = ("day", "report")
# Of each kind of file, a reader that cannot do without it.
NEEDED = {
    "contracts/K/handoff.json": ["docs", "report", "diff", "prove"],
    "datasets/K/handoff.json": ["report", "diff", "prove"],
    "datasets/K/manifest.json": ["report", "diff", "prove", "checkpoints", "logs"],
    "datasets/K/test-00000.parquet": ["report", "prove"],
    "evaluations/K/handoff.json": ["report", "diff", "prove"],
    "evaluations/K/manifest.json": ["report", "diff", "prove"],
    "runs/K/report.json": ["report", "diff", "show run", "status"],
    "trainings/K/result.json": ["report", "diff", "checkpoints", "gc"],
    "aliases/tiny/champion": ["show", "status", "prove", "day", "predict", "export", "reproduce"],
    "models/tiny/1/manifest.json": ["show", "predict", "export", "reproduce"],
    "trainings/K/checkpoints/45-g0/weights-0.safetensors": ["prove", "export", "reproduce"],
    "recipes/K/recipe.json": ["reproduce"],
    "editions/budgets/0.json": ["budget"],
    "editions/policy/0.json": ["policy"],
    "nodes/n1/standing/0.json": ["nodes"],
}
# What these leave out of their answer, which then names the file.
LEFT_OUT = {
    "runs/K/usage/K/ended.json": ["slo", "cost", "cost month", "day"],
    "runs/K/resolved.json": ["day"],
    "environments/K/packages.json": ["affected"],
    "models/tiny/1/manifest.json": ["affected"],
}
# Text without a digest, which is shown as it is; and gc counts files, of which an empty folder has none.
AS_IT_IS = [("logs", "trainings/K/g0/node-0/log-rank-0.txt"), ("gc", "triggers/k")]


@pytest.fixture(scope="module")
def stocked(made: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the store that also has what a run used, budgets, a policy and a node's record."""
    folder = tmp_path_factory.mktemp("stocked")
    root = Path(shutil.copytree(made.store.uri, folder / "store"))
    run = reopen_run(made.run_id, str(root))
    metered(_line)(run)
    (folder / "budgets.yaml").write_text(
        "version: 1\nbudgets:\n  all:\n    per: month\n    limit: {amount: 10, currency: USD}\n"
    )
    (folder / "policy.yaml").write_text("version: 1\ntags:\n  team: any\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWRIGHT_HOME", str(folder / "home"))
        for words in (
            ["budget", "apply", str(folder / "budgets.yaml")],
            ["policy", "apply", str(folder / "policy.yaml")],
            ["drain", "n1", "--reason", "tested"],
        ):
            assert main([*words, "--store", str(root)]) == 0
    return root


def _line(run: Run) -> RunReport:
    """The stages again, each of which finds what it made."""
    dataset = shard(run, validate(run))
    checkpoint = verify(run, train(run, dataset))
    evaluate(run, checkpoint, dataset)
    found = latest_report(run.store, run.run_id)
    assert found is not None
    return found


Capture = pytest.CaptureFixture[str]


class Asking:
    """Asks commands about a copy of a store."""

    def __init__(
        self, commands: Iterable[str], words: dict[str, str], stocked: Path, folder: Path, capfd: Capture
    ) -> None:
        self.root, self.stocked, self.out, self.capfd = folder / "store", stocked, folder / "out", capfd
        self.words = {"OUT": str(self.out), "OUT.csv": f"{self.out}.csv", "STORE": str(self.root), **words}
        self.other = next(reversed(self.kinds().values()))[0]
        self.renew()
        self.whole = {name: self.asked(name) for name in commands}

    def asked(self, name: str) -> tuple[int, str, str]:
        """The command's answer about the whole store."""
        return self(name)

    def renew(self) -> None:
        """Begin with a new copy of the store."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.stocked, self.root)

    def __call__(self, name: str) -> tuple[int, str, str]:
        for path in self.out.parent.glob("out*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        words = ALL[name].replace("=", f"--store {self.root}").split()
        self.capfd.readouterr()
        code = main([self.words.get(word, word) for word in words])
        answer = self.capfd.readouterr()
        return code, ageless(answer.out), complaints(answer.err)

    def kinds(self) -> dict[str, list[str]]:
        """The store's files by kind, without those that say by their names alone all that they say."""
        files: dict[str, list[str]] = {}
        for path in sorted(self.stocked.rglob("*")):
            name = str(path.relative_to(self.stocked))
            if path.is_file() and name[0] != "." and not name.startswith("uses/"):
                files.setdefault(kind_of(name), []).append(name)
        return files

    def wrong(self, names: list[str], harm: str, command: str) -> tuple[bool, list[Any]]:
        """Whether the command answers as it does about the whole store, and what is wrong with its answer."""
        name, other = names[0], names[-1] if len(names) > 1 else self.other
        HARMS[harm](self.root / name, self.stocked / (name if harm == "link" else other))
        with bound_by_permissions() if harm == "closed" else contextlib.nullcontext():
            code, out, err = self(command)
        restore(self.root / name, self.stocked / name)
        same = (code, out) == self.whole.get(command, ("", ""))[:2]
        # A manifest that is whole, but another's, is found by the files beside it.
        named = (str(Path(name).parent) if harm == "another" else name) in err + out
        refused = 2 if harm == "closed" or "It is passed over." in err else 6
        fine = named and code in (0, 6, refused) and (code == 0 or not out or command in PARTIAL)
        # Nothing tells what is missing unless something names it.
        fine = fine or (command, kind_of(name)) in AS_IT_IS or (harm == "gone" and code in (0, 2, 6))
        bug = "Traceback" in err or "Internal error" in err
        return same, [] if (fine or same) and not bug else [name, harm, command, code, out[-200:], err[-300:]]


@pytest.fixture
def asking(made: Run, stocked: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> Asking:
    """Commands about a copy of the store."""
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    return Asking(COMMANDS, words_of(made), stocked, tmp_path, capfd)


def words_of(run: Run) -> dict[str, str]:
    """What stands in the commands for a run."""
    rows = Path(run.resolved.spec_path).parent / "rows.csv"
    return {"RUN": run.run_id, "SPEC": run.resolved.spec_path, "ROWS": str(rows)}


class Acting(Asking):
    """Lets commands change copies of a store: each makes all of its changes, or none."""

    def __init__(self, commands: Iterable[str], words: dict[str, str], stocked: Path, folder: Path, capfd: Capture):
        self.changes: dict[str, set[str]] = {}
        super().__init__(commands, words, stocked, folder, capfd)

    def asked(self, name: str) -> tuple[int, str, str]:
        self.renew()
        answer = self(name)
        self.changes[name] = self.changed()
        assert answer[0] == 0, answer
        return answer

    def changed(self) -> set[str]:
        """The kinds of files that were added, removed or written."""
        now, before = (
            {(str(path.relative_to(root)), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}
            for root in (self.root, self.stocked)
        )
        return {kind_of(name) for name, _ in now ^ before if name[0] != "." and not name.startswith("uses/")}

    def wrong(self, names: list[str], harm: str, command: str) -> tuple[bool, list[Any]]:
        self.renew()
        same, wrong = super().wrong(names, harm, command)
        more = self.changed() - self.changes[command]
        if (harm, command) == ("gone", "promote"):  # one that was moved once is one that never was
            more = set()
        return same, wrong or ([names[0], harm, command, more] if more else [])


@pytest.fixture
def moving(home: Path, tmp_path: Path, capfd: Capture) -> Acting:
    """Commands on a model of three versions, of which one was rolled back."""
    signed = SignedStore(tmp_path / "signed", None)
    for move in (lambda: signed.promote(1), lambda: signed.promote(2), signed.back, lambda: signed.promote(3)):
        move()
    return Acting(MOVES, {}, signed.root, tmp_path, capfd)


@pytest.fixture
def deciding(made: Run, stocked: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> Acting:
    """Commands on a store whose newest run waits for an approval."""
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    root = Path(shutil.copytree(stocked, tmp_path / "waiting"))
    gates = [{"metric": "accuracy", "min": 0.8}]
    spec = write_project(tmp_path / "tiny", {"promote": {"alias": "staging", "approval": "manual", "gates": gates}})
    waiting = open_run(read_spec(spec), store_uri=str(root))
    dataset = shard(waiting, validate(waiting))
    checkpoint = verify(waiting, train(waiting, dataset))
    evaluation = evaluate(waiting, checkpoint, dataset)
    with pytest.raises(ApprovalPending):
        promote(waiting, checkpoint, dataset, evaluation)
    budgets = tmp_path / "budgets.yaml"
    budgets.write_text("version: 1\nbudgets:\n  all:\n    per: month\n    limit: {amount: 20, currency: USD}\n")
    words = {**words_of(made), "WAITING": waiting.run_id, "BUDGETS": str(budgets)}
    return Acting(DECISIONS, words, root, tmp_path, capfd)


def kind_of(path: str) -> str:
    """A path without what differs from run to run."""
    return re.sub(r"[0-9a-f]{40}(-\d+)?|\d{8}-[^/]+|rollback-\w+|\d{10}-\w+", "K", re.sub(r"beat-\d+", "beat-N", path))


def test_a_damaged_file_that_a_command_needs_is_named(asking: Asking) -> None:
    kinds, wrong = asking.kinds(), []
    for kind, commands in [*NEEDED.items(), *LEFT_OUT.items()]:
        for command in commands:
            for harm in ("bit", "folder"):
                same, found = asking.wrong(kinds[kind], harm, command)
                wrong += [[kind, harm, command, "as if it were whole"]] if same and command not in PARTIAL else [found]
    assert [one for one in wrong if one] == []


@pytest.mark.parametrize("harm", ["bit", "folder"])
def test_nothing_is_moved_or_deleted_beside_damage(moving: Acting, harm: str) -> None:
    cases = [
        ("aliases/tiny/champion", ["rollback", "release", "collect"]),
        ("aliases/tiny/history/champion/3/manifest.json", ["rollback", "release", "collect"]),
        ("models/tiny/1/manifest.json", ["rollback", "collect"]),
        ("trainings/t1-0/checkpoints/5-g0/weights-0.safetensors", ["rollback"]),
        ("datasets/d-0/manifest.json", ["collect"]),
    ]
    found = [moving.wrong([name], harm, command) for name, commands in cases for command in commands]
    assert found == [(False, [])] * len(found)


@pytest.mark.sweep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("world", ["moving", "deciding"])
def test_beside_damage_a_command_makes_all_its_changes_or_none(world: str, request: pytest.FixtureRequest) -> None:
    acting: Acting = request.getfixturevalue(world)
    sweep(acting, acting.changes)


@pytest.mark.sweep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("commands", [COMMANDS, SLOW], ids=["quick", "slow"])
def test_a_damaged_file_is_named_or_not_needed(asking: Asking, commands: dict[str, str]) -> None:
    """Each command answers as if the file were whole, or names the file; it never hangs, crashes or invents.

    A command that answers the same about a file that it may not read, and about a folder there, does not need it.
    """
    asking.whole |= {name: asking(name) for name in commands}
    sweep(asking, commands)


def sweep(asking: Asking, commands: Collection[str]) -> None:
    """Try every harm to every kind of file."""
    wrong, tried = [], 0
    for names, command in itertools.product(asking.kinds().values(), commands):
        if command == next(iter(commands)):
            asking.renew()
        unneeded = 0
        for harm in HARMS:
            if unneeded < 2:
                same, found = asking.wrong(names, harm, command)
                unneeded += same and harm in ("closed", "folder")
                wrong += [found] if found else []
                tried += 1
    with asking.capfd.disabled():
        print(f"{tried:,} cases: {len(asking.kinds())} kinds of files, {len(commands)} commands; {len(wrong)} wrong")
    assert wrong == []
