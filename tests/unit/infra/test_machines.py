"""The catalogue: every entry is dated and sourced; a file of the user's adds and replaces."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.machines import VARIABLE, catalogue, machine


@pytest.fixture(autouse=True)
def only_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_every_price_is_dated_and_sourced() -> None:
    for name, entry in catalogue().items():
        assert entry.name == name
        assert entry.source
        if entry.usd_per_hour:
            assert date.fromisoformat(entry.price_date) < date.today()
            assert (entry.memory_bytes >= 2**34) is bool(entry.devices)
    assert machine("local").usd_per_hour == 0
    assert machine("local").price_date == ""


def test_a_file_of_the_users_adds_and_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "machines.yaml"
    mine.write_text(
        "desk: {devices: 1, memory_bytes: 8, usd_per_hour: 0.1, price_date: 2026-01-31}\n"
        "local: {devices: 2, memory_bytes: 8, usd_per_hour: 0.5, price_date: 2026-02-28}\n"
    )
    monkeypatch.setenv(VARIABLE, str(mine))
    assert machine("desk").price_date == "2026-01-31"
    assert machine("local").usd_per_hour == 0.5
    assert machine("aws-p5.48xlarge").devices == 8


@pytest.mark.parametrize(
    ("name", "hint"),
    [("aws-p5.48xlarg", "Did you mean aws-p5.48xlarge?"), ("zz", "Known are aws-g5.xlarge, ")],
)
def test_an_unknown_machine_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        machine(name)
    assert str(caught.value).startswith(f"train.machine: the machine catalogue has no {name!r}. {hint}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "the machine catalogue cannot be read"),
        ("a: [", "the machine catalogue cannot be read"),
        ("- a", "is not a machine catalogue, which maps names to machines"),
        ("a: 3", "a: a machine is a mapping of devices, memory_bytes, usd_per_hour and price_date"),
        ("a: {devices: x, memory_bytes: 1, usd_per_hour: 1}", "a: devices: "),
        ("a: {devices: 1, memory_bytes: 1, usd_per_hour: 1, cores: 3}", "a: cores: "),
        ("a: {name: b, devices: 1, memory_bytes: 1, usd_per_hour: 1}", "a: "),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(
    text: str | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "machines.yaml"
    if text is not None:
        mine.write_text(text)
    monkeypatch.setenv(VARIABLE, str(mine))
    with pytest.raises(UsageError, match="machines.yaml") as caught:
        catalogue()
    assert sentence in str(caught.value)
