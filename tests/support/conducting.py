"""Conducts trainings of fake ranks for tests; as a program, one that can be sent signals.

`python -m tests.support.conducting STORE FAKE OPTIONS` prints each progress as a JSON line and exits as the CLI would.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import StorageUnavailable, TrainwrightError
from data_contracts.spec import RetrySpec
from data_contracts.spec.model import SelectSpec
from infra.launch.conductor import GangOutcome, conduct
from infra.launch.generation import Progress
from infra.launch.trail import Trail
from infra.store import Store, Versioned, open_store
from tests.support.foreground import foreground

TRAINING = "trainings/k-0"


@contextlib.contextmanager
def losing_answers(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Moves of the pointer arrive, but nobody hears of it."""
    real = trail._pointer.swap

    def lose_the_answer(expected: Versioned | None, value: Any) -> Versioned:
        real(expected, value)
        raise StorageUnavailable("the answer was lost.")

    with monkeypatch.context() as patch:
        patch.setattr(trail._pointer, "swap", lose_the_answer)
        yield


def run(
    store: Store, fake: dict[str, Any], *, on_progress: Callable[[Progress], None] = lambda p: None, **options: Any
):
    """Conduct a training of fake ranks: 10 steps with a checkpoint each 5 unless `fake` says otherwise."""
    trace = str(Path(store.uri).parent / "trace")
    launch = {
        "entry": "tests.support.fake_rank",
        "nodes": options.pop("nodes", 1),
        "devices": options.pop("devices", 2),
        "train": {"fake": {"steps": 10, "every": 5, "trace": trace, **fake}, **options.pop("train", {})},
        "heartbeat_s": 0.2,
        **options.pop("launch", {}),
    }
    select = options.pop("select", None)
    outcome: GangOutcome = conduct(
        store,
        TRAINING,
        launch,
        holder=options.pop("holder", "test"),
        retry=RetrySpec(**options.pop("retry", {})),
        keep=options.pop("keep", 2),
        select=SelectSpec(**select) if select else None,
        rollcall_timeout_s=options.pop("rollcall_timeout_s", 60),
        on_progress=on_progress,
        **options,
    )
    return outcome


def steps(store: Store) -> dict[tuple[int, int], list[int]]:
    """The steps that each (generation, rank) took."""
    found: dict[tuple[int, int], list[int]] = {}
    trace = Path(store.uri).parent / "trace"
    for line in trace.read_text().splitlines() if trace.exists() else []:
        generation, rank, step = map(int, line.split())
        found.setdefault((generation, rank), []).append(step)
    return found


def main() -> None:
    foreground()
    store_uri, fake, options = sys.argv[1:]

    def say(progress: Progress) -> None:
        print(json.dumps(asdict(progress)), flush=True)

    try:
        outcome = run(open_store(store_uri), json.loads(fake), on_progress=say, **json.loads(options))
    except TrainwrightError as error:
        print(json.dumps(error.to_json()), flush=True)
        sys.exit(error.exit_code)
    print(json.dumps({"step": outcome.checkpoint.step, "node_seconds": outcome.node_seconds}), flush=True)


if __name__ == "__main__":
    main()
