"""Compares two profiles, column by column, on the same bins, and separates change from chance.

An alarm needs both: a difference that chance makes in at most ALPHA of all comparisons of two samples of one
distribution (over all tests of all columns, Holm 1979), and an effect that is large enough to matter: a measure of how
far two rows of counts are apart.

Histograms then and now are bars, which pages draw.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import scipy

from data_contracts.profile import sketches
from data_contracts.profile.sketches import value_of
from data_contracts.records import VERDICTS, Bar, ColumnDrift, ColumnProfile, DriftReport, Profile, Sample, Verdict

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
GROUPS = 20
# Fewer of the smaller side in a group would make the test inexact.
LEAST = 25
# Below this expected count the normal approximation of a binomial tail is not used.
_MANY = 25.0
MOST_BARS = 20


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
    keys, first, second, shift = sketches.common(then.bins, now.bins)
    counts = Counts(first, second)
    if shift == 0 and len(keys) <= _FEW and then.kind in ("number", "flag"):
        labels = [_label(sketches.value_of(key)) for key in keys]
        _categories(column, labels, counts, complete=True)
        return
    groups = grouped(counts)
    ks, psi = distance(counts), stability_index(groups)
    of = _LENGTHS if then.kind in ("text", "bytes") else _DISTRIBUTION
    column.test(kolmogorov_p(ks, *counts.sizes), "ks", ks, of)
    column.test(chi_square_p(*groups), "psi", psi, of)
    column.figures |= {"ks": ks, "psi": psi, "js": jensen_shannon(groups)}
    column.figures |= {"largest": largest_change(groups), "bars": bars_of_bins(keys, shift, counts)}


def _label(value: float) -> str:
    """A number as text that no other number has."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value).removesuffix(".0")


def _categories(column: _Column, labels: list[str], counts: Counts, complete: bool) -> None:
    """Tests the shares of single values.

    Args:
        complete: whether the earlier data had no other values than these.
    """
    sizes = counts.sizes
    together = lumped(counts)
    psi = stability_index(together)
    column.test(chi_square_p(*together), "psi", psi, _VALUES if column.then.kind == "text" else _DISTRIBUTION)
    pairs = list(zip(labels, counts.then, counts.now, strict=True))
    ps = {label: min(1.0, share_p(one, sizes[0], two, sizes[1]) * len(pairs)) for label, one, two in pairs}
    largest = largest_change(counts)
    column.test(min(ps.values(), default=1.0), "largest", largest)
    new = sorted(((two, label) for label, one, two in pairs if complete and not one), reverse=True)
    if new:
        column.test(min(ps[label] for _, label in new), "new", sum(two for two, _ in new) / sizes[1])
    figures = {"psi": psi, "js": jensen_shannon(together), "largest": largest}
    column.figures |= {name: max(value, float(str(column.figures.get(name, 0)))) for name, value in figures.items()}
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


class Counts(NamedTuple):
    """Counts of the same groups then and now."""

    then: list[int]
    now: list[int]

    @property
    def sizes(self) -> tuple[int, int]:
        """Values then and now."""
        return sum(self.then), sum(self.now)


