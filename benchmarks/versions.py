"""This version beside another one: seconds of the same work in both, in turns.

    git worktree add ../before COMMIT
    python benchmarks/versions.py [../before] [--quick]

Each checkout's own benchmarks do the work, in a process of its own, with the packages of this environment: loader (an
epoch of rows from memory and from shards), step (a training of a small perceptron), checkpoint (a whole save and a
verified load of 500 MB), validate (a scan of 2,000,000 rows, with the profile), shard (the stage on the same rows). A
ratio above 1 says that this version is faster. Without a checkout it is compared with itself, which shows the noise.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SERVE = "serve"
NO_SHAKEDOWN = "TRAINWRIGHT_NO_SHAKEDOWN"  # its few steps end before those that are timed
WORKS = ("loader, memory", "loader, shards", "step", "checkpoint, save", "checkpoint, load", "validate", "shard")


def works(folder: Path, quick: bool) -> dict[str, Callable[[], float]]:
    """The work by its name, by the benchmarks of the checkout first on the path; seconds, a loader's of 1,000 rows."""
    module = importlib.import_module
    common, validate, stage = module("common"), module("validate"), module("shard_stage")
    rows = 200_000 if quick else 2_000_000
    for name in ("loader", "validate", "shard", "step"):
        (folder / name).mkdir()
    arrays = common.arrays("b", common.QUICK_ROWS["b"] if quick else 1_000_000)
    loaders = module("loader").ours_of("b", module("shard").table_of("b", arrays), folder / "loader")
    save = module("checkpoint").Work(folder, 50 * 10**6 if quick else 500 * 10**6)
    load = next(run for name, run in save.prepare_loads(save).items() if name.startswith("ours"))
    contract = validate.Contenders(validate.made(rows), folder / "validate/rows.parquet")
    stage.store_rows(rows, folder / "shard/rows.parquet")
    perceptron = module("contenders").Training(
        folder / "step", model="Perceptron", init_args={}, columns={name: arrays[name][:20_000] for name in arrays},
        batch_size=32, warm=200, steps=1_000 if quick else 5_000,
    )  # fmt: skip
    done: list[Callable[[], float]] = [
        lambda: 1000 * loaders["ours, global, memory"](),
        lambda: 1000 * loaders["ours, block, shards"](),
        lambda: perceptron.whole("ours")["step_s"],
        save.ours_save,
        load,
        contract.with_profile,
        stage.Stage(folder / "shard/rows.parquet", folder / "shard").ours,
    ]
    return dict(zip(WORKS, done, strict=True))


class Version:
    """A process that does one checkout's work when it is asked."""

    def __init__(self, checkout: Path, folder: Path, quick: bool) -> None:
        folder.mkdir()
        path = f"{checkout / 'benchmarks'}:{checkout}"
        self._process = subprocess.Popen(
            # -P: else this script's own folder would come before the path.
            [sys.executable, "-P", HERE, SERVE, str(folder), str(int(quick))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "TRAINWRIGHT_HOME": f"{folder}/home", NO_SHAKEDOWN: "1"},
        )

    def work(self, name: str) -> float:
        """Have one turn done; its seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"name": name}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or '{"error": "it died"}')
        if "error" in answer:
            raise SystemExit(f"{name}: {answer['error']}")
        return float(answer["value"])


def main(before: Path, *, quick: bool) -> None:
    """Measure and print."""
    import common
    from noise import Watch

    watch = Watch()
    print(common.machine())
    ratios: dict[str, Any] = {}
    with common.scratch() as folder:
        versions = {
            "before": Version(before, folder / "before", quick),
            "now": Version(HERE.parents[1], folder / "now", quick),
        }
        for name in (
            "loader, memory",
            "loader, shards",
            "step",
            "checkpoint, save",
            "checkpoint, load",
            "validate",
            "shard",
        ):
            contenders = {which: partial(version.work, name) for which, version in versions.items()}
            for warm_up in contenders.values():
                warm_up()
            taken = common.interleaved(contenders, 5 if quick else 9)
            common.show(name, {which: [1e6 * each for each in values] for which, values in taken.items()}, "µs")
            ratios[name] = common.ratio(taken["before"], taken["now"])
    common.conclude(ratios, watch.end(all_reaped=False), quick=quick)


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        import common

        todo = works(Path(sys.argv[2]), sys.argv[3] == "1")
        common.serve(lambda name: todo[name]())
    else:
        named = [Path(word).resolve() for word in sys.argv[1:] if word != "--quick"]
        main(*named or [HERE.parents[1]], quick="--quick" in sys.argv)
