"""The hooks of a module, a data module and callbacks are called in the order and the state of Lightning's own Trainer.

What differs by design is in the table of `docs/train.md` under "Hooks", and taken out here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.gang import Gang, torchrun, wait

PROJECT = Path(__file__).parent / "project"
STEP = 4  # in the first epoch of six
# Hooks of saving: a checkpoint is saved between two steps, and tried before the first.
SAVING = {"on_save_checkpoint", "state_dict"}
# After the last hook of the training, the loss on the held batch is computed.
HELD = ["on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer", "training_step"]
TRAINER = {"accelerator": "cpu", "max_epochs": 2, "num_sanity_val_steps": 2, "gradient_clip_val": 1.0}
OWN_DATA = {"data": {"class_path": "recorded.Data"}}
READY = ("prepare_data", "setup", "configure_model")


def without_ours(calls: list[list[Any]]) -> list[list[Any]]:
    """The calls without those of the table."""
    calls = [call for call in calls if call[1] not in SAVING]
    end = next((at for at, call in enumerate(calls, 1) if call[:2] == ["module", "on_train_end"]), len(calls))
    held = [call[1] for call in calls[end : end + len(HELD)]]
    return calls[:end] + calls[end + len(HELD) :] if held == HELD else calls


class Recorder:
    """Ranks that record what is asked for, ours and Lightning's one after the other in the same processes."""

    def __init__(self, folder: Path, dataset: tuple[Path, dict[str, Any]], ranks: int) -> None:
        self.folder, self.dataset, self.ranks = folder, dataset, ranks
        self.gangs: dict[tuple[str, bool], Gang] = {}

    def gang(self, by: str, own: bool) -> Gang:
        if (by, own) not in self.gangs:
            lightning = {
                "model": {"class_path": "recorded.Net"},
                "trainer": {**TRAINER, "callbacks": [{"class_path": "recorded.OfConfig"}]},
                **(OWN_DATA if own else {}),
            }
            train = {
                "lightning": lightning,
                "global_batch_size": 16,
                "seed": 3,
                "collective_timeout_s": 60,
                "checkpoint": {"every_steps": STEP},
                **({} if own else {"micro_batch_size": 4, "batch": ["x", "y"]}),
            }
            given: Any = (None, None) if own else (self.dataset[1], self.dataset[0])
            self.gangs[by, own] = Gang(self.folder / f"{by}-{own}", train, PROJECT, *given, ranks=self.ranks)
        return self.gangs[by, own]

    def record(self, cases: dict[str, dict[str, Any]]) -> None:
        """Record these cases, by name."""
        recordings = []
        for name, case in cases.items():
            for by in ("ours", "plain"):
                own = case.get("own", False)
                recordings.append(
                    {
                        "environment": self.gang(by, own).tell(len(recordings)),
                        "record": str(self.folder / f"{name}-{by}"),
                        "by": by,
                        "checkpoints": str(self.folder / f"saved-{own}"),
                        **case,
                    }
                )
        environment = {**recordings[0]["environment"], "CASES": json.dumps(recordings)}
        wait(torchrun("tests.support.recorded_hooks", self.ranks, environment, PROJECT))
        log = Path(recordings[0]["environment"]["TRAINWRIGHT_SCRATCH"]) / "log.txt"
        written = {path.name for path in self.folder.glob("*.jsonl")}
        wanted = {
            f"{name}-{by}-{rank}.jsonl" for name in cases for by in ("ours", "plain") for rank in range(self.ranks)
        }
        assert wanted <= written, log.read_text()[-6000:]

    def read(self, name: str, by: str, rank: int) -> list[list[Any]]:
        """What a process wrote down, in order: owner, hook, what it was given, what the Trainer answered."""
        lines = (self.folder / f"{name}-{by}-{rank}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


CASES: dict[str, dict[str, Any]] = {
    "fit": {"what": "fit", "save_every": STEP},
    "fit with a data module": {"what": "fit", "save_every": STEP, "own": True},
    "test": {"what": "test"},
    "predict": {"what": "predict"},
}
ON_ONE_RANK: dict[str, dict[str, Any]] = {
    "test with a data module": {"what": "test", "own": True},
    # As verify and export make a module ready, of which no Trainer runs a loop.
    "ready to fit": {"what": "fit", "own": True, "ready": True},
    "ready to predict": {"what": "predict", "own": True, "ready": True},
}
RESUMED = {"from a checkpoint on": {"what": "fit", "resume": STEP}}


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, dataset: Any) -> Recorder:
    recorder = Recorder(tmp_path_factory.mktemp("hooks"), dataset, request.param)
    # Lightning's own Trainer refuses the loader of the last case, after the hooks that are compared.
    recorder.record({**CASES, **RESUMED, **(ON_ONE_RANK if request.param == 1 else {})})
    return recorder


def test_the_calls_are_those_of_lightnings_trainer(recorded: Recorder) -> None:
    cases = {**CASES, **RESUMED, **(ON_ONE_RANK if recorded.ranks == 1 else {})}
    compared = [(name, rank) for name, case in cases.items() if not case.get("ready") for rank in range(recorded.ranks)]
    for name, rank in compared:
        ours, plain = (without_ours(recorded.read(name, by, rank)) for by in ("ours", "plain"))
        assert len(plain) > 30
        for call in plain:
            if call[1] in ("test_step", "predict_step"):  # ours gets the batch's number among those of all ranks
                call[2][0] = call[2][0] * recorded.ranks + rank
        for at, (one, other) in enumerate(zip(ours, plain, strict=False)):
            before = [call[:2] for call in plain[max(0, at - 3) : at]]
            assert one == other, f"{name}: call {at} on rank {rank}, after {before}"
        left = (ours + plain)[min(len(ours), len(plain)) :]
        assert len(ours) == len(plain), f"{name}: {[call[:2] for call in left][:5]} on rank {rank}"
    if recorded.ranks == 1:
        for stage in ("fit", "predict"):
            ours, plain = (recorded.read(f"ready to {stage}", by, 0) for by in ("ours", "plain"))
            expected = [call for call in plain if call[0] in ("module", "data") and call[1] in READY]
            assert ours == expected[: len(ours)], stage
            assert len(ours) == 5
