"""Which rows an evaluation scores, and for which metrics it keeps the truth and the prediction of each."""

from __future__ import annotations

from data_contracts.handoffs import Dataset
from tasks.evidence.resampled_metrics import keeps_pairs
from tasks.run.run import Run
from tasks.stages.gates.test_rows import Sets
from tasks.stages.shard import find_dataset, shard, unmade


def sets_to_score(run: Run, dataset: Dataset | None) -> Sets:
    """The sets to score; UsageError if `shard` has not made the dataset of a set."""
    if dataset is None:
        return {}
    wanted = run.spec.evaluate
    sets = {"": (dataset, wanted.split)}
    for name, one in wanted.sets.items():
        if one.split is not None:
            sets[name] = (dataset, one.split)
        else:
            own = find_dataset(run, name)
            if own is None:
                raise shard.first(unmade(name))
            sets[name] = (own, "test")
    return sets


def pairs_of(run: Run) -> list[str]:
    """The metrics whose gate computes them again on some of the rows, so that the pairs of each row are kept."""
    metrics = run.spec.evaluate.metrics
    gates = [gate for gate in run.spec.promote.gates if gate.confidence or gate.slice or gate.max_gap is not None]
    named = {gate.name.rpartition("/")[2] for gate in gates} & metrics.keys()
    return sorted(name for name in named if keeps_pairs(metrics[name].class_path, metrics[name].init_args))
