"""Requests to, and answers of, children that work on a model: importing, verifying and evaluating it.

Children that read raw rows have theirs in `data_contracts.messages.raw_data`, which imports the pipeline spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from pydantic import Field, model_validator

from data_contracts.handoffs import Checkpoint, Dataset, Evaluation, HandOff, Record, Ref
from data_contracts.messages import Message

R = TypeVar("R", bound=Message)
A = TypeVar("A", bound=HandOff)


@dataclass(frozen=True)
class Child(Generic[R, A]):
    """A module that does one job as `python -m MODULE REQUEST ANSWER`, and the types of its request and answer."""

    module: str
    request: type[R]
    answer: type[A]


class StoreAddress(Record):
    """What a process needs to open the store: its URI, the options and the pointers' database; credentials are named.

    A request names it in a field called `store`: that decides which credentials its process gets.
    """

    uri: str
    options: dict[str, object] = Field(default_factory=dict)
    pointers: str | None = None


class LaidOut(Record):
    """Fields of a request that can be carried out on another machine: it names code and datasets, not their folders.

    Attributes:
        code: the bundle of the user's project, in which the child runs.
        paths: id of a bundle or dataset → its folder on the machine that carries the request out; set by `at`.
    """

    code: Ref
    paths: dict[str, str] = Field(default_factory=dict)

    @property
    def needs(self) -> list[Ref | Dataset]:
        """The code and the datasets that must be laid out; the project comes first."""
        return [self.code]

    def at(self, paths: Mapping[str, str]) -> Self:
        """The same request with the folders of what it needs."""
        return self.model_copy(update={"paths": dict(paths)})

    def path(self, thing: Ref) -> Path:
        """Folder of a bundle or dataset on this machine."""
        return Path(self.paths[thing.id])

    @property
    def project(self) -> Path:
        """Folder of the user's project."""
        return self.path(self.code)


class Advanced(Message):
    """A child's report that it has done a piece of work; what it does next may be `long`.

    Attributes:
        done: pieces of work so far (batches, files, tensors); grows.
        long: whether the next piece may take as long as loading a model does.
    """

    done: int
    long: bool = False


class OfCheckpoint(LaidOut, Message):
    """A request about a checkpoint.

    Attributes:
        train: settings that it was trained with, the Lightning config inlined.
    """

    store: StoreAddress
    checkpoint: Checkpoint
    train: dict[str, Any]


class Sealing(Message):
    """A request whose answer is sealed.

    Attributes:
        uri: the directory to write.
    """

    store: StoreAddress
    uri: str
    key: str
    provenance: dict[str, Any]


class VerifyRequest(OfCheckpoint):
    """Load a checkpoint in a clean process.

    Attributes:
        dataset: the one that it was trained on; None with external data.
    """

    dataset: Dataset | None

    @property
    def needs(self) -> list[Ref | Dataset]:
        """The code that trained the checkpoint, and its dataset."""
        return [self.code] if self.dataset is None else [self.code, self.dataset]


class Verified(Message):
    """What verify found in a checkpoint.

    Attributes:
        tensors: how many were loaded into the module.
        bytes: how many were read again.
        loss: on the held batch; None if none was recorded.
        raised: what the module's step raised instead of giving a loss; "" if it raised nothing.
    """

    tensors: int
    bytes: int
    loss: float | None
    raised: str


class ScoredSet(Record):
    """A split of a dataset, to be scored."""

    dataset: Dataset
    split: str

    @property
    def rows(self) -> int:
        """How many rows are scored."""
        return self.dataset.rows(self.split)


class EvaluateRequest(OfCheckpoint, Sealing):
    """Score a checkpoint; the answer is the `Evaluation`.

    Attributes:
        evaluate: the spec's section, as it is sealed.
        sets: name → set; empty with external data.
        code: that trained the checkpoint.
        metrics_code: of the metrics.
        settings: added to the manifest's.
        predictions: whether the predictions of each row are kept.
        pairs: names of the metrics, without a set's, for which the truth and the prediction of each row are kept.
        shown: a metric for which they are kept on the first set, for pages alone; "" for none.
        measures: what is measured of the model itself, such as `latency_ms`.
    """

    evaluate: dict[str, Any]
    sets: dict[str, ScoredSet]
    data_external: bool
    metrics_code: Ref
    settings: dict[str, object]
    predictions: bool = Field(default=False, exclude_if=lambda kept: not kept)
    pairs: list[str] = Field(default=[], exclude_if=lambda names: not names)
    shown: str = Field(default="", exclude_if=lambda name: not name)
    measures: list[str] = Field(default=[], exclude_if=lambda names: not names)

    @property
    def needs(self) -> list[Ref | Dataset]:
        """The code that trained the checkpoint, that of the metrics, and the datasets."""
        return [self.code, self.metrics_code, *(one.dataset for one in self.sets.values())]


