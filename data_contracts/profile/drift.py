"""Compares two profiles, column by column, on the same bins, and separates change from chance.

An alarm needs both: a difference that chance makes in at most ALPHA of all comparisons of two samples of one
distribution (over all tests of all columns, Holm 1979), and an effect that is large enough to matter.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import groupby

from data_contracts.drift_report import VERDICTS, ColumnDrift, DriftReport, Verdict
from data_contracts.profile import bins, measures
from data_contracts.profile.measures import Counts
from data_contracts.profile.pictures import bars_of_bins, bars_of_values
from data_contracts.profile.record import ColumnProfile, Profile, Sample
from data_contracts.profile.statistics import chi_square_p, holm, kolmogorov_p, share_p

# Half of the promised 1 %, because p-values of large samples' tails are approximations.
ALPHA = 0.005
# From these effects on, a column moved, or moved far. A shift by 0.2 standard deviations has a PSI of 0.04.
EFFECTS = {
    "psi": (0.02, 0.25),
    "ks": (0.05, 0.2),
    "largest": (0.05, 0.2),
    "nulls": (0.01, 0.1),
    "new": (0.001, 0.05),
}
# A column with at most this many different values is compared value by value.
_FEW = 50
# With this share of different values, a column of whole numbers or texts names its rows.
_NAMES = 0.7
_NEW_SHOWN = 5
# What the measures of a distribution are about.
_DISTRIBUTION, _LENGTHS, _VALUES = "its distribution", "its lengths", "its values"


@dataclass(frozen=True)
class _Test:
    """A test of a column.

    Attributes:
        p: its p-value.
        effect: a name of EFFECTS; size: how large it is.
        of: what a measure of a whole distribution is about, for a sentence; "" for other effects.
    """

    p: float
    effect: str
    size: float
    of: str = ""


@dataclass
class _Column:
    """A column's tests, and the figures of its `ColumnDrift`."""

    then: ColumnProfile
    now: ColumnProfile
    tests: list[_Test] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)

    def test(self, p: float, effect: str, size: float, of: str = "") -> None:
        self.tests.append(_Test(p, effect, size, of))


def compared(
    then: Profile, now: Profile, against: str, *, only: Collection[str] = (), ignore: Collection[str] = ()
) -> DriftReport:
    """How the columns of `now` differ from those of `then`.

    Args:
        against: name of the earlier data, for a sentence.
        only: columns to compare; none: all.
        ignore: columns to leave out.
    """
    wanted = [one for one in then.columns if (not only or one.name in only) and one.name not in ignore]
    changed = [lost for one in wanted if (lost := _lost(one, now.column(one.name)))]
    gone = {one.column for one in changed}
    columns = [_tested(one, now.column(one.name)) for one in wanted if one.name not in gone]
    adjusted = iter(holm([one.p for column in columns for one in column.tests]))
    found = [_judged(column, [next(adjusted) for _ in column.tests]) for column in columns]
    ranked = sorted(
        [*changed, *found], key=lambda one: (-VERDICTS.index(one.verdict), -max(one.psi, one.ks), one.column)
    )
    return DriftReport(against=against, rows=(then.rows, now.rows), columns=ranked)


def _lost(then: ColumnProfile, now: ColumnProfile | None) -> ColumnDrift | None:
    """The finding for a column that is gone or of another kind."""
    if now is None:
        sentence = f"{then.name} is gone"
    elif "sensitive" in (now.kind, then.kind):  # of which only missing values are known
        return None
    elif now.kind != then.kind and then.values and now.values:
        sentence = f"{then.name} is {now.type} now and was {then.type}"
    else:
        return None
    return ColumnDrift(column=then.name, verdict="critical", p=0.0, nulls=(0.0, 0.0), sentence=sentence)


def _tested(then: ColumnProfile, now: ColumnProfile | None) -> _Column:
    assert now is not None
    column = _Column(then, now)
    if then.rows and now.rows:
        nulls = (then.nulls / then.rows, now.nulls / now.rows)
        column.test(share_p(then.nulls, then.rows, now.nulls, now.rows), "nulls", abs(nulls[1] - nulls[0]))
    if not then.values or not now.values or now.kind != then.kind or _moves_by_nature(then, now):
        return column
    if then.bins is not None and now.bins is not None:
        _shape(column)
    if then.kind == "text" and then.sample is not None and now.sample is not None and not _names_rows(then, now):
        _categories(column, *_by_label(then, now))
    return column


def _moves_by_nature(then: ColumnProfile, now: ColumnProfile) -> bool:
    """Whether a column is expected to have other values each time: times, and numbers that name rows."""
    return then.kind == "time" or (then.kind == "number" and "int" in then.type and _names_rows(then, now))


def _names_rows(then: ColumnProfile, now: ColumnProfile) -> bool:
    return all(one.values > _FEW and (one.distinct or 0) > _NAMES * one.values for one in (then, now))


def _shape(column: _Column) -> None:
    """Tests the distribution of numbers, or of the lengths of texts."""
    then, now = column.then, column.now
    assert then.bins is not None
    assert now.bins is not None
    keys, first, second, shift = bins.common(then.bins, now.bins)
    counts = Counts(first, second)
    if shift == 0 and len(keys) <= _FEW and then.kind in ("number", "flag"):
        labels = [_label(bins.value_of(key)) for key in keys]
        _categories(column, labels, counts, known=True)
        return
    groups = measures.grouped(counts)
    ks, psi = measures.distance(counts), measures.psi(groups)
    of = _LENGTHS if then.kind in ("text", "bytes") else _DISTRIBUTION
    column.test(kolmogorov_p(ks, *counts.sizes), "ks", ks, of)
    column.test(chi_square_p(*groups), "psi", psi, of)
    column.figures |= {"ks": ks, "psi": psi, "js": measures.jensen_shannon(groups)}
    column.figures |= {"largest": measures.largest_change(groups), "bars": bars_of_bins(keys, shift, counts)}


