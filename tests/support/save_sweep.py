"""Kills a save of two ranks, or a retention pass, at each of its calls: `python -m tests.support.save_sweep JSON…`.

Each argument says `store` (folder or S3), `options`, `what` ("save" or "retire"), `rank` (which of two is killed), `by`
("calls" of the file system, through strace, or "requests" to S3, before or after they were sent) and `step` (every how
many-eth is tried). After each kill there is a committed checkpoint, every byte of it whole; a reader that looks all the
time never sees a part of one. Prints a line of JSON for each: how many kills there can be, how many were tried, and
those that never came.
"""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from data_contracts.handoffs import Checkpoint, Ref
from infra.gang.ledger import Ledger
from infra.store import Store, layout, open_store
from training.checkpoint.saver import CheckpointTarget, capture, save

TRAINING = f"trainings/{'k' * 40}-0"
CALLS = "%file,write,fsync,fdatasync,close,getdents64,flock,ftruncate"
MOST_TRIES = 5
COUNTED = 5


def state(step: int, rank: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the ranks share, and what is this one's own."""
    return {"state_dict": {"w": torch.full((64,), float(step))}}, {"rng": torch.full((16,), float(step + rank))}


def write(store: Store, step: int, rank: int, world_size: int, scratch: Path) -> Ref:
    """One rank's part in a checkpoint."""
    place = CheckpointTarget(store, layout.checkpoint(TRAINING, step, 0), {"step": step}, {}, {}, scratch)
    return save(place, capture(*state(step, rank), rank), world_size, [])


def traced(thread: Path) -> bool:
    """Whether strace is attached to this thread."""
    return "TracerPid:\t0\n" not in (thread / "status").read_text()


def handoff(ref: Ref, step: int) -> Checkpoint:
    """As a rank reports it."""
    return Checkpoint(
        ref=ref, key="k" * 40, training=TRAINING, step=step, epoch=0, generation=0, world_size=1, dropped_rows=0
    )


class Sweep:
    """One scenario, tried again and again on stores of their own."""

    def __init__(self, told: dict[str, Any], scratch: Path) -> None:
        self.told, self.scratch = told, scratch
        self.options = told["options"]
        self.tries = 0

    def fresh(self) -> str:
        """A store that has committed steps 1 to 3 (for a save) or 1 to 4 (for retention)."""
        self.tries += 1
        uri = f"{self.told['store']}/{self.tries}"
        if "://" in uri:
            return self.committed(uri)
        if not (template := Path(f"{self.told['store']}/template")).exists():
            self.committed(str(template))
        shutil.copytree(template, uri, symlinks=True)
        return uri

    def committed(self, uri: str) -> str:
        """The store `uri` with its checkpoints, made here."""
        store = open_store(uri, self.options)
        ledger = Ledger(store, TRAINING, 0)
        for step in range(1, 4 if self.told["what"] == "save" else 5):
            ledger.commit(handoff(write(store, step, 0, 1, self.scratch), step))
        return uri

    def children(self, uri: str, arm: Callable[[], None] | None) -> list[int]:
        """The processes of the scenario, each stopped just before its work; `arm` runs in the one that is killed."""
        ranks = range(2) if self.told["what"] == "save" else [self.told["rank"]]
        meeting = self.scratch / f"meeting-{self.tries}"
        found = []
        for rank in ranks:
            child = os.fork()
            if child:
                found.append(child)
                continue
            code = 1
            try:
                self.work(uri, rank, meeting, arm if rank == self.told["rank"] else None)
                code = 0
            except Exception:
                # Told only if an assertion fails: the one that is left alone by a kill fails as it should.
                (self.scratch / f"failed-{os.getpid()}").write_text(traceback.format_exc())
            os._exit(code)
        for child in found:
            _, status = os.waitpid(child, os.WUNTRACED)
            assert os.WIFSTOPPED(status), self.failure(child)
        return found

    def failure(self, child: int) -> str:
        """What a child raised."""
        told = self.scratch / f"failed-{child}"
        return told.read_text() if told.exists() else f"a child ended without a word in try {self.tries}"

    def work(self, uri: str, rank: int, meeting: Path, arm: Callable[[], None] | None) -> None:
        """In a child: meet, stop, go on, work."""
        store = open_store(uri, self.options)
        if self.told["what"] == "save":
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
        os.kill(os.getpid(), signal.SIGSTOP)
        if arm is not None:
            arm()
        if self.told["what"] == "save":
            write(store, 4, rank, 2, self.scratch)
        else:
            Ledger(store, TRAINING, 1).retire(1, None, by="sweep")

    def run(self, uri: str, arm: Callable[[], None] | None = None, *strace: str) -> bool:
        """Do the work, watched by a reader; whether the one that should be killed was."""
        children = self.children(uri, arm)
        target = children[min(self.told["rank"], len(children) - 1)]
        tracer = None
        if strace:
            tracer = subprocess.Popen(["strace", "-f", "-qq", "-p", str(target), *strace], stderr=subprocess.DEVNULL)
            while not all(traced(thread) for thread in Path(f"/proc/{target}/task").iterdir()):
                assert tracer.poll() is None, "strace did not attach"
                time.sleep(0.002)
        ended = threading.Event()
        seen: list[str] = []
        reader = threading.Thread(target=self.read, args=(uri, ended, seen))
        reader.start()
        for child in children:
            os.kill(child, signal.SIGCONT)
        ends = {child: os.waitpid(child, 0)[1] for child in children}
        killed = os.WIFSIGNALED(ends[target])
        if tracer:
            tracer.wait()
        ended.set()
        reader.join()
        assert not seen, seen
        assert killed or not any(ends.values()), [self.failure(child) for child in ends]
        return killed

    def read(self, uri: str, ended: threading.Event, seen: list[str]) -> None:
        """Look at the newest checkpoint all the time: it is sealed and whole, or it is not there."""
        if self.told["what"] != "save":
            return
        store, place = open_store(uri, self.options), layout.checkpoint(TRAINING, 4, 0)
        while not ended.wait(0.001):
            try:
                store.manifest(place)
                store.verify(place)
            except FileNotFoundError:
                continue
            except Exception as error:
                seen.append(f"{type(error).__name__}: {error}")

    def check(self, uri: str, where: str) -> None:
        """What must hold after a kill."""
        store = open_store(uri, self.options)
        ledger = Ledger(store, TRAINING, 2)
        sealed = store.exists(layout.manifest(layout.checkpoint(TRAINING, 4, 0)))
        if sealed and self.told["what"] == "save":
            ledger.commit(handoff(store.manifest(layout.checkpoint(TRAINING, 4, 0)).ref, 4))
        good = ledger.resume_from()
        assert good is not None, f"no checkpoint after a kill at {where}"
        assert good.step == (4 if sealed else 3), f"step {good.step} after a kill at {where}"
        ledger.delete_retired(by="sweep")
        for checkpoint in ledger.checkpoints:
            store.verify(checkpoint.ref)

    def counted(self) -> Counter[str]:
        """How often a thread makes each call, undisturbed."""
        log = self.scratch / "log"
        assert not self.run(self.fresh(), None, "-o", str(log), "-e", f"trace={CALLS}")
        # strace counts the calls of a name per thread.
        threads = Counter(
            (match[2], match[1])
            for line in log.read_text().splitlines()
            if (match := re.match(r"(\d+) +(\w+)\(", line))
        )
        return Counter({name: max(n for (one, _), n in threads.items() if one == name) for name, _ in threads})

    def by_calls(self) -> dict[str, Any]:
        """Kill at file system calls."""
        # Which rank comes first makes the checkpoint's folder: only calls that every undisturbed run has must be hit.
        most = functools.reduce(operator.and_, (self.counted() for _ in range(COUNTED)))
        calls = [(name, n) for name, count in sorted(most.items()) for n in range(1, count + 1)]

        def kill(name: str, n: int) -> tuple[bool, str]:
            uri = self.fresh()
            inject = f"inject={name}:signal=SIGKILL:when={n}"
            return self.run(uri, None, "-o", "/dev/null", "-e", f"trace={name}", "-e", inject), uri

        return self.all(calls, kill)

    def by_requests(self) -> dict[str, Any]:
        """Kill at requests to S3."""
        counts = self.scratch / "requests"

        def counting(kill_at: int | None, after: bool) -> Callable[[], None]:
            def arm() -> None:
                from aiobotocore.httpsession import AIOHTTPSession
                from botocore.awsrequest import AWSResponse  # noqa: F401 - imported before the count

                send, seen = AIOHTTPSession.send, [0]

                async def sending(session: Any, request: Any) -> Any:
                    seen[0] += 1
                    counts.write_text(str(seen[0]))
                    if seen[0] == kill_at and not after:
                        os.kill(os.getpid(), signal.SIGKILL)
                    answer = await send(session, request)
                    if seen[0] == kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return answer

                AIOHTTPSession.send = sending

            return arm

        def counted() -> int:
            assert not self.run(self.fresh(), counting(None, False))
            return int(counts.read_text())

        # Only requests that every undisturbed run makes must be hit: one may have been repeated.
        most = min(counted() for _ in range(2))
        calls = [(when, n) for n in range(1, most + 1) for when in ("before", "after")]

        def kill(when: str, n: int) -> tuple[bool, str]:
            uri = self.fresh()
            return self.run(uri, counting(n, when == "after")), uri

        return self.all(calls, kill)

    def all(self, calls: list[tuple[str, int]], kill: Callable[[str, int], tuple[bool, str]]) -> dict[str, Any]:
        """Try every `step`-th."""
        tried = calls[:: self.told["step"]]
        missed = []
        for name, n in tried:
            # Threads share the work differently each time; a kill that did not come is tried again.
            for _ in range(MOST_TRIES):
                came, uri = kill(name, n)
                self.check(uri, f"{name} {n}")
                if "://" not in uri:
                    shutil.rmtree(uri)
                if came:
                    break
            else:
                missed.append(f"{name} {n}")
        return {"calls": len(calls), "tried": len(tried), "missed": missed}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for number, told in enumerate(sys.argv[1:]):
            (own := Path(scratch) / str(number)).mkdir()
            sweep = Sweep(json.loads(told), own)
            print(json.dumps(sweep.by_calls() if sweep.told["by"] == "calls" else sweep.by_requests()), flush=True)
