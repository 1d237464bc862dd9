"""The inputs of a run, looked up once at its start and never again (`runs/<run_id>/resolved.json`), and its recipe.

The recipe of a model is everything that decides it besides its code and data; `trainwright reproduce` reads it. It is
sealed under `recipes/` by the run that launches a training or makes a version, whose provenance names it.
"""

from __future__ import annotations

import operator
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Dataset, Ref, SourceFile, StoredSuite
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.price_book import Amount
from data_contracts.records import HandOff, Record
from data_contracts.run_report import Trigger


class Price(Record):
    """What a node costs, as the price book said at the start of the run.

    Attributes:
        machine: its kind in the book; "" if the book does not say which kind the pool has.
        per_hour: of the whole node; None if it is unknown, which is not 0.
        price_date: the day since which the price holds; "" if the price is unknown.
        pool: the Prefect work pool of the node; "": it is the machine that carries the run out.
        devices: accelerators of the node; 0 for CPU only, and if the machine is unknown.
        watts: power of the node at work, as the book states it; None if it does not.
        g_per_kwh: CO2 equivalent of a kilowatt-hour where the node is, since the day `carbon_date`; None if unknown.
    """

    machine: str
    # Bounded, so that a record that somebody changed charges nothing negative and no infinite sum.
    per_hour: Amount | None
    price_date: str
    currency: str = Field(default="USD", exclude_if=lambda currency: currency == "USD")
    region: str = Field(default="", exclude_if=operator.not_)
    term: Literal["on-demand", "spot"] = Field(default="on-demand", exclude_if=lambda term: term == "on-demand")
    pool: str = Field(default="", exclude_if=operator.not_)
    devices: int = Field(default=0, ge=0, le=10**6, exclude_if=operator.not_)
    watts: Amount | None = Field(default=None, exclude_if=lambda known: known is None)
    g_per_kwh: Amount | None = Field(default=None, exclude_if=lambda known: known is None)
    carbon_date: str = Field(default="", exclude_if=operator.not_)

    @model_validator(mode="before")
    @classmethod
    def _earlier(cls, value: Any) -> Any:
        """A price of an earlier run: in USD, and 0 without a day where there was none."""
        if not isinstance(value, dict) or "usd_per_hour" not in value:
            return value
        rest = {name: one for name, one in value.items() if name != "usd_per_hour"}
        return {**rest, "per_hour": value["usd_per_hour"] if value.get("price_date") else None}

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        """In USD under the name that earlier versions wrote and read, so that their records stay the same bytes."""
        written = write(self)
        if self.currency == "USD":
            written["usd_per_hour"] = written.pop("per_hour")
        return written

    @property
    def knows_devices(self) -> bool:
        """Whether the number of accelerators is known: without a machine, 0 says nothing."""
        return bool(self.machine)

    @property
    def place(self) -> str:
        """The machine in words, also if it is unknown."""
        if self.machine:
            return self.machine
        return f"the pool {self.pool}, which the price book does not have" if self.pool else "an unknown machine"


# Of a place of which the records of a run say nothing.
UNKNOWN_PRICE = Price(machine="", per_hour=None, price_date="")


class StoreRates(Record):
    """What the store of a run costs, as the price book said at the start of the run; None is unknown, and not 0.

    Attributes:
        region: where it lies; "" if the book does not say.
        price_date: the day since which the prices hold.
    """

    price_date: str
    currency: str
    region: str = Field(default="", exclude_if=operator.not_)
    per_gb_month: Amount | None = Field(default=None, exclude_if=lambda known: known is None)
    put_per_1000: Amount | None = Field(default=None, exclude_if=lambda known: known is None)
    get_per_1000: Amount | None = Field(default=None, exclude_if=lambda known: known is None)
    egress_per_gb: Amount | None = Field(default=None, exclude_if=lambda known: known is None)


class DriftReference(Record):
    """The earlier data that `contract.drift` names.

    Attributes:
        name: for a sentence.
        contract: the contract report beside which its profile is sealed.
        path: of a profile's file, from the spec's folder, and the digest of its content.
        note: why there is nothing to compare with; "" if there is.
    """

    name: str
    contract: Ref | None = None
    path: str | None = None
    digest: str | None = None
    note: str = ""


