"""Supervisors that a test starts by hand, with gloo ranks (`gloo_rank.py`): a gang without a conductor."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_contracts.messages.gang import Joined, Launch, Meeting
from infra.gang.rank_files import ADDRESS, STORE_OPTIONS
from infra.processes.processes import kill_marked, marked_env, module_command, new_mark
from infra.store import Lease, Store, layout, open_store
from tests.support.speed.children import import_path
from tests.support.waiting import until

TRAINING = "trainings/k-0"


class Nodes:
    """One supervisor for each address, with the ranks that it starts.

    Args:
        inside: the beginning of a command that runs where a node is to be.
    """

    def __init__(
        self,
        folder: Path,
        addresses: list[str],
        devices: int,
        inside: Callable[[int], list[str]] = lambda node: [],
    ) -> None:
        self.store: Store = open_store(str(folder / "store"))
        self.until, self.marks = folder / "until", [new_mark() for _ in addresses]
        Lease.take(self.store, layout.lease(TRAINING), "test")
        launch = Launch(
            training=TRAINING,
            entry="tests.support.gloo_rank",
            nodes=len(addresses),
            devices=devices,
            heartbeat_s=0.1,
            lease_silence_s=600,
            train={"until": str(self.until)},
        )
        self.store.create_json(layout.launch(TRAINING, 0), launch.to_json())
        self.processes = []
        for node, (address, mark) in enumerate(zip(addresses, self.marks, strict=True)):
            extra = {STORE_OPTIONS: "{}", ADDRESS: address, "PYTHONPATH": import_path()}
            command = [
                *inside(node),
                *module_command("infra.gang.supervisor", self.store.uri, TRAINING, "0", str(node)),
            ]
            self.processes.append(subprocess.Popen(command, env=marked_env(mark, extra), start_new_session=True))

    def train(self) -> None:
        """Call the roll and wait until every rank has met the others."""
        joined = [self._read(layout.joined(TRAINING, 0, node)) for node in range(len(self.marks))]
        nodes = [Joined.from_json(one) for one in joined]
        meeting = Meeting(address=nodes[0].address, port=nodes[0].port, nodes=nodes).to_json()
        self.store.create_json(layout.rollcall(TRAINING, 0), meeting)
        self.meeting = meeting
        for node in range(len(self.marks)):
            number = 0
            while not (beat := self._read(layout.beat(TRAINING, 0, node, number)))["ranks"] or any(
                rank["phase"] != "training" for rank in beat["ranks"]
            ):
                number += 1

    def end(self) -> list[int]:
        """Let the ranks end, and return the exit codes of the supervisors."""
        self.until.touch()
        return [process.wait(480) for process in self.processes]

    def close(self) -> None:
        """End what still runs."""
        for mark, process in zip(self.marks, self.processes, strict=True):
            kill_marked(mark)
            process.wait(480)

    def _read(self, path: str) -> dict[str, Any]:
        def is_there() -> bool:
            assert all(process.poll() is None for process in self.processes), self._ended()
            return self.store.exists(path)

        until(is_there, what=lambda: f"no {path}")
        return self.store.read_json(path)

    def _ended(self) -> list[Any]:
        paths = [layout.node_exit(TRAINING, 0, node) for node in range(len(self.marks))]
        return [json.dumps(self.store.read_json(path), indent=1) for path in paths if self.store.exists(path)]