def grouped(counts: Counts) -> Counts:
    """Neighbouring bins in groups of about the same number of values, then and now together."""
    total, least = sum(counts.sizes), min(counts.sizes)
    wanted = total / max(2, min(GROUPS, least // LEAST))
    then, now = [0], [0]
    for one, two in zip(counts.then, counts.now, strict=True):
        if then[-1] + now[-1] and (then[-1] + now[-1] >= wanted or one + two >= wanted):
            then.append(0)
            now.append(0)
        then[-1] += one
        now[-1] += two
    if len(then) > 1 and then[-1] + now[-1] < wanted / 2:
        then[-2:], now[-2:] = [then[-2] + then[-1]], [now[-2] + now[-1]]
    return Counts(then, now)


def lumped(counts: Counts) -> Counts:
    """Categories, the rare ones together, so that each is expected LEAST times on the smaller side."""
    sizes = counts.sizes
    wanted = LEAST * sum(sizes) / max(min(sizes), 1)
    pairs = [(one, two) for one, two in zip(counts.then, counts.now, strict=True) if one + two >= wanted]
    rare = sizes[0] - sum(one for one, _ in pairs), sizes[1] - sum(two for _, two in pairs)
    if sum(rare) and sum(rare) < wanted and pairs:  # with the least frequent of the others
        pairs.sort(key=sum)
        rare, pairs = (rare[0] + pairs[0][0], rare[1] + pairs[0][1]), pairs[1:]
    pairs += [rare] if sum(rare) else []
    return Counts([one for one, _ in pairs], [two for _, two in pairs])


def _shares(counts: Counts, extra: float = 0.0) -> Iterator[tuple[float, float]]:
    sizes = counts.sizes
    cells = len(counts.then)
    for one, two in zip(counts.then, counts.now, strict=True):
        yield (one + extra) / (sizes[0] + extra * cells), (two + extra) / (sizes[1] + extra * cells)


def stability_index(counts: Counts) -> float:
    """The population stability index, less what two samples of one distribution have on average, and never below 0."""
    found = sum((now - then) * math.log(now / then) for then, now in _shares(counts, extra=0.5))
    by_chance = (len(counts.then) - 1) * sum(1 / size for size in counts.sizes)
    return max(found - by_chance, 0.0)


def jensen_shannon(counts: Counts) -> float:
    """The Jensen-Shannon divergence in bits."""
    total = 0.0
    for then, now in _shares(counts):
        middle = (then + now) / 2
        total += sum(share * math.log2(share / middle) / 2 for share in (then, now) if share)
    return max(total, 0.0)


def distance(counts: Counts) -> float:
    """The Kolmogorov-Smirnov distance of ordered bins."""
    largest = apart = 0.0
    for then, now in _shares(counts):
        apart += now - then
        largest = max(largest, abs(apart))
    return largest


def largest_change(counts: Counts) -> float:
    """The largest change of a share."""
    return max((abs(now - then) for then, now in _shares(counts)), default=0.0)


def chi_square_p(first: Sequence[int], second: Sequence[int]) -> float:
    """Pearson's test of two rows of counts; cells without counts do not count."""
    total_first, total_second = sum(first), sum(second)
    if not total_first or not total_second:
        return 1.0
    statistic, cells = 0.0, 0
    for one, two in zip(first, second, strict=True):
        both = one + two
        if both:
            cells += 1
            apart = one * total_second - two * total_first
            statistic += apart * (apart / (total_first * total_second)) / both
    return float(scipy.special.chdtrc(cells - 1, statistic)) if cells > 1 and statistic > 0 else 1.0


def kolmogorov_p(distance: float, first: int, second: int) -> float:
    """P-value of a Kolmogorov-Smirnov distance between two samples; too large if values are tied, never too small."""
    if not first or not second:
        return 1.0
    size = math.sqrt(first * second / (first + second))
    return float(scipy.special.kolmogorov((size + 0.12 + 0.11 / size) * distance))  # Stephens (1970)


def share_p(first: int, of_first: int, second: int, of_second: int) -> float:
    """Two-sided p-value that two samples have the same share: exact for rare cases, else by the normal distribution."""
    if not of_first or not of_second:
        return 1.0
    cases, total = first + second, of_first + of_second
    if 2 * cases > total:  # of the rarer side
        first, second = of_first - first, of_second - second
        cases = first + second
    expected = cases * of_second / total
    if min(expected, cases * of_first / total) < _MANY:
        law = scipy.stats.hypergeom(total, cases, of_second)
        return min(1.0, 2 * float(min(law.cdf(second), law.sf(second - 1))))
    variance = expected * (of_first / total) * (1 - cases / total)
    apart = max(abs(second - expected) - 0.5, 0.0)
    return math.erfc(apart / math.sqrt(2 * variance))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm 1979), in the same order."""
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, p_values[at] * (len(p_values) - rank)))
        adjusted[at] = largest
    return adjusted


def bars_of_values(pairs: Sequence[tuple[str, int, int]], sizes: tuple[int, int]) -> list[Bar]:
    """Bars of the values that are most frequent then and now together."""
    ranked = sorted(pairs, key=lambda one: (-one[1] / sizes[0] - one[2] / sizes[1], one[0]))[:MOST_BARS]
    return [Bar(label=name[:40], then=one / sizes[0], now=two / sizes[1]) for name, one, two in ranked]


def bars_of_bins(keys: Sequence[int], shift: int, counts: Counts) -> list[Bar]:
    """Bars of equal width over the middle 98 % of the values then and now together."""
    total, below = sum(counts.sizes), 0
    inner = []
    for key, one, two in zip(keys, *counts, strict=True):
        middle = value_of((key << shift) + ((1 << shift) >> 1))
        if 0.01 * total <= below + one + two and below <= 0.99 * total and math.isfinite(middle):
            inner.append((middle, one, two))
        below += one + two
    if not inner:
        return []
    low, high = inner[0][0], inner[-1][0]
    number = min(MOST_BARS, len(inner))
    width = (high - low) / number if math.isfinite(high - low) and high > low else 0.0
    cells = [[0, 0] for _ in range(number)]
    for middle, one, two in inner:
        at = min(int((middle - low) / width), number - 1) if width else 0
        cells[at][0] += one
        cells[at][1] += two
    sizes = counts.sizes
    return [
        Bar(label=f"{low + at * width:.4g}", then=one / sizes[0], now=two / sizes[1])
        for at, (one, two) in enumerate(cells)
    ]
