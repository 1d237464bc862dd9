"""One save of a checkpoint, its calls recorded or made to fail: `python -m tests.support.lost_writes WHAT FOLDER STEP`.

`replay`: every prefix of the recorded calls is played into a folder as a machine that lost power would leave it, with
what was not synced dropped. `full`: every `STEP`-th call that takes room on the disk fails for lack of it. `limit`:
files cannot grow beyond so many bytes. Each save is forked from this process, which has done none itself; it is made
through the public `save`. Prints one JSON object of counts.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from data_contracts.errors import CorruptError, StorageUnavailable
from infra.store import Store, layout, open_store
from tests.support.files import write_files
from tests.support.strace import traced
from training.checkpoint.saver import CheckpointTarget, capture, save

TRAINING = "trainings/k-0"
OLD, NEW = (layout.checkpoint(TRAINING, step, 0) for step in (4, 8))
WRITES = "write,pwrite64,writev,pwritev,sendfile,copy_file_range"
ROOM = f"{WRITES},fallocate,ftruncate,fsync,fdatasync,link,linkat,mkdir,rename"
SEEN = f"{ROOM},open,openat,creat,unlink,unlinkat,rename,renameat,renameat2,mkdirat,rmdir,close"
STORAGE, OTHER = StorageUnavailable.exit_code, 99


def saved(store: Store, uri: str, scratch: Path) -> None:
    """Save a small checkpoint as a rank alone would."""
    generator = torch.Generator().manual_seed(len(uri))
    weights = {name: torch.rand(size, generator=generator) for name, size in (("a", 3000), ("b", 500))}
    state = {"state_dict": weights, "optimizer_states": [{"state": {0: {"exp_avg": torch.rand(3000)}}}], "n": {1: 2}}
    place = CheckpointTarget(store, uri, {"step": 1}, {}, {"train": {}}, scratch)
    save(place, capture(state, {"rng": b"x" * 300}, 0), 1, [{"step": 1, "loss": 0.1}] * 20)


class Scene:
    """A store with one committed checkpoint, and a folder for what is on its way to it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.scratch = folder / "store", folder / "scratch"
        self.scratch.mkdir(parents=True)
        self.store = open_store(str(self.root))
        saved(self.store, OLD, self.scratch)

    def forked(self, *, limit: int | None = None, stopped: bool = False) -> int:
        """A process that saves the next checkpoint; its exit code says what came of it."""
        child = os.fork()
        if child == 0:
            code = OTHER
            try:
                if stopped:
                    os.kill(os.getpid(), signal.SIGSTOP)
                if limit is not None:
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                saved(self.store, NEW, self.scratch)
                code = 0
            except StorageUnavailable as error:
                code = STORAGE if str(error).count(".") else OTHER
            finally:
                os._exit(code)
        return child

    def traced(self, log: Path, *options: str) -> int:
        """Save under strace; the exit code."""
        child = self.forked(stopped=True)
        os.waitpid(child, os.WUNTRACED)
        return os.waitstatus_to_exitcode(traced(child, "-y", "-s", "0", "-o", str(log), *options))

    def reset(self) -> None:
        """As before the save."""
        shutil.rmtree(self.root / NEW, ignore_errors=True)
        shutil.rmtree(self.scratch)
        self.scratch.mkdir()

    def check(self, code: int) -> None:
        """The old one is whole; the new one is, if the save said so, and else it does not exist or is whole."""
        self.store.verify(OLD)
        try:
            self.store.verify(NEW)
        except FileNotFoundError:
            assert code != 0, "a save that ended well left nothing"


def full(scene: Scene, step: int) -> dict[str, Any]:
    """No room at every `step`-th call, for either reason."""
    log = scene.root.parent / "log"
    assert scene.traced(log, "-e", f"trace={ROOM}") == 0
    scene.check(0)
    counts = Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE))
    calls = [(name, n, error) for name in sorted(counts) for n in range(1, counts[name] + 1) for error in NO_ROOM]
    fired = named = 0
    for name, n, error in calls[::step]:
        scene.reset()
        code = scene.traced(log, "-e", f"trace={name}", "-e", f"inject={name}:error={error}:when={n}")
        fired += "INJECTED" in log.read_text()
        named += code == STORAGE
        scene.check(code)
    return {"calls": len(calls), "tried": len(calls[::step]), "fired": fired, "named": named}


NO_ROOM = ("ENOSPC", "EDQUOT")


