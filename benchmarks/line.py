"""What a line of 600 rows costs: processor time and imports of each of its processes, from raw data to promotion.

    python benchmarks/line.py [--quick] [--against CHECKOUT]

Each turn runs the tiny pipeline of the tests (`tests/support/tiny.py`) in a new folder, beside a server that runs
already. Processor seconds are user and system time, read from /proc (Linux) until the process is reaped; unlike wall
seconds, they change little on a busy machine. One more turn counts what each process imports (`-X importtime`).
`--against` takes turns with another checkout, such as one before a change, with this environment's packages.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import common
from noise import Median, Watch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.tiny import write_project  # noqa: E402

# Processes by a word of their command line, the first that is found; all others are `other`.
KINDS = {
    "rank_bootstrap": "rank",
    "torchrun_agent": "torchrun agent",
    "contract_worker": "contract worker",
    "shard.worker": "shard",
    "fit.memory": "module sizes",
    "verify_worker": "verify",
    "evaluate_worker": "evaluate",
    "flows.cli": "parent",
}
TICKS = os.sysconf("SC_CLK_TCK")
PACKAGES = ("torch", "lightning", "torchmetrics", "scipy", "great-expectations", "prefect", "pyarrow")


@dataclass
class Seen:
    """What was last seen of a process, and everything that it printed to stderr."""

    command: str = ""
    seconds: float = 0.0
    started: float = field(default_factory=time.perf_counter)
    ended: float = 0.0
    streams: dict[str, IO[bytes]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The process's row in the table."""
        # The agent's command line ends with its ranks' command, so it is looked for before them.
        if "tied_to_parent" in self.command:
            return "torchrun agent"
        return next((kind for word, kind in KINDS.items() if word in self.command), "other")

    def imports(self) -> list[tuple[str, float]]:
        """Each imported module and the milliseconds of its own import, if PYTHONPROFILEIMPORTTIME was set."""
        lines = [
            line for stream in self.streams.values() for line in stream.read().decode(errors="replace").split("\n")
        ]
        cells = [line.removeprefix("import time:").split("|") for line in lines if line.startswith("import time:")]
        return [(name.strip(), int(own) / 1000) for own, _, name in cells if own.strip().isdigit()]


class Census(threading.Thread):
    """Looks at a process and its descendants again and again."""

    def __init__(self, top: int, *, streams: bool) -> None:
        super().__init__(daemon=True)
        self.seen: dict[int, Seen] = {top: Seen()}
        self.streams, self.over = streams, threading.Event()

    def run(self) -> None:
        """Look every 10 ms: what a process does after the last look before its end is missed."""
        while not self.over.wait(0.01):
            self.look()

    def look(self) -> None:
        """Update what was seen; a process whose parent was seen is added."""
        for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                pid = int(path.name)
                if pid not in self.seen and int(fields[1]) not in self.seen:
                    continue
                one = self.seen.setdefault(pid, Seen())
                one.seconds = (int(fields[11]) + int(fields[12])) / TICKS
                one.ended = time.perf_counter()
                one.command = (path / "cmdline").read_text().replace("\0", " ") or one.command
                if self.streams and fields[0] not in "ZX":
                    self._open(one, path / "fd" / "2")
            except (OSError, ValueError, IndexError):
                continue  # it has ended

    @staticmethod
    def _open(one: Seen, descriptor: Path) -> None:
        """Keep what stderr goes to open: the file itself is deleted with its scratch folder."""
        place = os.readlink(descriptor)
        if place.startswith("/") and not place.startswith("/dev") and place not in one.streams:
            one.streams[place] = descriptor.open("rb")


