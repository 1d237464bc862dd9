"""The bases of what is written as JSON, the evidence that several hand-offs hold, profiles, and records of operation.

A `Record` is frozen; a `HandOff` is a record with a schema number. The evidence: for each gate whether it was met, the
exposure ledger (the comparisons that a set of test rows decided, and what it had spent before), and the comparison of
two profiles as it is sealed with a contract report and shown. Records of operation: deliveries to mirrors, nodes,
sensors and installed packages.

A profile has exact counts in nested bins, so that two profiles are compared on the same bins. Everything in it is
content: the same rows in the same files give the same bytes, whatever the number of threads, the sizes of batches or
the order of the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetPydanticSchema, model_validator

from data_contracts.canonical import canonical, digest
from data_contracts.errors import ErrorJson, UsageError
from data_contracts.quoting import escaped

SCHEMA = 1
# A text for people that may quote a value of the data, or come from a store that others write.
Sentence = Annotated[str, AfterValidator(escaped)]
# For objects whose keys another reader checks: a record keeps them as they are.
AS_WRITTEN = GetPydanticSchema(lambda _, schema_of: schema_of(dict[str, object]))
Error = Annotated[ErrorJson, AS_WRITTEN]


class Record(BaseModel):
    """A frozen JSON record; unknown keys are refused. A field whose alias says so is stored under that name."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, serialize_by_alias=True)

    def to_json(self) -> dict[str, Any]:
        """The record as Python objects that JSON can hold."""
        return self.model_dump(mode="json")