def limit(scene: Scene, offsets: int) -> dict[str, Any]:
    """No room after so many bytes of a file, at offsets spread over the largest."""
    saved(scene.store, NEW, scene.scratch)
    largest = max(path.stat().st_size for path in (scene.root / NEW).iterdir())
    named = 0
    for number in range(offsets):
        scene.reset()
        _, status = os.waitpid(scene.forked(limit=number * largest // offsets), 0)
        code = os.waitstatus_to_exitcode(status)
        named += code == STORAGE
        scene.check(code)
    return {"tried": offsets, "named": named}


class Disk:
    """What the recorded calls make of a folder, and what of it outlives a loss of power."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: dict[str, int] = {}
        self.lasting: dict[str, int] = {}
        self.written: Counter[int] = Counter()
        self.synced: dict[int, int] = {}
        self._count = 0

    def play(self, call: str, paths: list[str], size: int, creates: bool) -> None:
        """One call that succeeded, on paths in the folder."""
        first = paths[0] if paths else ""
        if call in ("open", "openat", "creat"):
            if creates and first not in self.names:
                self._count += 1
                self.names[first] = self._count
        elif call in WRITES.split(",") and first in self.names:
            self.written[self.names[first]] += size
        elif call in ("fsync", "fdatasync"):
            if first in self.names:
                self.synced[self.names[first]] = self.written[self.names[first]]
            else:
                self._sync_folder(first)
        elif call in ("link", "linkat") and first in self.names:
            self.names[paths[-1]] = self.names[first]
        elif call.startswith("rename") and first in self.names:
            self.names[paths[-1]] = self.names.pop(first)
        elif call.startswith("unlink"):
            self.names.pop(first, None)

    def _sync_folder(self, folder: str) -> None:
        def inside(names: dict[str, int]) -> dict[str, int]:
            return {name: inode for name, inode in names.items() if os.path.dirname(name) == folder}

        for name in inside(self.lasting):
            del self.lasting[name]
        self.lasting |= inside(self.names)

    def after_power_loss(self, target: Path, whole: dict[int, bytes], *, names_last: bool) -> None:
        """Lay out what is left: of each file what was synced; of the names those that were, or all."""
        shutil.rmtree(target, ignore_errors=True)
        left = (self.names if names_last else self.lasting).items()
        synced = {name: whole.get(inode, b"")[: self.synced.get(inode, 0)] for name, inode in left}
        write_files(target, {os.path.relpath(name, self.root): data for name, data in synced.items()})


LINE = re.compile(r"^\d+ +(\w+)\((.*)\) += (\d+)")
BELOW = re.compile(r'<([^>]*)>, "([^"]*)"')
PATH = re.compile(r'"([^"]*)"|<([^>]*)>')


def replay(scene: Scene, step: int) -> dict[str, Any]:
    """Every `step`-th prefix, each left in two ways; nothing but a whole checkpoint may be taken for one."""
    log = scene.root.parent / "log"
    assert scene.traced(log, "-s", "4096", "-e", f"trace={SEEN}") == 0
    calls = [found for line in log.read_text().splitlines() if (found := parsed(line, scene.root))]
    last = Disk(scene.root)
    for call in calls:
        last.play(*call)
    whole = {inode: Path(name).read_bytes() for name, inode in last.names.items() if Path(name).is_file()}
    counts: Counter[str] = Counter()
    target = scene.root.parent / "after"
    for end in range(0, len(calls) + 1, step):
        disk = Disk(scene.root)
        for call in calls[:end]:
            disk.play(*call)
        for names_last in (False, True):
            disk.after_power_loss(target, whole, names_last=names_last)
            shutil.copy(scene.root / "store.json", target) if target.exists() else None
            counts[state_of(target)] += 1
    return {"calls": len(calls), "states": sum(counts.values()), **counts, "end": state_of(target)}


def state_of(root: Path) -> str:
    """What a reader makes of the checkpoint in a store: `whole`, `none`, or `broken`, though it is sealed."""
    if not root.exists():
        return "none"
    try:
        open_store(str(root), create=False).verify(NEW)
    except FileNotFoundError:
        return "none"
    except CorruptError:
        return "broken"
    return "whole"


def parsed(line: str, root: Path) -> tuple[str, list[str], int, bool] | None:
    """A call that succeeded, with its paths below `root`; None for another."""
    match = LINE.match(line)
    if match is None:
        return None
    name, arguments, answer = match[1], match[2], int(match[3])
    if name.rstrip("2").endswith("at"):  # a name follows the folder that it is relative to
        arguments = BELOW.sub(lambda one: f'"{os.path.join(one[1], one[2])}"', arguments)
    found = [(one or other).removesuffix(" (deleted)") for one, other in PATH.findall(arguments)]
    paths = [path for path in found if path.startswith(f"{root}/")]
    return (name, paths, answer, "O_CREAT" in arguments) if paths else None


WAYS: dict[str, Callable[[Scene, int], dict[str, Any]]] = {"full": full, "limit": limit, "replay": replay}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(WAYS[sys.argv[1]](Scene(Path(sys.argv[2])), int(sys.argv[3]))))
