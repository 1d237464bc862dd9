"""No paid machine counts as free: each place of a run has the price of its pool or its machine, or an unknown one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.load import load_spec
from data_contracts.resolved import Price
from infra.prices import THIS_MACHINE, VARIABLE
from tasks.run.resolve import run_prices
from tests.support.tiny import write_project

BOOK = """\
version: 1
machines:
  small: {devices: 1, prices: [{date: 2026-01-01, currency: USD, per_hour: 1}]}
  big: {devices: 8, prices: [{date: 2026-01-01, currency: USD, per_hour: 8}]}
pools: {gpu: big}
"""
POOLED = ["train.launcher=work-pool", "train.pool=gpu"]


@pytest.fixture
def priced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "prices.yaml").write_text(BOOK)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "prices.yaml"))
    monkeypatch.delenv(THIS_MACHINE, raising=False)
    path = write_project(tmp_path / "project")

    def made(*overrides: str) -> dict[str, Price]:
        found = run_prices(load_spec(path, overrides), "2026-11-25")
        return {"train": found["price"], **found["prices"]}

    return made


def per_hour(found: dict[str, Price]) -> dict[str, float | None]:
    return {name: price.per_hour for name, price in found.items()}


OTHER = ["train.launcher=work-pool", "train.pool=other", "evaluate.launcher=work-pool", "evaluate.pool=other"]


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        ([], (None, None, None, None)),
        ([*POOLED, "verify.launcher=work-pool", "verify.pool=other"], (8, None, None, None)),
        (["train.machine=small"], (1, 1, 1, 1)),
        ([*OTHER, "train.machine=small"], (1, None, None, 1)),
        ([*POOLED, "train.machine=big"], (8, None, None, None)),
    ],
    ids=["not a word", "an unknown pool", "this machine", "a pool's machine", "a known pool's machine"],
)
def test_each_place_has_the_price_of_its_machine_and_an_unknown_one_is_not_free(
    overrides: list[str], found: tuple[float | None, ...], priced: Any
) -> None:
    assert tuple(per_hour(priced(*overrides))[name] for name in ("train", "here", "verify", "evaluate")) == found


def test_a_pool_is_named(priced: Any) -> None:
    found = priced(*POOLED, "verify.launcher=work-pool", "verify.pool=other")
    assert (found["train"].pool, found["verify"].place) == ("gpu", "the pool other, which the price book does not have")


@pytest.mark.parametrize(("gpus", "machine", "devices"), [(2, "local", 2), (0, "local", 0), (None, "", 0)])
def test_the_gpus_of_a_machine_that_nobody_names_are_counted_or_unknown(
    gpus: int | None, machine: str, devices: int, priced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.machine.num_gpus", lambda: gpus)
    here = priced()["here"]
    assert (here.machine, here.devices, here.knows_devices) == (machine, devices, gpus is not None)
    assert priced("train.machine=small")["here"].devices == 1, "the book's word comes first"


def test_this_machine_says_what_it_is(priced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THIS_MACHINE, "small")
    assert per_hour(priced(*POOLED)) == {"train": 8, "here": 1, "verify": 1, "evaluate": 1}
    monkeypatch.setenv(THIS_MACHINE, "smal")
    with pytest.raises(UsageError, match=r"TRAINWRIGHT_MACHINE: .* no machine 'smal'. Did you mean small"):
        priced()