def _label(value: float) -> str:
    """A number as text that no other number has."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value).removesuffix(".0")


def _categories(column: _Column, labels: list[str], counts: Counts, known: bool) -> None:
    """Tests the shares of single values.

    Args:
        known: whether the earlier data had no other values than these.
    """
    sizes = counts.sizes
    together = measures.lumped(counts)
    psi = measures.psi(together)
    column.test(chi_square_p(*together), "psi", psi, _VALUES if column.then.kind == "text" else _DISTRIBUTION)
    pairs = list(zip(labels, counts.then, counts.now, strict=True))
    ps = {label: min(1.0, share_p(one, sizes[0], two, sizes[1]) * len(pairs)) for label, one, two in pairs}
    largest = measures.largest_change(counts)
    column.test(min(ps.values(), default=1.0), "largest", largest)
    new = sorted(((two, label) for label, one, two in pairs if known and not one), reverse=True)
    if new:
        column.test(min(ps[label] for _, label in new), "new", sum(two for two, _ in new) / sizes[1])
    said = {"psi": psi, "js": measures.jensen_shannon(together), "largest": largest}
    column.figures |= {name: max(value, float(str(column.figures.get(name, 0)))) for name, value in said.items()}
    column.figures |= {
        "new_share": sum(two for two, _ in new) / sizes[1],
        "new": [name for _, name in new[:_NEW_SHOWN]],
    }
    column.figures["bars"] = bars_of_values(pairs, sizes)


def _by_label(then: ColumnProfile, now: ColumnProfile) -> tuple[list[str], Counts, bool]:
    """Texts that both samples can have, and all others as one; and whether the earlier sample is complete."""
    assert then.sample is not None
    assert now.sample is not None
    bound = min((one.hashes[-1] for one in (then.sample, now.sample) if not one.exact and one.hashes), default=2**64)
    first, second = _within(then.sample, bound), _within(now.sample, bound)
    labels = sorted(first.keys() | second.keys())
    one, two = [first.get(label, 0) for label in labels], [second.get(label, 0) for label in labels]
    rest = then.values - sum(one), now.values - sum(two)
    if any(rest):
        labels, one, two = [*labels, "(others)"], [*one, rest[0]], [*two, rest[1]]
    return labels, Counts(one, two), then.sample.exact


def _within(sample: Sample, bound: int) -> dict[str, int]:
    counted = zip(sample.labels, sample.hashes, sample.counts, strict=True)
    return {label: count for label, hash_, count in counted if hash_ <= bound}


def _judged(column: _Column, adjusted: list[float]) -> ColumnDrift:
    then, now = column.then, column.now
    levels = [_level(test, p) for test, p in zip(column.tests, adjusted, strict=True)]
    verdict = max(levels, key=VERDICTS.index, default="same")
    figures = dict(column.figures)
    if verdict in ("same", "negligible"):
        figures.pop("bars", None)
    moved = [test for test, level in zip(column.tests, levels, strict=True) if level in ("warning", "critical")]
    words = {"same": "no change beyond chance", "negligible": "a change that is certain but negligible"}
    means = (then.mean, now.mean) if then.mean is not None and now.mean is not None else None
    return ColumnDrift.model_validate(
        {
            "column": then.name,
            "verdict": verdict,
            "p": min(adjusted, default=1.0),
            "nulls": (then.nulls / max(then.rows, 1), now.nulls / max(now.rows, 1)),
            "means": means,
            "sentence": f"{then.name}: {'; '.join(_in_words(column, moved, means)) or words[verdict]}",
            **figures,
        }
    )


def _level(test: _Test, adjusted: float) -> Verdict:
    if adjusted > ALPHA:
        return "same"
    moved, far = EFFECTS[test.effect]
    return "critical" if test.size >= far else "warning" if test.size >= moved else "negligible"


def _in_words(column: _Column, moved: list[_Test], means: tuple[float, float] | None) -> list[str]:
    """What moved: each distribution with all of its measures, its means if they are known, and shares."""
    said = []
    for of, tests in groupby(moved, key=lambda test: test.of):
        if not of:
            said += [_share_in_words(column, test) for test in tests]
            continue
        said.append(f"{of} moved: {', '.join(f'{test.effect.upper()} {test.size:.3f}' for test in tests)}")
        if means is not None and of != _VALUES:
            said.append(f"mean{' length' if of == _LENGTHS else ''} {means[1]:.4g} (was {means[0]:.4g})")
    return said


def _share_in_words(column: _Column, test: _Test) -> str:
    then, now = column.then, column.now
    if test.effect == "nulls":
        return f"missing in {now.nulls / now.rows:.2%} of the rows (was {then.nulls / then.rows:.2%})"
    if test.effect == "new":
        new = column.figures.get("new", [])
        assert isinstance(new, list)
        return f"{test.size:.2%} of the values are new, such as {new[0]!r}"
    return f"the share of one value changed by {test.size:.2%}"
