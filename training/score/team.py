"""Several ranks that score one set: each computes whole batches, and rank 0 takes their outcomes in the batches' order.

A batch is computed by one rank, whatever the strategy: with sharded parameters, the others lend it theirs. Every rank
computes equally many batches, because a sharded forward is collective; what it computes beyond the last batch is
dropped. Rank 0 holds the outcomes of one batch at a time. What gets done is reported, so that a process that gets
nothing done is found.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import Strategy
from torch.distributed.tensor import DTensor

from data_contracts.errors import CorruptError, from_json
from data_contracts.handoffs import Checkpoint, Ref
from data_contracts.messages.children import Advanced
from data_contracts.messages.gang import RankLayout
from data_contracts.pipeline_spec.train import mesh_of
from infra.records.handoffs import verify_checkpoint
from infra.store import Manifest, Store
from infra.store.store import WHOLE, Share
from training.checkpoint.files import TensorReader, load_placed_weights
from training.checkpoint.saver import gather
from training.fit.strategies import SealedDDP, ShardedStrategy
from training.loader import OrderedLoader, Split
from training.user.ready import plain_trainer

# Reading a large checkpoint may take hours. A rank that hangs meanwhile is found by its progress, not by this limit.
_READING_TIMEOUT = timedelta(days=7)
EVERY_S = 0.5


@dataclass
class Team:
    """The ranks that score together, and this rank's place among them.

    Attributes:
        mesh: replicas of the parameters, and ranks over which each is sharded.
        folder: files of the checkpoint, once they are there; sharded parameters are read from it.
        loaded: tensors of it that this rank has, or has a part of.
    """

    rank: int
    world_size: int
    local_world_size: int
    nodes: int
    strategy: str
    mesh: tuple[int, int]
    shard_modules: list[str] | int | None
    timeout_s: float
    folder: Path = Path()
    loaded: int = 0
    _group: dist.ProcessGroup | None = None
    _reading_group: dist.ProcessGroup | None = None

    @property
    def sharded(self) -> bool:
        """Whether ranks hold parts of the parameters."""
        return self.mesh[1] > 1

    @property
    def share(self) -> Share:
        """This rank's share of what all ranks divide."""
        return Share(self.rank, self.world_size)

    @property
    def share_on_node(self) -> Share:
        """This rank's share of what the ranks of each node divide."""
        return Share(self.rank % self.local_world_size, self.local_world_size)

    def trainer_settings(self) -> dict[str, object]:
        """Arguments of a Trainer that runs this rank's part."""
        strategy: Strategy = _Shards(self) if self.sharded else _Replica(self)
        return {
            "strategy": strategy,
            "devices": self.world_size // self.nodes,
            "num_nodes": self.nodes,
            "use_distributed_sampler": False,
            **({"inference_mode": False} if self.sharded else {}),
        }

    def connect(self, train: Mapping[str, Any]) -> None:
        """Connect the ranks. Collective; to be called first, because until then a rank waits only `timeout_s`."""
        trainer = plain_trainer(train, [], {**self.trainer_settings(), "strategy": _Replica(self)})
        trainer.strategy.setup_environment()
        self._reading_group = dist.new_group(backend="gloo", timeout=_READING_TIMEOUT)

    def first_of(self, text: str) -> str:
        """The text of the first rank that has one, on every rank; "" if none has. Collective, after `connect`."""
        return next(filter(None, gather(text, self._reading_group)), "")

    def in_order(self, real: bool, facts: Any, tensors: list[torch.Tensor]) -> Iterator[tuple[Any, list[torch.Tensor]]]:
        """Give rank 0 the facts (JSON) and tensors of every rank's batch, in the batches' order; others get nothing.

        Collective: to be exhausted on every rank.
        """
        if self._group is None:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout_s))
        own = [one.detach().cpu().contiguous() for one in tensors]
        kinds = [[str(one.dtype).removeprefix("torch."), list(one.shape)] for one in own]
        for rank, (is_real, said, shapes) in enumerate(gather([real, facts, kinds], self._group)):
            if not is_real:
                continue
            if self.rank == 0:
                yield said, own if rank == 0 else [self._receive(rank, *kind) for kind in shapes]
            elif self.rank == rank:
                for one in own:
                    if one.numel():
                        dist.send(one.reshape(-1).view(torch.uint8), 0, group=self._group)

    def _receive(self, rank: int, kind: str, shape: list[int]) -> torch.Tensor:
        found = torch.empty(shape, dtype=getattr(torch, kind))
        if found.numel():
            dist.recv(found.reshape(-1).view(torch.uint8), rank, group=self._group)
        return found

    def load(self, module: L.LightningModule, read: Callable[[str], torch.Tensor]) -> None:
        """Load this rank's part of the parameters."""
        self.loaded = load_placed_weights(module, self.folder, read)


