"""`doctor`, `up` and `down`: this machine, and the local Prefect server, pool and worker."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata

import psutil

from data_contracts.errors import UsageError
from flows.commands.guard import Answer, log
from infra.settings import state_folder

GIB = 2**30
PACKAGES = ("prefect", "torch", "lightning", "great-expectations", "pyarrow", "pandas", "dvc", "s3fs")


@dataclass(frozen=True)
class Check:
    """One fact about the machine: whether it will do, and what to do if not."""

    name: str
    ok: bool
    fact: str
    remedy: str = ""


def doctor(arguments: argparse.Namespace) -> Answer:
    """The `doctor` command; exit code 2 if something is missing."""
    checks = inspect_machine()
    lines = [f"{'ok ' if c.ok else 'NO '} {c.name:<9} {c.fact}{'' if c.ok else '. ' + c.remedy}" for c in checks]
    value = {"ok": all(c.ok for c in checks), "checks": [vars(c) for c in checks]}
    return Answer("\n".join(lines), value, 0 if value["ok"] else 2)


def check_machine() -> None:
    """Say what this machine is; UsageError if it will not do."""
    checks = inspect_machine()
    log.info("doctor: %s", "; ".join(check.fact for check in checks))
    for check in checks:
        if not check.ok:
            raise UsageError(f"doctor: {check.name}: {check.fact}.", remedy=check.remedy)


def inspect_machine() -> list[Check]:
    """Look at Python, cores, memory, disk, packages, GPUs and the state folder; imports no torch."""
    version = sys.version_info
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(state_folder())
    return [
        Check("python", version >= (3, 11), f"Python {'.'.join(map(str, version[:3]))}", "Use Python 3.11."),
        Check("cores", True, f"{os.cpu_count()} cores"),
        Check("memory", memory.total >= 3 * GIB, f"{memory.total / GIB:.0f} GiB memory", "Training needs 3 GiB."),
        Check("disk", disk.free >= GIB, f"{disk.free / GIB:.0f} GiB disk free", "Free 1 GiB."),
        _packages(),
        Check("gpu", True, _gpus()),
        Check("state", os.access(state_folder(), os.W_OK), f"state in {state_folder()}", "Set TRAINWRIGHT_HOME."),
    ]


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
    import subprocess

    asked = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    names = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    return "; ".join(names) if names else "no GPU: trains on the CPU"


def up(arguments: argparse.Namespace) -> Answer:
    """The `up` command."""
    from infra.orchestrator.lifecycle import up as start

    server = start()
    told = (
        f"Prefect server and worker are up; UI: {server.ui_url}\n"
        f"Deploy with: prefect deploy --all\n"
        f"To use prefect in other folders: export PREFECT_API_URL={server.url}"
    )
    return Answer(told, {"ui": server.ui_url, "api": server.url, "started": server.started})


def down(arguments: argparse.Namespace) -> Answer:
    """The `down` command."""
    from infra.orchestrator.lifecycle import down as stop

    stopped = stop()
    return Answer(f"stopped: {', '.join(stopped)}" if stopped else "nothing of ours was running", {"stopped": stopped})
