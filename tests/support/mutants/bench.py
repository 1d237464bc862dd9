"""One target's mutants: which are drawn, which tests see them, what became of each."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support import s3
from tests.support.mutants import reach
from tests.support.mutants.imports import dependents
from tests.support.mutants.kinds import Mutant, mutants_of
from tests.support.mutants.targets import TARGETS

SEED = 20261123
OPEN = {"survived", "unreached", "broken"}
# Files of tests that are recorded at once; what was recorded is kept.
BATCH = 8
# A test that took longer comes after those that did not.
SLOW_S = 1.0


def keep_to_oneself(folder: Path) -> None:
    """Make a folder whose name others can guess; SystemExit if somebody else may decide what runs there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise SystemExit(f"{folder} belongs to somebody else, or others may write to it: remove it.")


class Bench:
    """What is kept of a target: records and results in `state`; a scratch copy of the tree beside it."""

    def __init__(
        self, root: Path, state: Path, name: str, number: int, *, alone: bool = False, unserved: bool = False
    ) -> None:
        self.root, self.state, self.name, self.target = root, state, name, TARGETS[name]
        self.patterns = (*self.target.tests, *(() if alone else self.target.processes))
        self.unserved = bool(self.target.late) and unserved
        mark = hashlib.sha256(str(root).encode()).hexdigest()[:8]
        # In memory where that can be had: the store waits for the disk after each file.
        place = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
        self.scratch = place / f"mutants-{mark}"
        self.tree = self.scratch / "tree"
        files = sorted(str(path.relative_to(root)) for path in root.glob(self.target.sources))
        tree = ast.parse((root / "data_contracts/errors.py").read_text())
        errors = frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        every = [mutant for file in files for mutant in mutants_of(file, root, errors)]
        # By the id's digest: a mutant that comes or goes leaves the draw of the others as it was.
        every.sort(key=lambda mutant: hashlib.sha256(f"{SEED} {mutant.id}".encode()).digest())
        self.files, self.population, self.mutants = files, len(every), every[:number]
        self.equivalent: dict[str, str] = tomllib.loads((Path(__file__).parent / "survivors.toml").read_text())

    def results(self) -> dict[str, dict[str, Any]]:
        """The last result of each mutant whose text is still the same."""
        path = self.state / "results.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = {one["id"]: one for one in map(json.loads, lines)}
        now = {mutant.id: mutant.digest for mutant in self.mutants}
        return {name: one for name, one in found.items() if now.get(name) == one["digest"]}

    def try_all(self, limit_s: float, budget_s: float, *, again: bool) -> None:
        """Try the mutants without a result; `again`: those that survived, too.

        Args:
            limit_s: seconds for each mutant.
            budget_s: seconds that its tests took when they were recorded; those beyond are left out.
        """
        known = self.results()
        passed_over = {name for name, one in known.items() if not (again and one["status"] in OPEN)}
        left = [mutant for mutant in self.mutants if mutant.id not in passed_over and mutant.id not in self.equivalent]
        if not left:
            return
        # Those of compiled functions last: each is compiled anew, and a loop that does not end takes the whole limit.
        left.sort(key=lambda mutant: mutant.compiled)
        self._copy()
        tests, modules = self._recorded()
        with self._warm(modules) as warm:
            for number, mutant in enumerate(left, 1):
                one = self._try(warm, mutant, chosen_tests(mutant, tests, budget_s, self.target.late), limit_s)
                with (self.state / "results.jsonl").open("a") as results:
                    results.write(json.dumps({"id": mutant.id, "digest": mutant.digest, **one}) + "\n")
                print(f"{self.name} {number}/{len(left)} {one['status']} {one['seconds']} s  {mutant.id}", flush=True)
            self._confirm(warm, {one["test"]: one["seconds"] for one in tests})

    def _confirm(self, warm: subprocess.Popen[str], seconds: dict[str, float]) -> None:
        """Run every test that killed a mutant on the sources as they are: if it fails here, what it killed is open."""
        killers = {one["by"] for one in self.results().values() if one["status"] == "killed"}
        left = [(test, seconds[test]) for test in sorted(killers & seconds.keys())]
        unreliable = set()
        while left:
            answer = _asked(warm, left, 1800, self.scratch / "trial", compiled=False)
            if answer["status"] == "survived":
                break
            unreliable.add(answer["by"])
            kept = [(test, spent) for test, spent in left if test != answer["by"]]
            if len(kept) == len(left):
                raise SystemExit(f"{self.name}: the tests do not run on the sources as they are: {answer}")
            left = kept
        with (self.state / "results.jsonl").open("a") as results:
            for one in self.results().values():
                if one["by"] in unreliable:
                    results.write(json.dumps({**one, "status": "broken"}) + "\n")

    def _try(self, warm: subprocess.Popen[str], mutant: Mutant, chosen: list[tuple[str, float]], limit_s: float) -> Any:
        if not chosen:
            return {"status": "unreached", "by": "", "seconds": 0}
        place = self.tree / mutant.file
        original, date = place.read_text(), place.stat()
        place.write_text(mutant.source)
        try:
            answer = _asked(warm, chosen, limit_s, self.scratch / "trial", compiled=mutant.compiled)
        finally:
            place.write_text(original)
            os.utime(place, ns=(date.st_atime_ns, date.st_mtime_ns))
        if answer["status"] == "timeout":
            # The machine may be too busy: the same test has to end in time on the sources as they are.
            stuck = [(test, seconds) for test, seconds in chosen if test == answer["by"]] or chosen
            if _asked(warm, stuck, limit_s, self.scratch / "trial", compiled=False)["status"] != "survived":
                answer["status"] = "broken"
        return answer

    def _copy(self) -> None:
        """The scratch copy as the tree is now; what has not changed keeps its compiled code."""
        keep_to_oneself(self.scratch)
        shutil.rmtree(self.scratch / "trial", ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=self.root, capture_output=True, check=True
        )
        names = [name for name in listed.stdout.decode().split("\0") if name and (self.root / name).is_file()]
        for old in set(self.tree.rglob("*.py")) - {self.tree / name for name in names}:
            old.unlink()
        for name in names:
            source, copy = self.root / name, self.tree / name
            if not copy.exists() or copy.read_bytes() != source.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy)

    def _recorded(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Every test with the lines that it reaches, and the modules that they load; what changed is recorded again."""
        sources = b"".join((self.root / file).read_bytes() for file in self.files)
        kept = self.state / f"reach-{self.name.replace('/', '-')}.json"
        record: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"modules": [], "files": {}}
        now, wanted = {}, list[str]()
        for pattern in (*self.target.tests, *self.target.processes):
            file, _, name = pattern.partition("::")
            for path in sorted(self.root.glob(file)):
                test = f"{path.relative_to(self.root)}{'::' if name else ''}{name}"
                now[test] = hashlib.sha256(sources + path.read_bytes()).hexdigest()
                if pattern in self.patterns and test not in wanted:
                    wanted.append(test)
        record["files"] = {name: one for name, one in record["files"].items() if now.get(name) == one["digest"]}
        left = [name for name in wanted if name not in record["files"]]
        while stale := left[:BATCH]:
            left = left[BATCH:]
            tests, modules = self._record(stale)
            record["modules"] = list(dict.fromkeys([*record["modules"], *modules]))
            for name in stale:
                own = [one for one in tests if one["test"].startswith((f"{name}::", f"{name}["))]
                own += [one for one in tests if one["test"] == name]
                record["files"][name] = {"digest": now[name], "tests": own}
            kept.write_text(json.dumps(record))
        tests = [one for name in wanted for one in record["files"][name]["tests"] if one["passed"]]
        return [one for one in tests if not (self.unserved and self.target.late in one["lines"])], record["modules"]

    def _record(self, files: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
        print(f"{self.name}: recording what {len(files)} files of tests reach", flush=True)
        with tempfile.TemporaryDirectory(prefix="mutants-reach-") as place:
            own = {"MUTANTS_REACH": place, "MUTANTS_SOURCES": str(self.tree / self.target.sources)}
            command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.mutants.reach", "--tb=line"]
            subprocess.run([*command, "--hypothesis-seed=1", *files], cwd=self.tree, env=self._env(own), check=False)
            modules = json.loads((Path(place) / "modules.json").read_text())
            return reach.read(Path(place), self.tree), modules

    @contextmanager
    def _warm(self, modules: list[str]) -> Iterator[subprocess.Popen[str]]:
        changed = dependents(self.tree, self.files)
        names = [name for name in modules if name not in changed and name.split(".")[0] not in ("tests", "__main__")]
        own = {"PYTHONDONTWRITEBYTECODE": "1"}
        with ExitStack() as running:
            if self.target.late and not self.unserved:
                # A server takes seconds to start and imports none of the sources, so one serves all trials.
                own[s3.RUNNING] = s3.address(running.enter_context(s3.start()))
            warm = running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.support.mutants.trial"],
                    cwd=self.tree,
                    env=self._env(own),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert warm.stdin is not None
            print(json.dumps({"preload": names, "changed": sorted(changed)}), file=warm.stdin, flush=True)
            try:
                yield warm
            finally:
                warm.stdin.close()

    def _env(self, own: dict[str, str]) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self.tree),
            "NUMBA_CACHE_DIR": str(self.scratch / "numba"),
            "TRAINWRIGHT_HOME": str(self.scratch / "home"),
            "PREFECT_HOME": str(self.scratch / "prefect"),
            **own,
        }

    def report(self) -> None:
        """Print how many were tried, killed, and which survived without a reason."""
        known = self.results()
        listed = [mutant.id for mutant in self.mutants if mutant.id in self.equivalent]
        count = Counter(one["status"] for name, one in known.items() if name not in self.equivalent)
        tried, killed = sum(count.values()) + len(listed), count["killed"] + count["timeout"]
        print(
            f"{self.name}: {tried} of {len(self.mutants)} tried ({self.population} in all), {killed} killed"
            f" ({killed / max(1, tried):.1%}), of them {count['timeout']} by the limit; {len(listed)} survive with a"
            f" reason, {count['survived']} without one, {count['unreached']} reached by no test,"
            f" {count['broken']} without an answer"
        )
        for name, one in known.items():
            if one["status"] in OPEN and name not in self.equivalent:
                print(f"  {one['status']}: {name}")


def _asked(
    warm: subprocess.Popen[str], tests: list[tuple[str, float]], limit_s: float, scratch: Path, *, compiled: bool
) -> dict[str, Any]:
    """The answer of the warm process to one request."""
    assert warm.stdin is not None
    assert warm.stdout is not None
    request = {"tests": tests, "limit_s": limit_s, "scratch": str(scratch), "compiled": compiled}
    print(json.dumps(request), file=warm.stdin, flush=True)
    answer: dict[str, Any] = json.loads(warm.stdout.readline())
    return answer


def chosen_tests(
    mutant: Mutant, tests: list[dict[str, Any]], budget_s: float, late: str = ""
) -> list[tuple[str, float]]:
    """The tests that reach the mutant, each with its seconds.

    Quick ones come first, of these the tests of the file's namesake, within the budget. A line that is compiled counts
    as reached by all tests; one that runs at import, such as a default, by all that reach its file, after those that
    reach its class. Tests of the file's namesake may call it for a table of cases, at their own import, which is
    recorded for none of them: they come after those that reach it.
    """

    def reaching(lines: tuple[int, int]) -> list[dict[str, Any]]:
        return [one for one in tests if any(lines[0] <= at <= lines[1] for at in one["lines"].get(mutant.file, ()))]

    # By the first word: test_s3_faults.py is one for s3.py and for s3_errors.py.
    namesake = f"/test_{Path(mutant.file).stem.partition('_')[0]}"
    near = reaching(mutant.lines) or (reaching(mutant.scope_lines) if mutant.at_import else [])
    # No test is seen to reach a line that is compiled; some may, which call the function as Python has it.
    others = tests if mutant.compiled else reaching((1, 1 << 30)) if mutant.at_import else []
    near_names = {one["test"] for one in near}
    names = near_names | {one["test"] for one in others}
    found = [one for one in tests if one["test"] in names or namesake in one["test"]]

    def order(one: dict[str, Any]) -> tuple[object, ...]:
        slow = one["seconds"] > SLOW_S
        return late in one["lines"], slow, one["test"] not in near_names, namesake not in one["test"], one["seconds"]

    chosen: list[tuple[str, float]] = []
    for one in sorted(found, key=order):
        if not chosen or sum(seconds for _, seconds in chosen) + one["seconds"] <= budget_s:
            chosen.append((one["test"], one["seconds"]))
    return chosen
