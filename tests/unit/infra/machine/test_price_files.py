"""A file of prices that is wrong is refused in one sentence, with its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.prices import read_book

BOOK = "version: 1\nmachines:\n  a:\n    prices:\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "there is no such file; name a price book in MINE"),
        ("a: [", "1: is not valid YAML"),
        ("- a", "1: a price book is a mapping"),
        ("version: 2", "1: version: 2 is newer than the 1"),
        ("version: 1\nmachine: {}", "2: machine: unknown key; did you mean machines?"),
        ("version: 1\nzz: {}", "2: zz: unknown key; a price book has carbon, hours"),
        (BOOK + "    - {currency: USD, per_hour: 1}", "5: machines.a.prices.0.date: is missing"),
        (BOOK + "    - {date: 2026-01-01, per_hour: 1}", "5: machines.a.prices.0.currency: is missing"),
        (BOOK + "    - {date: 2026-13-01, currency: USD, per_hour: 1}", "'2026-13-01' is not a day"),
        (BOOK + "    - {date: 2026-01-01, currency: dollars, per_hour: 1}", "5: machines.a.prices.0.currency: "),
        (BOOK + "    - {date: 2026-01-01, currency: USD, per_hour: -1}", "per_hour: must be at least 0, got -1"),
        (BOOK + "    - {date: 2026-01-01, currency: USD, per_hour: .nan}", "per_hour: must be a finite number"),
        (BOOK + "    - {date: 2026-01-01, currency: USD, perhour: 1}", "perhour: unknown key; did you mean per_hour?"),
        (
            BOOK + "    - {date: 2026-01-01, currency: USD, per_hour: 1}\n"
            "    - {date: 2026-01-01, currency: USD, per_hour: 2, term: spot}\n"
            "    - {date: 2026-01-01, currency: EUR, per_hour: 3}",
            "7: machines.a.prices.2: 2026-01-01 has two on-demand prices; keep one of them",
        ),
        ("version: 1\nmachines: {a: {watts: -1}}", "machines.a.watts: must be at least 0, got -1"),
        # Catalogues of earlier versions.
        ("a: 3", "1: a: must be a mapping, got 3"),
        ("a: {devices: x, memory_bytes: 1, usd_per_hour: 1}", "1: a.devices: "),
        ("a: {devices: 1, memory_bytes: 1, usd_per_hour: 1}", "1: a.usd_per_hour: a price needs its day"),
        ("a: {devices: 1, memory_bytes: 1, usd_per_hour: 1, cores: 3}", "1: a.cores: unknown key"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(text: str | None, sentence: str, tmp_path: Path) -> None:
    mine = tmp_path / "prices.yaml"
    if text is not None:
        mine.write_text(text)
    with pytest.raises(UsageError, match=r"prices\.yaml") as caught:
        read_book(mine, "MINE")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