class CheckpointInterval(Record):
    """The seconds between checkpoints that `train.checkpoint: auto` stands for, and the figures that they come from."""

    every_s: float = Field(gt=0, allow_inf_nan=False)
    why: str


class Resolved(HandOff):
    """The inputs of a run.

    Attributes:
        spec: the spec after overrides, as JSON.
        root: the spec's folder, to which relative paths refer.
        window: start and end in ISO, or None.
        files: the raw files, in reading order; `sets` has those of the named evaluation sets.
        suite: the contract's suite, loaded; `set_suites` has those that evaluation sets name.
        features, predictions: the suites of `contract.features` and `contract.predictions`, loaded.
        lightning: the LightningCLI config, loaded.
        code: the sealed bundle of the user's project; keys contain its `code_digest`.
        champion: the alias's model version at the start.
        mixture: the other datasets that `train.loader.mixture` names.
        init_from: the checkpoint, or the imported weights, that `train.init_from` names.
        drift: the earlier data that `contract.drift` names.
        price: of a node that trains.
        prices: of the other places where the run does work, by section; `here` is the machine that carries it out.
            Empty in runs of an earlier Trainwright.
        checkpoint: what `train.checkpoint: auto` stands for; None without it.
        store_rates: what the store costs, as an earlier Trainwright recorded it.
        fresh: whether the run was asked for a training of its own (`--new`).
    """

    run_id: str
    spec: dict[str, Any]
    spec_path: str
    root: str
    store: str
    window: tuple[str, str] | None
    files: list[SourceFile]
    sets: dict[str, list[SourceFile]]
    suite: StoredSuite | None
    lightning: dict[str, Any]
    code: Ref
    code_digest: str
    champion: Ref | None
    price: Price
    trigger: Trigger
    actor: str
    commit: str | None
    dirty: bool
    lock_digest: str
    started: str
    fresh: bool = False
    mixture: dict[str, Dataset] = Field(default_factory=dict)
    init_from: Ref | None = None
    drift: DriftReference | None = Field(default=None, exclude_if=lambda drift: drift is None)
    set_suites: dict[str, StoredSuite] = Field(default_factory=dict, exclude_if=lambda suites: not suites)
    features: StoredSuite | None = Field(default=None, exclude_if=lambda suite: suite is None)
    predictions: StoredSuite | None = Field(default=None, exclude_if=lambda suite: suite is None)

    prices: dict[str, Price] = Field(default_factory=dict, exclude_if=lambda prices: not prices)
    checkpoint: CheckpointInterval | None = Field(default=None, exclude_if=lambda found: found is None)
    store_rates: StoreRates | None = Field(default=None, exclude_if=lambda known: known is None)

    def price_of(self, section: str) -> Price | None:
        """What a node costs that does the work of a section; `here`: of the machine that carries out the run.

        None if the run's records do not say, because an earlier Trainwright wrote them.
        """
        return self.price if section == "train" else self.prices.get(section)

    def pipeline(self) -> PipelineSpec:
        """The spec as a typed object; CorruptError if it is none: others may have written it."""
        try:
            return PipelineSpec.model_validate(self.spec)
        except ValueError as error:
            raise CorruptError(f"The inputs of the run {self.run_id[:80]} hold a spec that cannot be read.") from error


class OwnRevision(Record):
    """The Trainwright that ran.

    Attributes:
        source: BLAKE3 over its own modules, the 64 hexadecimal digits.
        revision, dirty: its Git commit, and whether its files differ from it; None outside of Git.
    """

    source: str
    revision: str | None = None
    dirty: bool = False


class Recipe(HandOff):
    """Everything that decides a run's results besides code and data.

    Attributes:
        resolved: the run's inputs.
        lock: `name==version` of every installed distribution, sorted. Its digest is `resolved.lock_digest`.
        python: the version of the interpreter.
    """

    resolved: Resolved
    lock: list[str]
    python: str
    trainwright: OwnRevision