class HandOff(Record):
    """A record with a schema number of its own, written to the store or to a file."""

    schema_version: int = SCHEMA

    @classmethod
    def from_json(cls, value: dict[str, object]) -> Self:
        """Read what `to_json` wrote; UsageError for a schema newer than this code's, also of a record inside."""
        return cls.model_validate(value, by_alias=True, by_name=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_newer(cls, value: Any) -> Any:
        newest = cls.model_fields["schema_version"].default
        version = value.get("schema_version", newest) if isinstance(value, dict) else newest
        if not isinstance(version, int) or version > newest:
            raise UsageError(
                f"This {cls.__name__} has schema {version!r}, newer than the {newest} that this Trainwright reads.",
                remedy="Upgrade Trainwright.",
            )
        return value


def signed_bytes(record: Record) -> bytes:
    """What the signature in a record's field `signature` covers: everything but itself, as canonical JSON."""
    value = record.to_json()
    value.pop("signature", None)
    return canonical(value)


GateVerdict = Literal["better", "worse", "insufficient"]


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval, as gates, pages and records show it.

    Attributes:
        confidence: between 0 and 1.
        method: how it was computed, in words.
    """

    low: float
    high: float
    confidence: float
    method: str


class Evidence(Record):
    """What the scores on the rows that a gate with `confidence` is about say.

    Attributes:
        verdict: `better` if the gate is met, `worse` if the opposite of what was asked for is shown.
        estimate: the gain over the champion, in the direction of the metric's `mode`: positive where the candidate is
            better; for a gate with `min` or `max` the metric's value.
        low, high: the confidence interval of that, two-sided.
        method: how the interval was computed, in words.
        p_value: how likely such a gain or value is if the true one is not better than what was asked for.
        level: how small the p-value had to be.
        comparisons, promotions: what these rows had decided before; a part of one if they share a part of their rows.
        rows, units: rows that were compared; units of `evaluate.unit` among them, or None.
        batches: how many batches the rows were scored in, if the metric has one value for each batch.
        rows_needed: rows that would decide if the gain stays as it is; None if they would not, or are not needed.
    """

    verdict: GateVerdict
    estimate: float
    low: float
    high: float
    confidence: float
    method: str
    p_value: float
    level: float
    comparisons: float
    promotions: float
    rows: int
    units: int | None = None
    batches: int | None = Field(default=None, exclude_if=lambda number: number is None)
    rows_needed: int | None = None


class GateResult(Record):
    """One gate: whether it was met, and one sentence that says by how much.

    Attributes:
        bound: the value, gain, loss or gap that was asked for.
        slice: the slice of rows that the gate is about; "" for all.
        evidence: of a gate with `confidence` that was asked.
        sealed: whether the gate is about a sealed set: no figure of it is here, and `value` is 0.
        skipped: whether the comparison was not made; the sentence says why, and `value` is 0.
        ledger: what the gate's rows have decided now, and can still decide; "" if it was not asked.
    """

    metric: str
    met: bool
    value: float
    bound: float
    champion_value: float | None = None
    sentence: Sentence
    slice: str = Field(default="", exclude_if=lambda name: not name)
    evidence: Evidence | None = Field(default=None, exclude_if=lambda evidence: evidence is None)
    sealed: bool = Field(default=False, exclude_if=lambda sealed: not sealed)
    skipped: bool = Field(default=False, exclude_if=lambda skipped: not skipped)
    ledger: str = Field(default="", exclude_if=lambda sentence: not sentence)


class ExposureEntry(HandOff):
    """One comparison on a set of test rows, written before its verdict is known.

    Attributes:
        candidate, champion: ids of the two checkpoints.
        question: digest of what was asked, and of all rows that were looked at.
        candidates: how many candidates had been compared on these rows before this one was chosen, with it.
        previous: seal of the entry before it on the same rows, "" for the first; None in entries of earlier versions.
    """

    candidate: str
    champion: str
    question: str
    candidates: int = Field(default=1, ge=1, le=1_000_000)
    previous: str | None = Field(default=None, exclude_if=lambda seal: seal is None)

    @property
    def seal(self) -> str:
        """What the next entry and the next receipt state of this one, and so of all before it."""
        return digest(self.to_json())

    @property
    def key(self) -> str:
        """A key that is the same for the same comparison, on whichever rows it is entered."""
        return " ".join((self.candidate, self.champion, self.question))

    def same(self, other: ExposureEntry) -> bool:
        """Whether both are the same comparison, so that the second spends nothing."""
        return self.key == other.key


class LedgerState(Record):
    """What a receipt states of the comparisons on one set of rows: their number, the last one's seal, its marks.

    Attributes:
        better: of the entries, those that were marked as better.
    """

    entries: int = Field(ge=1)
    seal: str
    better: int = Field(ge=0)


class SpentBefore(HandOff):
    """What a set of rows had spent before one comparison; counted once, after its entry was written.

    Attributes:
        before: comparisons; one on other rows counts by twice the share of these rows that it had, up to 1.
        promoted: those of them that found the candidate better.
    """

    before: float = Field(ge=0)
    promoted: float = Field(ge=0)


Verdict = Literal["same", "negligible", "warning", "critical"]
VERDICTS: tuple[Verdict, ...] = ("same", "negligible", "warning", "critical")


class Bar(Record):
    """One bar of a picture: a value or a range, and its share of the values then and now."""

    label: str
    then: float
    now: float


class ColumnDrift(Record):
    """How one column has moved.

    Attributes:
        verdict: `warning`: it moved; `critical`: it moved far; `negligible`: not by chance, but too little to matter.
        p: probability of such a difference by chance, corrected for the number of tests of all columns.
        psi: population stability index, without what chance alone adds.
        js: Jensen-Shannon divergence in bits, 0 to 1.
        ks: the largest distance between the distribution functions; of numbers, and of the lengths of texts.
        largest: the largest change of a value's or range's share.
        nulls: share of missing values, then and now.
        means: then and now, where both are known.
        new_share: share of values now that did not exist then; `new`: some of them.
        bars: for a picture; empty where nothing moved.
        sentence: what moved, in words.
    """

    column: str
    verdict: Verdict
    p: float
    psi: float = 0.0
    js: float = 0.0
    ks: float = 0.0
    largest: float = 0.0
    nulls: tuple[float, float]
    means: tuple[float, float] | None = None
    new_share: float = 0.0
    new: list[str] = Field(default_factory=list)
    bars: list[Bar] = Field(default_factory=list)
    sentence: Sentence

    @property
    def what(self) -> str:
        """The sentence about what moved, without the column's name."""
        return self.sentence.removeprefix(f"{self.column}: ").removeprefix(f"{self.column} ")


class DriftReport(Record):
    """The comparison of a run's raw data with earlier data.

    Attributes:
        against: name of the earlier data, for a sentence.
        rows: then and now.
        columns: those that moved most come first.
        note: why nothing was compared; "" if columns were compared.
    """

    against: str
    rows: tuple[int, int] = (0, 0)
    columns: list[ColumnDrift] = Field(default_factory=list)
    note: Sentence = ""

    @property
    def verdict(self) -> Verdict:
        """The gravest verdict of a column."""
        return max((one.verdict for one in self.columns), key=VERDICTS.index, default="same")

    @property
    def moved(self) -> list[ColumnDrift]:
        """The columns that moved."""
        return [one for one in self.columns if one.verdict in ("warning", "critical")]

    @property
    def head(self) -> str:
        """How many columns moved, in one sentence without a full stop; or why nothing was compared."""
        if self.note or not self.moved:
            return self.sentence
        return f"{len(self.moved)} of {len(self.columns)} columns moved against {self.against}"

    @property
    def sentence(self) -> str:
        """What moved, in one sentence without a full stop."""
        if self.note:
            return self.note
        moved = self.moved
        if not moved:
            return f"no column has moved against {self.against}"
        named = "; ".join(one.sentence for one in moved[:3]) + (f"; and {len(moved) - 3} more" * (len(moved) > 3))
        return f"{self.head}: {named}"


Kind = Literal["number", "time", "text", "flag", "bytes", "other", "sensitive"]
# An exact sum of float64 values: mantissa × 2^exponent.
Dyadic = tuple[int, int]


class Bins(Record):
    """Counts of float64 values in nested bins.

    Bit patterns of float64 values, with those of negative values inverted, are integers in the values' order. A bin is
    such an integer without its lowest `shift` bits. With shift 0, each bin is one value.

    Attributes:
        keys: of the bins that have values, ascending.
    """

    shift: int = Field(ge=0, le=63)
    keys: list[int]
    counts: list[int]

    @model_validator(mode="after")
    def _one_count_for_each(self) -> Bins:
        if len(self.keys) != len(self.counts) or min(self.counts, default=1) < 1:
            raise ValueError("each bin has a count of at least 1")
        return self


class Moments(Record):
    """Sums of values and of their squares, exact to the rounding of each block (data_contracts/profile/sketches.py)."""

    count: int
    total: Dyadic
    squares: Dyadic


class Sample(Record):
    """Values and their counts: all of them, or those with the least hashes.

    Attributes:
        exact: whether these are all values.
        hashes: one per value, ascending.
        labels: the values; a long text is shortened and has its hash at the end. Empty for numbers.
        counts: rows of each value. Empty for numbers.
    """

    exact: bool
    hashes: list[int]
    labels: list[str] = Field(default_factory=list)
    counts: list[int] = Field(default_factory=list)


class ColumnProfile(Record):
    """The profile of one column. Of a sensitive column it has the counts of rows and nulls only.

    Attributes:
        type: its Arrow type.
        rows: rows, nulls included.
        nulls: missing values; NaN is one.
        distinct: number of different values; an estimate unless `distinct_exact`.
        infinite: infinite values, which bins and quantiles know and the other figures leave out.
        minimum, maximum: of numbers and flags as numbers, of times in microseconds since 1970, of texts their lengths.
        mean, stdev: of the same; `stdev` divides by the number of values.
        quantiles: of the same, each within the width of its bin.
        bins: of the same.
        sample: of texts, numbers and flags.
    """

    name: str
    type: str
    kind: Kind
    rows: int
    nulls: int
    infinite: int = 0
    distinct: int | None = None
    distinct_exact: bool = True
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    stdev: float | None = None
    quantiles: dict[str, float] = Field(default_factory=dict)
    moments: Moments | None = None
    bins: Bins | None = None
    sample: Sample | None = None

    @property
    def values(self) -> int:
        """Values that are not missing."""
        return self.rows - self.nulls


class Profile(HandOff):
    """The profile of a run's raw data."""

    rows: int
    columns: list[ColumnProfile] = Field(default_factory=list)

    def column(self, name: str) -> ColumnProfile | None:
        """The profile of a column; None if there is no such column."""
        return next((one for one in self.columns if one.name == name), None)


class Delivery(HandOff):
    """One attempt to send a mirror an update.

    Attributes:
        delivered: whether the mirror has all of it now.
        sentence: what was done, or why it failed; without secrets and without values of the data.
        at: the time (UTC, ISO 8601).
    """

    delivered: bool
    sentence: str
    at: str


FailureKind = Literal["failure", "straggler", "corrupt_replica"]


class FailureEvent(HandOff):
    """Something that went wrong on a node in one generation of a training.

    Attributes:
        node: its name, as its supervisor stated it.
        kind: `failure`: it was lost, or a rank on it hung; `straggler`: its own work took far longer than that of the
            others; `corrupt_replica`: it held other parameters than most.
        at: UTC, ISO 8601, by the conductor's clock.
    """

    node: str
    kind: FailureKind
    cause: str
    sentence: str
    training: str
    generation: int
    at: str


class NodeStanding(HandOff):
    """What a person decided about a node: it is drained, or takes part again. The newest decision holds."""

    node: str
    drained: bool
    reason: str
    by: str
    at: str

    @property
    def sentence(self) -> str:
        """Why a node is drained, in brackets behind its name."""
        return f"{self.node} ({self.reason}; by {self.by}, {self.at[:10]})"


class SensorCursor(Record):
    """The newest step of a sensor whose run has been started."""

    sensor: str
    step: int = Field(ge=0, strict=True)


class SensorStep(HandOff):
    """A step of a sensor, created once before its run is started.

    Attributes:
        sensor: id of the sensor, which makes the keys of its runs different from those of another store's sensor.
        n: from 0.
        files: marks of files, each of one file's place and stamp; those that are new since step `n - 1`.
        whole: `files` are all that are known; earlier steps need not be read.
        starts: whether a run is started for it; False for the first look, and for a reset.
    """

    sensor: str
    n: int
    files: list[str]
    whole: bool = False
    starts: bool = True
    by: str
    at: str


class InstalledPackage(Record):
    """An installed package.

    Attributes:
        name, version: the name as packages are compared (PEP 503), and the version as it is installed.
        record: SHA-256 over the hashes of files in its RECORD, which every installation of one wheel shares;
            `editable` if it runs from its sources; "" if it has no RECORD, or if an earlier Trainwright noted it.
    """

    name: str
    version: str
    record: str = ""

    @property
    def label(self) -> str:
        """Name, version and the beginning of the digest, for a sentence."""
        return f"{self.name} {self.version}" + (f" (RECORD {self.record[:12]})" if self.record else "")


class InstalledPackages(HandOff):
    """Everything that is installed in one environment, sorted."""

    packages: list[InstalledPackage]