def line(checkout: Path, folder: Path, *, imports: bool = False) -> dict[int, Seen]:
    """Run the tiny line once; its processes by their ids."""
    spec = write_project(folder)
    command = [sys.executable, "-m", "flows.cli", "run", str(spec), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(checkout), **({"PYTHONPROFILEIMPORTTIME": "1"} if imports else {})}
    with (folder / "stderr.txt").open("wb") as log:
        process = subprocess.Popen(command, cwd=checkout, env=environment, stdout=subprocess.DEVNULL, stderr=log)
        census = Census(process.pid, streams=imports)
        census.start()
        code = process.wait()
        census.over.set()
        census.join()
    if code:
        raise SystemExit(f"The line ended with exit code {code}:\n{(folder / 'stderr.txt').read_text()[-4000:]}")
    return census.seen


def total(seen: dict[int, Seen]) -> float:
    """Processor seconds of all processes, reaped or not: a gang's agent may be killed before it reaps its rank."""
    return sum(one.seconds for one in seen.values())


def by_kind(seen: dict[int, Seen]) -> dict[str, tuple[float, float]]:
    """Processor and wall seconds of each kind of process, in the order of their starts."""
    found: dict[str, tuple[float, float]] = {}
    for one in seen.values():
        cpu, wall = found.get(one.kind, (0.0, 0.0))
        found[one.kind] = cpu + one.seconds, wall + one.ended - one.started
    return found


def show(name: str, turns: list[dict[int, Seen]], imported: dict[int, Seen]) -> None:
    """Print a row for each kind of process: medians of the turns, and what was imported."""
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for seen in turns:
        for kind, figures in by_kind(seen).items():
            rows[kind].append(figures)
    modules: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for one in imported.values():
        modules[one.kind] += one.imports()
    print(f"\n{name}\n{'':18}{'processor s':>12}{'wall s':>9}{'modules':>9}  most of its imports")
    for kind, pairs in rows.items():
        cpu, wall = statistics.median(one[0] for one in pairs), statistics.median(one[1] for one in pairs)
        packages: dict[str, float] = defaultdict(float)
        for module, ms in modules[kind]:
            packages[module.partition(".")[0]] += ms
        whole, largest = sum(packages.values()), sorted(packages.items(), key=lambda item: -item[1])[:5]
        most = ", ".join(f"{package} {ms / whole:.0%}" for package, ms in largest)
        print(f"{kind:18}{cpu:12.2f}{wall:9.1f}{len(modules[kind]):9}  {most}")
    print(f"{'all':18}{statistics.median(map(total, turns)):12.2f}")


def main() -> None:
    """Measure, print, and say the total as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 turns instead of 5")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout to take turns with")
    told, watch = parser.parse_args(), Watch()
    checkouts = {"this checkout": ROOT, **({"the other": told.against.resolve()} if told.against else {})}
    print(common.machine())
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES))
    with common.scratch() as folder:
        os.environ.update(TRAINWRIGHT_HOME=str(folder / "home"), PREFECT_HOME=str(folder / "prefect"))
        os.environ.pop("PREFECT_API_URL", None)
        try:
            # The first line of each does not count: it starts the server, and writes bytecode and caches.
            first = {name: line(place, folder / f"{name} imports", imports=True) for name, place in checkouts.items()}
            turns: dict[str, list[dict[int, Seen]]] = {name: [] for name in checkouts}
            for turn in range(2 if told.quick else 5):
                for name, place in checkouts.items():
                    turns[name].append(line(place, folder / f"{name}-{turn}"))
        finally:
            subprocess.run([sys.executable, "-m", "flows.cli", "down"], cwd=ROOT, check=False, capture_output=True)
    for name in checkouts:
        show(name, turns[name], first[name])
    figures = {"line_cpu_s": Median([total(seen) for seen in turns["this checkout"]], 2)}
    if told.against:
        pairs = zip(turns["the other"], turns["this checkout"], strict=True)
        figures["line_vs_other"] = Median([total(theirs) / total(ours) for theirs, ours in pairs], 2)
    common.conclude(figures, watch.end(all_reaped=False), quick=told.quick)


if __name__ == "__main__":
    main()
