"""`doctor`: checks whether this machine can run a pipeline, and whether what should run here does."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import psutil

from data_contracts.errors import Interrupted, StorageUnavailable, TrainwrightError, UsageError
from flows.commands.guard import Answer, log
from infra import scratch
from infra.machine import num_cores
from infra.orchestrator.lifecycle import obstacles_here
from infra.orchestrator.server import expected_server, running_service
from infra.quantities import duration, size
from infra.scratch import UNKNOWN_MAKER, Leftover
from infra.settings import known_stores, state_folder
from infra.store import check_promises, open_store

GIB = 2**30
# Leftover folders that are listed one by one.
SCRATCH_LINES = 3
SWEPT = "the next command removes it"
OF_MANY = {
    UNKNOWN_MAKER: "their makers are not known; remove them by hand if nothing uses them",
    SWEPT: "the next command removes them",
}
PACKAGES = ("prefect", "torch", "lightning", "great-expectations", "pyarrow", "pandas", "dvc", "s3fs")


@dataclass(frozen=True)
class Check:
    """One fact: whether it is as it should be; if not, the remedy, the exit code and the name of the problem."""

    name: str
    ok: bool
    fact: str
    remedy: str = ""
    exit_code: int = UsageError.exit_code
    problem: str = ""


def doctor(arguments: argparse.Namespace) -> Answer:
    """The `doctor` command; it removes and starts nothing. The largest exit code of a failed check, else 0."""
    checks = inspect_machine()
    left: list[Leftover] = []
    if all(check.ok for check in checks if check.name == "state"):
        left = scratch.leftovers()
        checks += [*_prefect(), *_stores(), *_scratch(left)]
    lines = [f"{'ok ' if c.ok else 'NO '} {c.name:<9} {c.fact}{'' if c.ok else '. ' + c.remedy}" for c in checks]
    wrong = [check.exit_code for check in checks if not check.ok]
    value = {"ok": not wrong, "checks": [vars(c) for c in checks], "scratch": [_as_json(folder) for folder in left]}
    return Answer("\n".join(lines), value, max(wrong, default=0))


def check_machine() -> None:
    """Log what this machine is; UsageError if it is not sufficient."""
    checks = inspect_machine()
    log.info("doctor: %s", "; ".join(check.fact for check in checks))
    for check in checks:
        if not check.ok:
            raise UsageError(f"doctor: {check.name}: {check.fact}.", remedy=check.remedy)


def inspect_machine() -> list[Check]:
    """Check Python, cores, memory, disk, packages, GPUs and the state folder; imports no torch."""
    version = sys.version_info
    number = ".".join(map(str, version[:3]))
    memory, state = psutil.virtual_memory(), _state()
    disk = shutil.disk_usage(state_folder() if state.ok else os.getcwd())
    return [
        Check("python", (3, 11) <= version < (3, 14), f"Python {number}", "Use Python 3.11, 3.12 or 3.13."),
        Check("cores", True, f"{num_cores()} cores"),
        Check("memory", memory.total >= 3 * GIB, f"{memory.total / GIB:.0f} GiB memory", "Training needs 3 GiB."),
        Check("disk", disk.free >= GIB, f"{disk.free / GIB:.0f} GiB disk free", "Free 1 GiB."),
        _packages(),
        Check("gpu", True, _gpus()),
        state,
    ]


def _state() -> Check:
    try:
        folder = state_folder()
    except UsageError as error:
        return Check("state", False, error.message.rstrip("."), error.remedy)
    return Check("state", True, f"state in {folder}, mode {stat.S_IMODE(folder.stat().st_mode):04o}")


def _prefect() -> list[Check]:
    """The server, this machine's worker, and what the server's schedules need; each obstacle is a failed check."""
    server = None
    try:
        server = expected_server()
        checks = [Check("server", True, f"Prefect at {server.ui_url}" if server else "no Prefect server runs")]
    except (StorageUnavailable, UsageError) as error:
        problem = "server_refuses" if isinstance(error, UsageError) else "server_away"
        checks = [Check("server", False, error.message.rstrip("."), error.remedy, error.exit_code, problem)]
    failed = [
        Check(name, False, obstacle.sentence.rstrip("."), obstacle.remedy, StorageUnavailable.exit_code, obstacle.name)
        for name, obstacle in obstacles_here(server)
    ]
    names = {check.name for check in failed}
    if "worker" not in names:
        worker = running_service("worker")
        checks.append(Check("worker", True, f"worker with pid {worker.pid}" if worker else "no worker of ours runs"))
    if server is not None and "schedules" not in names:
        checks.append(Check("schedules", True, "every schedule has a work pool and a worker"))
    return [*checks, *failed]


def _stores() -> list[Check]:
    """The stores that were used from this machine: whether each answers; stores that no longer exist are counted."""
    checks, gone = [], 0
    for known in known_stores():
        check = _store(known["uri"], known["storage_options"])
        checks += [] if check is None else [check]
        gone += check is None
    if gone:
        checks.append(Check("store", True, f"{gone} that were used before can no longer be opened from here"))
    return checks


def _store(uri: str, options: Mapping[str, Any]) -> Check | None:
    """Whether a store answers and takes writes, conditional ones, too; None if it can no longer be opened."""
    opened = None
    try:
        opened = open_store(uri, options, create=False)
        check_promises(opened)
        with contextlib.suppress(UsageError):  # it is not this user's to write
            opened.now_s()
        return Check("store", True, f"{uri} answers")
    except TrainwrightError as error:
        if opened is None and isinstance(error, UsageError):
            return None
        remedy = error.remedy or ("Look at its server." if isinstance(error, Interrupted) else "Look at its files.")
        return Check("store", False, error.message.rstrip("."), remedy, error.exit_code)


def _as_json(left: Leftover) -> dict[str, object]:
    return {
        "path": str(left.path),
        "bytes": left.num_bytes,
        "age_s": round(left.age_s),
        "made_for": left.made_for,
        "why_kept": left.why_kept,
    }


def _scratch(left: list[Leftover]) -> list[Check]:
    """A line for each folder, or one line for many folders that stay for the same reason."""
    by_reason: dict[str, list[Leftover]] = {}
    for folder in left:
        by_reason.setdefault(folder.why_kept or SWEPT, []).append(folder)
    facts = []
    for reason, folders in by_reason.items():
        if len(folders) > SCRATCH_LINES:
            places = ", ".join(sorted({str(folder.path.parent) for folder in folders}))
            total = size(sum(folder.num_bytes for folder in folders))
            why = OF_MANY.get(reason, reason)
            facts.append(f"{len(folders)} folders in {places}, left behind, {total} (--json lists them): {why}")
        else:
            facts += [
                f"{folder.path}, left behind, {size(folder.num_bytes)}, {duration(round(folder.age_s))} old: {reason}"
                for folder in folders
            ]
    return [Check("scratch", True, fact) for fact in facts]


def _packages() -> Check:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    fact = ", ".join(found) + (f"; missing: {', '.join(missing)}" if missing else "")
    return Check("packages", not missing, fact, "Run `make setup`.")


def _gpus() -> str:
    if shutil.which("nvidia-smi") is None:
        return "no GPU: trains on the CPU"
    asked = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    names = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    return "; ".join(names) if names else "no GPU: trains on the CPU"