@contextmanager
def raise_on_all(team: Team | None, share: Share = WHOLE) -> Iterator[Callable[[], None]]:
    """Do a piece of work on every rank; a CorruptError is raised on all, as one process would raise it. Collective.

    Of several faults, the one in the earliest item is raised, because one process would meet it first.

    Args:
        share: of the items of the work. The function that is given is to be called after each of them.
    """
    if team is None:
        yield lambda: None
        return
    done, fault = 0, None

    def checked() -> None:
        nonlocal done
        done += 1

    try:
        yield checked
    except CorruptError as error:
        fault = error
    mine = None if fault is None else [share.position(done), fault.to_json()]
    faults = [one for one in gather(mine, team._reading_group) if one is not None]
    if faults:
        raise from_json(min(faults, key=lambda one: one[0])[1]) from fault


def read_again(store: Store, checkpoint: Checkpoint, progress: Progress, team: Team | None) -> Manifest:
    """Check a checkpoint's bytes against its seal; the ranks of each node divide the files. Collective.

    Raises:
        CorruptError: as `verify_checkpoint`, on all ranks.
    """
    share = WHOLE if team is None else team.share_on_node
    with raise_on_all(team, share) as checked:

        def on_file() -> None:
            checked()
            progress.moved(long=True)

        return verify_checkpoint(store, checkpoint, on_file, share)


def local_copy(store: Store, ref: Ref, team: Team | None) -> Path:
    """The folder with an artifact's files; of a remote store, the first rank of each node copies them. Collective."""
    if team is not None:
        with raise_on_all(team):
            if team.share_on_node.number == 0:
                store.local(ref)
    with raise_on_all(team):
        return store.local(ref)


class Dealt(OrderedLoader):
    """A rank's part of the batches that one process would score: every so many-th batch, equally many on each rank."""

    def __init__(self, split: Split, batch_size: int, team: Team) -> None:
        super().__init__(split, batch_size)
        every, size = self.bounds, team.world_size
        self._rank, self._size, self._count = team.rank, size, len(every)
        rounds = range(0, len(every), size)
        # Without a batch of its own in the last round, a rank computes rank 0's.
        self.bounds = [every[at + team.rank] if at + team.rank < len(every) else every[at] for at in rounds]

    def place(self, position: int) -> int:
        """Number of the batch among all, if it were computed by one process."""
        return position * self._size + self._rank

    def is_real(self, position: int) -> bool:
        """Whether the batch counts on this rank."""
        return self.place(position) < self._count


class _TruePlaces(Strategy):
    """Gives a step the batch's number among those of all ranks."""

    _team: Team

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().predict_step(*self._placed(args), **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().test_step(*self._placed(args), **kwargs)

    def _placed(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args if len(args) < 2 else (args[0], args[1] * self._team.world_size + self._team.rank, *args[2:])


class _Replica(_TruePlaces, SealedDDP):
    def __init__(self, team: Team) -> None:
        super().__init__(timeout=timedelta(seconds=team.timeout_s))
        self._team = team


class _Shards(_TruePlaces, ShardedStrategy):
    def __init__(self, team: Team) -> None:
        super().__init__(team.shard_modules, team.mesh, timedelta(seconds=team.timeout_s))
        self._team = team

    def _shard(self, module: L.LightningModule) -> None:
        # It stays sharded after the Trainer of an earlier metric or set, whose `setup` may have changed its weights.
        if not any(isinstance(one, DTensor) for one in module.parameters()):
            super()._shard(module)
        with TensorReader(self._team.folder) as reader:
            self._team.load(module, self.placed_reader(reader))


def team_of(layout: RankLayout, environ: Mapping[str, str], devices: int) -> Team:
    """The team of a launch.

    Args:
        layout: the launch's `train`: strategy, shard_modules, shard_ranks and collective_timeout_s.
        environ: torchrun's variables of this rank.
        devices: ranks of each node.
    """
    world_size, strategy = int(environ["WORLD_SIZE"]), layout["strategy"]
    return Team(
        rank=int(environ["RANK"]),
        world_size=world_size,
        local_world_size=int(environ["LOCAL_WORLD_SIZE"]),
        nodes=world_size // devices,
        strategy=strategy,
        mesh=mesh_of(strategy, layout.get("shard_ranks") or devices, world_size),
        shard_modules=layout.get("shard_modules"),
        timeout_s=layout["collective_timeout_s"],
    )


class Progress:
    """Counts pieces of work; reports the first, and at most every half second, or where a long piece begins or ends."""

    def __init__(self, report: Callable[[Advanced], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self._done, self._long, self._told = 0, True, -math.inf

    def moved(self, *, long: bool = False) -> None:
        """A piece of work is done; `long`: the next may take as long as loading a model does."""
        self._done += 1
        now = self._clock()
        if long != self._long or now - self._told >= EVERY_S:
            self._long, self._told = long, now
            self._report(Advanced(done=self._done, long=long))


class CountBatches(L.Callback):
    """Counts scored batches; the user's hooks at the end of an epoch may take long."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_predict_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """A batch is scored."""
        self._progress.moved()

    def on_predict_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        """Hooks, the metrics' results and the next set follow."""
        self._progress.moved(long=True)

    on_test_batch_end, on_test_epoch_end = on_predict_batch_end, on_predict_epoch_end
