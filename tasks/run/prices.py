"""The price in the price book for each place where a run works; looked up once, when the run starts."""

from __future__ import annotations

from typing import Any

from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.price_book import PoolEntry
from data_contracts.resolved import Price
from infra import machine
from infra import prices as price_book
from infra.prices import LOCAL, THIS_MACHINE
from tasks.run.spec_check import check_pool_machine


def run_prices(spec: PipelineSpec, day: str, store: str = "") -> dict[str, Any]:
    """`price`, `prices` and `store_rates` of a run's resolved inputs: of a node that trains, other places, the store.

    `train.machine` is the machine of the nodes that train, and of everything on this machine. Without it, the price
    book gives the machine of a pool, and TRAINWRIGHT_MACHINE gives this machine. A machine that nothing names has an
    unknown price. UsageError as `check_pool_machine`.
    """
    check_pool_machine(spec)
    book, train = price_book.prices(), spec.train
    named = train.machine if train.machine != LOCAL else ""
    mine = price_book.this_machine()
    if train.pool is None and named:
        mine = named
    field = THIS_MACHINE if mine != named else "train.machine"
    here = price_book.machine(mine, field).price(day)
    if mine == LOCAL and not here.devices:
        here = _counted(here)
    if train.pool is None:
        trained = here
    elif named:
        place = book.pools.get(train.pool) or PoolEntry(machine=named)
        trained = price_book.machine(named).price(day, place.region, place.term, train.pool)
    else:
        trained = book.of_pool(train.pool, day)
    prices: dict[str, Price] = {"here": here}
    for name, section in (("verify", spec.verify), ("evaluate", spec.evaluate)):
        if section.pool is None:
            prices[name] = here
        else:
            prices[name] = trained if section.pool == train.pool else book.of_pool(section.pool, day)
    return {
        "price": book.with_carbon(trained, day),
        "prices": {name: book.with_carbon(one, day) for name, one in prices.items()},
        "store_rates": book.of_store(store, day) if store else None,
    }


def _counted(here: Price) -> Price:
    """The price of this machine with its GPUs counted, where neither the spec nor the environment says what it is.

    Without a machine, nobody knows its GPUs; that is not 0.
    """
    number = machine.num_gpus()
    return here.model_copy(update={"machine": ""} if number is None else {"devices": number})
