"""A training whose store takes no writes for a while: `python -m tests.support.stalled_store FOLDER`; prints JSON.

FOLDER/store is a small file system of its own, in a mount namespace of this process's own. While the training's last
step waits, the file system is full, then out of inodes, then read-only; each time until the conductor says so, the
first time for longer than a node may be silent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from data_contracts.executions import GangUsage
from flows.commands.queries import why_not_writable
from infra.gang.members import Progress
from infra.store import open_store
from tests.support.conducting import run
from tests.support.pool import until

SILENCE_S = 22.0  # a busy machine may silence a node that lives for 20


def fill(disk: Path) -> None:
    with (disk / ".ballast").open("wb") as file:
        room = os.statvfs(disk)
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_bsize)


def take_inodes(disk: Path) -> None:
    (disk / ".inodes").mkdir()
    for number in range(os.statvfs(disk).f_favail):
        (disk / ".inodes" / str(number)).touch()


def read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, stderr=subprocess.DEVNULL)


def mend(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    subprocess.run(["rm", "-rf", str(disk / ".ballast"), str(disk / ".inodes")], check=True)


KINDS = {"full": fill, "inodes": take_inodes, "read-only": read_only}


def broken(kind: str, disk: Path) -> bool:
    """Break the disk; False if a process was writing meanwhile, so that it is whole again."""
    try:
        KINDS[kind](disk)
    except (OSError, subprocess.CalledProcessError):
        mend(disk)
        return False
    return True


def main(folder: Path) -> None:
    disk, said, usages = folder / "store", list[Progress](), list[GangUsage]()
    store = open_store(str(disk))
    found: dict[str, tuple[str, str]] = {}

    def trains() -> bool:
        return bool(said) and said[-1].phase == "training" and said[-1].step == 9 and not said[-1].sentence

    def disturb() -> None:
        try:
            for kind in KINDS:
                until(trains, what=lambda: said[-3:])
                until(lambda kind=kind: broken(kind, disk))  # type: ignore[misc]
                until(lambda: said[-1].sentence, what=lambda: said[-3:])
                found[kind] = said[-1].sentence, why_not_writable(store) or ""
                time.sleep(0 if len(found) > 1 else 1.25 * SILENCE_S)
                mend(disk)
        finally:
            mend(disk)
            (folder / "go").touch()

    threading.Thread(target=disturb).start()
    launch = {"silence_s": SILENCE_S, "lease_silence_s": SILENCE_S}
    fake = {"until": str(folder / "go")}
    outcome = run(store, fake, on_progress=said.append, launch=launch, on_usage=usages.append)
    ends = [usage.ended for usage in usages]
    print(json.dumps({"step": outcome.checkpoint.step, "ends": ends, "said": found, "disk": str(disk)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
