"""How many years of nightly challengers see a worse model promoted, by gate; and how soon a better one is promoted.

    python benchmarks/gate.py [--quick]

A year is 365 nights on one test set of 10,000 rows, if nothing else is said. Challengers and champion disagree on 5 %
of the rows. A challenger that is no better has a true gain of 0, the worst case of "not better".

- `no_better`: each night another challenger that is no better.
- `lucky`: five runs of the same recipe each night, with other seeds.
- `sliding`: the test set is the last 10,000 rows of a stream that grows by 300 rows a night.
- `climbing`: on one night of 30 the challenger truly gains two points; the others are no better than the champion that
  stands that night. So promotions happen, and what follows them is chosen by them.
- `boosting`: the attack of Blum and Hardt (2015) on a leaderboard: every night a random model; each whose score seems
  better than the champion's is kept, each that seems worse is kept with its answers reversed, and the last challenger
  is their majority. The labels are coin flips, so no model is better than another. `verdicts`: the attacker sees the
  verdicts alone. `sealed`: the gate decides on a sealed set, and the attacker sees each score on another set of as many
  rows. `open_scores`: the attacker sees each score on the rows that decide. No gate that counts comparisons holds
  against the last one, ours neither, which is why sets can be sealed; it is printed, and not counted in `false_years`.

A gate holds if the share of years with a false promotion is not rejected as above α by an exact binomial test (5 %).

Contenders, on the same draws:
- `evidence`: the gate of `tasks.evidence` with confidence 0.95.
- `plain`: `min_gain: 0`, the challenger's score is above the champion's.
- `z_test`: a paired z-test each night at 5 %, one-sided.
- `tfma`: a t interval from 20 bootstrap replicates (TensorFlow Model Analysis' default) lies above 0.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from math import sqrt

import numpy as np
from numpy.random import Generator
from scipy.special import bdtrc, stdtrit
from scipy.stats import binomtest

from tasks.evidence.decision import Spent, level

ALPHA, NIGHTS, ROWS, DISAGREE = 0.05, 365, 10_000, 0.05
OPEN = "boosting_by_open_scores"
Gate = Callable[[Generator, int, int, float, float], bool]


def evidence(draw: Generator, won: int, lost: int, before: float, promoted: float) -> bool:
    """The gate of `tasks.evidence.decision`, without the interval, which decides nothing here."""
    p_value = float(bdtrc(won - 1, won + lost, 0.5)) if won else 1.0
    return p_value <= level(ALPHA, Spent(before, promoted))


def plain(draw: Generator, won: int, lost: int, before: float, promoted: float) -> bool:
    """More rows are right than before."""
    return won > lost


def z_test(draw: Generator, won: int, lost: int, before: float, promoted: float) -> bool:
    """McNemar's z."""
    return won > lost and won - lost > 1.6448536 * sqrt(won + lost)


def tfma(draw: Generator, won: int, lost: int, before: float, promoted: float) -> bool:
    """The spread of 20 replicates stands for the standard error."""
    error = sqrt((won + lost) * draw.chisquare(19) / 19)
    return won - lost > float(stdtrit(19, 0.975)) * error


GATES: dict[str, Gate] = {"evidence": evidence, "plain": plain, "z_test": z_test, "tfma": tfma}


def no_better(draw: Generator, gate: Gate, tries: int = 1) -> bool:
    """Whether any of a year's challengers, none of them better, is promoted."""
    right = draw.binomial(ROWS, 0.9)
    for before in range(NIGHTS * tries):
        won, lost = draw.binomial(ROWS - right, DISAGREE / 2 / 0.1), draw.binomial(right, DISAGREE / 2 / 0.9)
        if gate(draw, won, lost, before, 0):
            return True
    return False


