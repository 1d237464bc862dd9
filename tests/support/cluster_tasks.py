"""Other machines that do tasks at once, in this process."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from data_contracts.errors import UsageError
from data_contracts.messages.raw_data import ClusterTaskOrder, ClusterTaskOutcome
from infra.cluster_tasks import Cluster, do_cluster_task


class Elsewhere:
    """Does what is ordered at once, in this process; counts the tasks by their kind of work."""

    def __init__(self, folder: Path, field: str = "shards.runner") -> None:
        folder.mkdir()
        self.field = field
        self.cluster, self.ordered = Cluster(folder, 4, self.done), Counter[str]()

    def done(self, order: ClusterTaskOrder) -> None:
        """Do a task; its outcome lies in the folder."""
        self.ordered[order.work] += 1
        outcome = ClusterTaskOutcome()
        try:
            do_cluster_task(self.cluster.folder, order.number, self.field)
        except UsageError as error:
            outcome = ClusterTaskOutcome(error=error.to_json())
        (self.cluster.folder / f"{order.number}.outcome").write_text(json.dumps(outcome.to_json()))
