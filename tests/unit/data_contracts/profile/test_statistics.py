"""P-values are those of SciPy, and of exact counting."""

from __future__ import annotations

import math

import pytest

from data_contracts.profile.drift import chi_square_p, holm, kolmogorov_p, share_p


def test_a_table_of_counts() -> None:
    assert chi_square_p([10, 20, 0], [20, 10, 0]) == pytest.approx(math.erfc(math.sqrt(20 / 3 / 2)))
    assert chi_square_p([1, 2], [0, 0]) == chi_square_p([5], [7]) == 1.0


def test_kolmogorov() -> None:
    assert kolmogorov_p(1.36 / math.sqrt(50_000), 100_000, 100_000) == pytest.approx(0.049, abs=0.001)
    assert kolmogorov_p(0.0, 10, 10) == kolmogorov_p(0.5, 0, 10) == 1.0


def tail(first: int, of_first: int, second: int, of_second: int) -> float:
    cases = first + second

    def chance(count: int) -> float:
        return math.comb(of_second, count) * math.comb(of_first, cases - count) / math.comb(of_first + of_second, cases)

    counts = range(max(0, cases - of_first), min(cases, of_second) + 1)
    sides = sum(map(chance, (k for k in counts if k <= second))), sum(map(chance, (k for k in counts if k >= second)))
    return min(1.0, 2 * min(sides))


@pytest.mark.parametrize(("first", "of_first", "second", "of_second"), [
    (0, 500, 8, 500), (3, 40, 9, 60), (0, 10, 10, 10), (40, 40, 50, 60), (20, 500, 7, 300), (0, 5, 0, 5),
    (200, 900, 260, 800),
])  # fmt: skip
def test_shares(first: int, of_first: int, second: int, of_second: int) -> None:
    wanted = tail(first, of_first, second, of_second)
    assert share_p(first, of_first, second, of_second) == pytest.approx(wanted, rel=0.1)
    assert share_p(second, of_second, first, of_first) == pytest.approx(wanted, rel=0.1)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