def sliding(draw: Generator, gate: Gate) -> bool:
    """As `no_better`; the test set loses and gets 300 rows a night."""
    fresh = 300
    # How much of tonight's rows the entry of some nights ago has seen, added up.
    shares = np.maximum(0, 1 - fresh * np.arange(1, NIGHTS + 1) / ROWS)
    seen = np.cumsum(np.minimum(1, 2 * shares))  # as infra.models.exposures counts them
    days = draw.binomial(fresh, 0.9, size=NIGHTS + ROWS // fresh + 1)
    for night in range(NIGHTS):
        window = days[night : night + ROWS // fresh]
        right, rows = int(window.sum()), fresh * len(window)
        won, lost = draw.binomial(rows - right, DISAGREE / 2 / 0.1), draw.binomial(right, DISAGREE / 2 / 0.9)
        if gate(draw, won, lost, float(seen[night - 1]) if night else 0.0, 0):
            return True
    return False


def climbing(draw: Generator, gate: Gate) -> bool:
    """Some challengers are better and are promoted; whether any is promoted that is not."""
    promoted = 0
    for night in range(NIGHTS):
        better = draw.random() < 1 / 30
        gain = 0.02 if better else 0.0
        won = draw.binomial(ROWS, (DISAGREE + gain) / 2)
        lost = draw.binomial(ROWS - won, (DISAGREE - gain) / 2 / (1 - won / ROWS))
        if gate(draw, won, lost, night, promoted):
            if not better:
                return True
            promoted += 1
    return False


def boosting(draw: Generator, gate: Gate, sees: str) -> bool:
    """Blum and Hardt's attack; whether a model is promoted, none being better than another."""
    sets = 2 if sees == "sealed" else 1  # the last one decides, the first one shows its scores
    wrong = draw.integers(0, 2, size=(sets, ROWS), dtype=np.int8)  # of the champion, on coin flips
    # Whether each model says otherwise than the champion.
    bits = draw.integers(0, 256, size=(sets, NIGHTS - 1, ROWS // 8), dtype=np.uint8)
    other = np.unpackbits(bits, axis=2)
    won, lost = (
        np.stack([one @ its.astype(np.int32) for one, its in zip(other, kind, strict=True)])
        for kind in (wrong, 1 - wrong)
    )
    votes = np.zeros(ROWS, np.int64)
    for night in range(NIGHTS - 1):
        if gate(draw, int(won[-1, night]), int(lost[-1, night]), night, 0):
            return True
        if sees != "verdicts":  # a verdict that the model is not better says nothing of it
            seems_better = won[0, night] > lost[0, night]
            votes += (2 * other[-1, night].astype(np.int64) - 1) * (1 if seems_better else -1)
    last = votes > 0
    return gate(draw, int((last & (wrong[-1] == 1)).sum()), int((last & (wrong[-1] == 0)).sum()), NIGHTS - 1, 0)


YEARS: dict[str, Callable[[Generator, Gate], bool]] = {
    "no_better": no_better,
    "lucky": lambda draw, gate: no_better(draw, gate, tries=5),
    "sliding": sliding,
    "climbing": climbing,
    "boosting_by_verdicts": lambda draw, gate: boosting(draw, gate, "verdicts"),
    "boosting_sealed": lambda draw, gate: boosting(draw, gate, "sealed"),
    OPEN: lambda draw, gate: boosting(draw, gate, "open_scores"),
}


def nights_to_promotion(draw: Generator, gate: Gate, gain: float, start: int) -> int:
    """After how many nights a true gain is promoted, with 10,000 fresh rows each night."""
    for night in range(1, NIGHTS + 1):
        won, lost, _ = draw.multinomial(ROWS, [(DISAGREE + gain) / 2, (DISAGREE - gain) / 2, 1 - DISAGREE])
        if gate(draw, won, lost, start, 0):
            return night
    return NIGHTS + 1


def main() -> None:
    """Print one JSON line for each kind of year and each gate, and a last one with the figures of `evidence`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    years = 100 if parser.parse_args().quick else 2_000
    shares: dict[tuple[str, str], float] = {}
    for name, year in YEARS.items():
        for gate_name, gate in GATES.items():
            began = time.perf_counter()
            false = sum(year(np.random.default_rng([seed, 15]), gate) for seed in range(years))
            test = binomtest(false, years, ALPHA, alternative="greater")
            shares[name, gate_name] = false / years
            found = {"years_of": name, "gate": gate_name, "years": years, "with_a_false_promotion": false}
            found |= {"share": false / years, "holds": bool(test.pvalue >= ALPHA)}
            print(json.dumps({**found, "seconds": round(time.perf_counter() - began, 1)}), flush=True)
    power = 0.0
    for start in (0, 30, 364):
        for gate_name, gate in GATES.items():
            nights = np.array(
                [nights_to_promotion(np.random.default_rng([seed, 16]), gate, 0.01, start) for seed in range(years)]
            )
            within = {f"within_{n}_nights": float(np.mean(nights <= n)) for n in (1, 2, 3, 7)}
            if (start, gate_name) == (0, "evidence"):
                power = within["within_1_nights"]
            print(json.dumps({"true_gain": 0.01, "gate": gate_name, "comparisons_before": start, **within}), flush=True)
    worst = {gate: max(shares[name, gate] for name in YEARS if name != OPEN) for gate in GATES}
    print(
        json.dumps(
            {
                "false_years": worst["evidence"], "false_years_open_scores": shares[OPEN, "evidence"], "alpha": ALPHA,
                "power": power, "nights": 1, "false_years_plain": worst["plain"], "false_years_z_test": worst["z_test"],
                "false_years_tfma": worst["tfma"],
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
