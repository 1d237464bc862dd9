"""A rank without torch for tests of the launchers: speaks the ranks' file protocol and fails where it is told to.

`launch["train"]["fake"]`: `steps`, `every` (steps between checkpoints), `step_s`, `trace` (a file that gets one line
`<generation> <rank> <step>` per step), and `faults`: a list of {"generation", "rank", "step", "kind", "after"}. A fault
whose step was taken before comes at the generation's first. `after` is a step whose checkpoint must be committed first,
`together` waits until all ranks took a step, and a fault "wait" lasts until there is the file `for`. With `until`, the
last step waits for that file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from data_contracts.errors import (
    NodeLost,
    OutOfMemory,
    Preempted,
    StorageUnavailable,
    TrainwrightError,
    UserCodeError,
)
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Meeting, RankAnswer, RankReport, TrainingSummary
from infra.gang.rank_files import FIELD, RankFiles, read_codes, read_launch, stop_file, store_options
from infra.gang.rank_files import SCRATCH as SCRATCH_NAME
from infra.gang.rank_files import STORE as STORE_NAME
from infra.store import layout, open_store
from infra.store.seal import write_manifest

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SCRATCH = Path(os.environ[SCRATCH_NAME])
FILES, LAUNCH = RankFiles(SCRATCH, RANK), read_launch()
FAKE = LAUNCH.train["fake"]
STORE = open_store(os.environ[STORE_NAME], store_options(), create=False)

stopping = False
checkpoints: list[Checkpoint] = []


def main() -> None:
    signal.signal(signal.SIGTERM, note_stop)
    begin = step = LAUNCH.resume.step if LAUNCH.resume else 0
    report("starting", step)
    print(f"rank {RANK} of {WORLD} in {os.getcwd()} with {os.environ['OMP_NUM_THREADS']} threads", flush=True)
    while step < FAKE["steps"]:
        for fault in FAKE.get("faults", []):
            if (fault["generation"], fault["rank"], max(fault["step"], begin)) == (LAUNCH.generation, RANK, step):
                fail(fault)
        while step == FAKE["steps"] - 1 and "until" in FAKE and not (Path(FAKE["until"]).exists() or is_stopping()):
            time.sleep(0.02)
        if is_stopping():
            if RANK == 0:
                checkpoint(step)
                report("training", step)
            raise Preempted("asked to stop.")
        time.sleep(FAKE.get("step_s", 0.01))
        step += 1
        with open(FAKE["trace"], "a") as trace:
            trace.write(f"{LAUNCH.generation} {RANK} {step}\n")
        if RANK == 0 and step % FAKE["every"] == 0:
            checkpoint(step)
        report("training", step)
    resumed = LAUNCH.resume if LAUNCH.resume and LAUNCH.resume.step == step else None
    if RANK == 0 and resumed is None and (not checkpoints or checkpoints[-1].step < step):
        checkpoint(step)
    report("done", step)
    last = (resumed or checkpoints[-1]) if RANK == 0 else None
    summary = TrainingSummary(dropped_rows=3, wait_share=0.07, wait_cause="decoding")
    FILES.write_answer(RankAnswer(checkpoint=last, plan=summary.to_json()))


def report(phase: Any, step: int, *, saving: bool = False) -> None:
    report = RankReport(
        rank=RANK,
        phase=phase,
        step=step,
        samples=step * 8,
        metrics={"loss": 1.0 / (1 + step)},
        checkpoints=checkpoints,
        micro_batch=micro_batch(),
        saving=saving,
        place="forward" if phase == "training" else phase,
        moves=step,
        steps=step,
    )
    FILES.write_report(report)


def micro_batch() -> int:
    return LAUNCH.train.get("micro_batch_size") or LAUNCH.global_batch_size // WORLD


def checkpoint(step: int) -> None:
    uri = layout.checkpoint(LAUNCH.training, step, LAUNCH.generation)
    writer = STORE.writer(uri)
    entry = writer.put("state.json", json.dumps({"step": step}).encode())
    metrics = {"score": FAKE["scores"][str(step)]} if "scores" in FAKE else {}
    facts: dict[str, Any] = {"step": step, "epoch": 0, "world_size": WORLD, "metrics": metrics, "dropped_rows": 3}
    place: dict[str, Any] = {"training": LAUNCH.training, "generation": LAUNCH.generation}
    identity = write_manifest("checkpoint", facts, {}, [entry])[1]
    coded = read_codes(SCRATCH).coded(layout.manifest(uri), {"id": identity})
    ref = writer.seal("checkpoint", facts, {**place, **({FIELD: coded[FIELD]} if FIELD in coded else {})})
    checkpoints.append(Checkpoint(ref=ref, key="k", **place, **facts))


def note_stop(*_: Any) -> None:
    global stopping
    stopping = True


def is_stopping() -> bool:
    return stopping or stop_file(SCRATCH).exists()


def fail(fault: dict[str, Any]) -> None:
    kind = fault["kind"]
    # Faults come once the conductor has committed what they must not lose.
    while "after" in fault and fault["after"] > max(committed(), default=-1):
        time.sleep(0.02)
    while fault.get("together") and len(ranks_that_stepped()) < WORLD:
        time.sleep(0.02)
    match kind:
        case "bug":
            raise ZeroDivisionError("a bug of ours")
        case "oom":
            raise OutOfMemory("A rank ran out of memory: no more.")
        case "broken":
            raise NodeLost("A device of this machine is broken.", details={"broken": True})
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "user" | "user meanwhile":
            while kind == "user meanwhile" and not ((first := RankFiles(SCRATCH, 0).report()) and first.saving):
                time.sleep(0.02)
            raise UserCodeError("ValueError in the model.", user_traceback="Traceback: the user's")
        case "slow save":
            save_slowly()
        case "wait":
            while not Path(fault["for"]).exists():
                time.sleep(0.02)
        case "storage":
            raise StorageUnavailable("the store is away.")
        case "exit":
            os._exit(0)
        case "sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
        case "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill agent":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(600)
        case "terminate agent":
            os.kill(os.getppid(), signal.SIGTERM)
        case "kill node" | "terminate node":
            number = signal.SIGKILL if kind == "kill node" else signal.SIGTERM
            os.kill(supervisor(), number)
        case "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)"])
            time.sleep(600)
        case _:
            raise AssertionError(kind)


def save_slowly() -> None:
    report("training", 7, saving=True)
    while not RankFiles(SCRATCH, 1).has_error:
        time.sleep(0.02)
    time.sleep(3)
    checkpoint(7)
    report("training", 7)
    time.sleep(600)


def committed() -> list[int]:
    latest = STORE.pointer(layout.latest(LAUNCH.training)).read()
    return [] if latest is None else [entry["step"] for entry in latest.value["checkpoints"]]


def ranks_that_stepped() -> set[str]:
    lines = [line.split() for line in Path(FAKE["trace"]).read_text().splitlines()]
    return {rank for generation, rank, _ in lines if int(generation) == LAUNCH.generation}


def supervisor() -> int:
    """The process of this rank's node."""
    meeting = STORE.read_as(layout.rollcall(LAUNCH.training, LAUNCH.generation), Meeting.from_json)
    return meeting.nodes[RANK // LAUNCH.devices].pid


if __name__ == "__main__":
    try:
        main()
    except TrainwrightError as error:
        FILES.write_error(error)
        sys.exit(error.exit_code)
