"""Supervisors that a test starts by hand, with gloo ranks (`gloo_rank.py`): a gang without a conductor."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_contracts.messages.gang import Launch
from infra.gang.rank_files import ADDRESS, NODE_KEY, STORE_OPTIONS, codes_of_generation
from infra.processes.processes import kill_marked, marked_env, module_command, new_mark
from infra.store import Lease, Store, layout, open_store
from tests.support.by_hand import ByHand
from tests.support.speed.children import import_path

TRAINING = "trainings/k-0"


class Nodes:
    """One supervisor for each address, with the ranks that it starts.

    Args:
        inside: the beginning of a command that runs where a node is to be.
        conductor: the address at which the nodes reach this process.
    """

    def __init__(
        self,
        folder: Path,
        addresses: list[str],
        devices: int,
        inside: Callable[[int], list[str]] = lambda node: [],
        conductor: str = "127.0.0.1",
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
        self.hand = ByHand(self.store, launch, conductor)
        key = codes_of_generation(self.store.uri, TRAINING, 0).keys[0].hex()
        self.processes = []
        for node, (address, mark) in enumerate(zip(addresses, self.marks, strict=True)):
            extra = {STORE_OPTIONS: "{}", ADDRESS: address, NODE_KEY: key, "PYTHONPATH": import_path()}
            command = [
                *inside(node),
                *module_command("infra.gang.supervisor", self.store.uri, TRAINING, "0", str(node)),
            ]
            self.processes.append(subprocess.Popen(command, env=marked_env(mark, extra), start_new_session=True))

    def train(self) -> None:
        """Call the roll and wait until every rank has met the others."""
        self.hand.until(self._all_run, what=self._ended)
        self.meeting = self.hand.meet().to_json()
        count = self.hand.launch.nodes * self.hand.launch.devices

        def all_train() -> bool:
            self._all_run()
            training = {rank.rank for beat in self.hand.beats for rank in beat.ranks if rank.phase == "training"}
            return len(training) == count

        self.hand.until(all_train, what=self._ended)

    def end(self) -> list[int]:
        """Let the ranks end, and return the exit codes of the supervisors."""
        self.until.touch()
        return [process.wait(480) for process in self.processes]

    def close(self) -> None:
        """End what still runs."""
        for mark, process in zip(self.marks, self.processes, strict=True):
            kill_marked(mark)
            process.wait(480)
        self.hand.hub.close()

    def _all_run(self) -> bool:
        assert all(process.poll() is None for process in self.processes), self._ended()
        self.hand.hear()
        return len(self.hand.joined) == len(self.processes)

    def _ended(self) -> list[Any]:
        paths = [layout.node_exit(TRAINING, 0, node) for node in range(len(self.marks))]
        return [json.dumps(self.store.read_json(path), indent=1) for path in paths if self.store.exists(path)]
