"""Conducts trainings of fake ranks for tests; as a program, one that can be sent signals.

`python -m tests.support.conducting STORE FAKE OPTIONS` prints each progress as a JSON line, also into `said` in the
`folder` of the options, and exits as the CLI would.
With ELSEWHERE in its environment, its leases are those of a process of another machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts.errors import StorageUnavailable, TrainwrightError
from data_contracts.messages.gang import Launch
from data_contracts.pipeline_spec import RetrySpec
from data_contracts.pipeline_spec.train import SelectSpec
from infra.gang.conductor import GangOutcome, TrainingRequest, conduct
from infra.gang.ledger import Ledger
from infra.gang.members import Progress
from infra.gang.membership import Launcher, Placement
from infra.launchers.kubernetes import KubernetesLauncher
from infra.launchers.slurm import SlurmLauncher
from infra.launchers.ssh import SshLauncher
from infra.processes import processes
from infra.store import Store, Versioned, open_store
from tests.support.processes import foreground

if TYPE_CHECKING:
    import pytest  # a fifth of a second in each process that this is

TRAINING = "trainings/k-0"
ELSEWHERE = "CONDUCTS_ELSEWHERE"
ELSEWHERE_BY: dict[str, Callable[[Placement], Launcher]] = {
    "slurm": SlurmLauncher,
    "ssh": SshLauncher,
    "kubernetes": KubernetesLauncher,
}


@contextlib.contextmanager
def losing_answers(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Moves of the pointer arrive, but nobody hears of it."""
    real = ledger._pointer.swap

    def lose_the_answer(expected: Versioned | None, value: Any) -> Versioned:
        real(expected, value)
        raise StorageUnavailable("the answer was lost.")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._pointer, "swap", lose_the_answer)
        yield


def run(
    store: Store, fake: dict[str, Any], *, on_progress: Callable[[Progress], None] = lambda p: None, **options: Any
):
    """Conduct a training of fake ranks: 10 steps with a checkpoint each 5 unless `fake` says otherwise."""
    trace = str(Path(store.uri).parent / "trace")
    # A busy machine may hold up a node or a rank for longer than usual limits.
    settings: dict[str, Any] = {"heartbeat_s": 0.2, "silence_s": 120, "hang_s": 300, **options.pop("launch", {})}
    launch = Launch(
        training=TRAINING,
        entry="tests.support.fake_rank",
        nodes=options.pop("nodes", 1),
        devices=options.pop("devices", 2),
        train={"fake": {"steps": 10, "every": 5, "trace": trace, **fake}, **options.pop("train", {})},
        **settings,
    )
    if (place := options.pop("placement", None)) is not None:
        options["launcher"] = ELSEWHERE_BY[place.pop("launcher")](Placement(section="train", **place))
    select = options.pop("select", None)
    request = TrainingRequest(
        launch=launch,
        holder=options.pop("holder", "test"),
        retry=RetrySpec(**options.pop("retry", {})),
        keep=options.pop("keep", 2),
        select=SelectSpec(**select) if select else None,
        rollcall_timeout_s=options.pop("rollcall_timeout_s", 60),
        on_progress=on_progress,
        **options,
    )
    outcome: GangOutcome = conduct(store, request)
    return outcome


def steps(store: Store) -> dict[tuple[int, int], list[int]]:
    """The steps that each (generation, rank) took."""
    return steps_in(Path(store.uri).parent)


def steps_in(folder: Path) -> dict[tuple[int, int], list[int]]:
    """The same, for a training that leaves its trace in `folder`."""
    found: dict[tuple[int, int], list[int]] = {}
    trace = folder / "trace"
    for line in trace.read_text().splitlines() if trace.exists() else []:
        generation, rank, step = map(int, line.split())
        found.setdefault((generation, rank), []).append(step)
    return found


def main() -> None:
    foreground()
    if os.environ.get(ELSEWHERE):
        processes._place = lambda: "0" * 16
    store_uri, fake, options = sys.argv[1:]

    settings = json.loads(options)
    folder = settings.pop("folder", None)

    def say(value: dict[str, Any]) -> None:
        line = json.dumps(value)
        print(line, flush=True)
        if folder is not None:
            with Path(folder, "said").open("a") as said:
                said.write(f"{line}\n")

    try:
        outcome = run(
            open_store(store_uri), json.loads(fake), on_progress=lambda progress: say(asdict(progress)), **settings
        )
    except TrainwrightError as error:
        say(error.to_json())
        sys.exit(error.exit_code)
    last = {"step": outcome.checkpoint.step, "generations": outcome.generations, "node_seconds": outcome.node_seconds}
    say(last)


if __name__ == "__main__":
    main()