class ShakedownRequest(LaidOut, Message):
    """Try a training, and what follows it, on the first rows before it is booked.

    Attributes:
        train: the training's settings with the Lightning config inlined.
        dataset: None with external data.
        train_rows: rows that an epoch has, over all datasets that are mixed.
        whole: whether the datasets have all shards; if not, the first of each split.
        evaluate: the spec's section, as it is sealed.
        sets: name → set; empty with external data.
        first_weights: folder of the files of `train.init_from`; "" for none.
        predictions: whether the predictions of each row will be needed.
        pairs: names of the metrics for which the truth and the prediction of each row will be needed.
        exports: the forms in which the model must run.
        elsewhere: whether the training runs on devices of other machines.
    """

    train: dict[str, Any]
    dataset: Dataset | None
    train_rows: int
    whole: bool
    evaluate: dict[str, Any]
    sets: dict[str, ScoredSet]
    first_weights: str = ""
    predictions: bool = False
    pairs: list[str] = []
    exports: list[str] = []
    elsewhere: bool = False

    @property
    def data_external(self) -> bool:
        """Whether the user's data module reads data of its own."""
        return self.dataset is None

    @property
    def needs(self) -> list[Ref | Dataset]:
        """The code, and the datasets of the training and of the sets."""
        own = [] if self.dataset is None else [self.dataset]
        return [self.code, *own, *(one.dataset for one in self.sets.values())]


class Shaken(Message):
    """What a shakedown saw that ends no training.

    Attributes:
        columns: of the predictions, by set.
        remarks: sentences, also on what could not be tried on this machine.
    """

    columns: dict[str, list[str]] = {}
    remarks: list[str] = []


class RemoteJob(Message):
    """A request on its way to a node, which lays out what it needs and does not read it.

    Attributes:
        request: as `module` reads it, without paths.
        code: bundles that it needs; the project first.
        datasets: datasets that it needs.
    """

    module: str
    request: dict[str, object]
    code: list[Ref] = Field(min_length=1)
    datasets: list[Dataset]

    @classmethod
    def of(cls, module: str, request: LaidOut) -> RemoteJob:
        """A request as a node gets it."""
        code = [thing for thing in request.needs if isinstance(thing, Ref)]
        datasets = [thing for thing in request.needs if isinstance(thing, Dataset)]
        return cls(module=module, request=request.to_json(), code=code, datasets=datasets)

    @property
    def needs(self) -> list[Ref | Dataset]:
        """The code and the datasets that must be laid out."""
        return [*self.code, *self.datasets]

    def request_at(self, paths: Mapping[str, str]) -> dict[str, object]:
        """The request as JSON, with the folders of what it needs; see `LaidOut.at`."""
        return {**self.request, "paths": dict(paths)}

    @model_validator(mode="before")
    @classmethod
    def _from_earlier(cls, value: Any) -> Any:
        """Read the form of earlier Trainwrights, which led to each path by the keys of a request."""
        if not isinstance(value, dict) or "places" not in value:
            return value
        places, request = value["places"], dict(value["request"])
        code = [place["code"] for place in places if "code" in place]
        datasets = [place["dataset"] for place in places if "dataset" in place]
        address = {"uri": request.pop("store"), "options": request.pop("store_options")}
        request["store"] = {**address, "pointers": request.pop("pointers", None)}
        request.pop("dataset_path", None)
        request |= dict(zip(("code", "metrics_code"), code, strict=False))
        return {"module": value["module"], "request": request, "code": code, "datasets": datasets}


VERIFY: Final = Child("training.score.verify_worker", VerifyRequest, Verified)
EVALUATE: Final = Child("training.score.evaluate_worker", EvaluateRequest, Evaluation)
SHAKEDOWN: Final = Child("training.shakedown", ShakedownRequest, Shaken)
