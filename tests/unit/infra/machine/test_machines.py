"""The price book: every shipped entry is dated and sourced; a file of the user's adds and replaces."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.prices import VARIABLE, catalogue, machine, prices


@pytest.fixture(autouse=True)
def own_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """There is no book but the shipped one, until the test writes one."""
    monkeypatch.delenv(VARIABLE, raising=False)

    def write(text: str) -> None:
        (tmp_path / "prices.yaml").write_text(text)
        monkeypatch.setenv(VARIABLE, str(tmp_path / "prices.yaml"))

    return write


def test_every_price_is_dated_and_sourced() -> None:
    for name, entry in catalogue().items():
        assert entry.name == name
        for price in entry.prices:
            assert date.fromisoformat(price.date) <= date.today()
            assert price.source
            assert price.region
            assert (entry.memory_bytes >= 2**34) is bool(entry.devices)
    assert len(catalogue()) > 5
    here = machine("local").price("2026-11-25")
    assert (here.per_hour, here.price_date) == (None, ""), "this machine has no price, which is not zero"


def test_a_book_of_the_users_adds_and_replaces(own_book: Callable[[str], None]) -> None:
    own_book(
        "version: 1\n"
        "machines:\n"
        "  desk: {devices: 1, memory_bytes: 8, prices: [{date: 2026-01-31, currency: EUR, per_hour: 0.1}]}\n"
        "  aws-p5.48xlarge: {prices: [{date: 2026-01-31, currency: USD, per_hour: 30, term: spot}]}\n"
        "pools: {gpu: {machine: aws-p5.48xlarge, term: spot}, slow: desk}\n"
    )
    assert machine("desk").price("2026-02-01").currency == "EUR"
    assert machine("desk").price("2026-01-30").per_hour is None, "before its day"
    assert machine("aws-p5.48xlarge").devices == 8, "what the user's entry leaves out is the shipped entry's"
    assert machine("aws-p5.48xlarge").price("2026-11-25").per_hour is None, "its prices are the user's alone"
    gpu, slow = prices().of_pool("gpu", "2026-11-25"), prices().of_pool("slow", "2026-11-25")
    assert (gpu.per_hour, gpu.term, gpu.devices, gpu.pool) == (30, "spot", 8, "gpu")
    assert (slow.machine, slow.per_hour) == ("desk", 0.1)
    assert prices().of_pool("other", "2026-11-25").per_hour is None, "an unknown pool is not free"


def test_an_earlier_catalogue_still_opens(own_book: Callable[[str], None]) -> None:
    own_book(
        "desk: {devices: 1, memory_bytes: 8, usd_per_hour: 0.1, price_date: 2026-01-31}\n"
        "local: {devices: 2, memory_bytes: 8, usd_per_hour: 0.5, price_date: 2026-02-28}\n"
        'mine: {devices: 0, memory_bytes: 0, usd_per_hour: 0.0, price_date: ""}\n'
    )
    assert machine("desk").price("2026-11-25").price_date == "2026-01-31"
    assert machine("local").price("2026-11-25").per_hour == 0.5
    assert machine("mine").price("2026-11-25").per_hour is None, "no day: no price, not 0"
    assert machine("aws-p5.48xlarge").devices == 8


@pytest.mark.parametrize(
    ("name", "hint"),
    [("aws-p5.48xlarg", "Did you mean aws-p5.48xlarge?"), ("zz", "Known are aws-g5.xlarge, ")],
)
def test_an_unknown_machine_names_the_nearest(name: str, hint: str, own_book: Callable[[str], None]) -> None:
    with pytest.raises(UsageError) as caught:
        machine(name)
    assert str(caught.value).startswith(f"train.machine: the price book has no machine {name!r}. {hint}")
    own_book(f"version: 1\npools: {{gpu: {name}}}\n")
    with pytest.raises(UsageError, match=rf"pools\.gpu: .* no machine '{name}'. {hint.rstrip('?')}"):
        prices()
