"""What plan says of an estimate: a section each for memory, time and machines, and what is unknown in words."""

from __future__ import annotations

from data_contracts.pipeline_spec import SearchSpec
from flows.commands.plan import estimate_lines, search_line
from tasks.estimates.earlier_runs import Span
from tasks.estimates.estimate import Estimate, StageEstimate
from tasks.estimates.offers import MemoryNeed, Offer

KNOWN = Estimate(
    begun_with="2 tensors loaded, 1 missing (head)",
    machine="gpu",
    memory_bytes=2**34,
    needs=[MemoryNeed("ddp", 2, 4, 16, 2**30), MemoryNeed("fsdp", 2, 4, 16, 2**29)],
    recommendation="ddp fits.",
    stages=[
        StageEstimate("train", Span(3600, 3000, 4200), "2 earlier runs", {"USD": 0.01}),
        StageEstimate("verify", Span(60, 60, 60), "1 earlier run", {"USD": 0.001}),
    ],
    offers=[
        Offer("gpu", 1, 4, "spot", "ddp", 2**30, 2**34, 9.0, "USD", 3960.0, "eu"),
        Offer("gpu", 1, 4, "on-demand", "ddp", 2**30, 2**34, 36.0, "USD", 3600.0),
    ],
    verdict="The cheapest is …",
)


def test_the_sections_of_an_estimate() -> None:
    assert (
        "\n".join(estimate_lines(KNOWN))
        == """
train.init_from: 2 tensors loaded, 1 missing (head)

memory of a device, in tensors
  strategy  nodes × devices  rows at once     memory
  ddp       2 × 4                      16    1.0 GiB
  fsdp      2 × 4                      16  512.0 MiB
  ddp fits.

time and cost
  stage    time  range                   cost  from
  train     1 h  50 min to 1.17 h   36.00 USD  2 earlier runs
  verify  1 min                    0.0600 USD  1 earlier run
  In all 1.02 h (51 min to 1.18 h). Cost: 36.06 USD (30.06 to 42.06).

machines of the price book on which the training fits
  machine         nodes × devices  strategy               memory    an hour  training       cost
  gpu (spot, eu)  1 × 4            ddp       1.0 GiB of 16.0 GiB   9.00 USD     1.1 h   9.90 USD
  gpu             1 × 4            ddp       1.0 GiB of 16.0 GiB  36.00 USD       1 h  36.00 USD
  The cheapest is …
  The times on spot nodes are those without interruptions."""
    )


def test_what_is_unknown_is_said() -> None:
    unknown = Estimate(
        machine="m",
        memory_bytes=0,
        unmeasured="the module cannot be built.",
        stages=[StageEstimate("train", None, "no earlier run", None)],
        unreadable=1,
    )
    lines = estimate_lines(unknown)
    assert "  it is unknown: the module cannot be built" in lines
    assert "  The time of the whole run is unknown, because that of train is unknown." in lines
    assert lines[-1] == "  1 earlier run is left out: its records are damaged."


def test_a_price_that_is_unknown() -> None:
    gpu, here = frozenset(("gpu",)), frozenset(("an unknown machine",))
    train, verify = (StageEstimate("", Span(60, 60, 60), "1 earlier run", None, unpriced=one) for one in (gpu, here))
    [line] = [one for one in estimate_lines(Estimate("m", 0, stages=[train, verify, train])) if "In all" in one]
    assert line.endswith("Cost: unknown, because no price is known for an unknown machine and gpu.")


def test_what_a_search_may_use_and_what_a_trial_takes() -> None:
    def search(**budget: object) -> SearchSpec:
        space = {"train.seed": {"choices": [1, 2]}}
        return SearchSpec.model_validate({"space": space, "budget": budget, "parallel": 4})

    limited = search_line(search(trials=40, hours=20.0, amount=100.0, currency="USD"), KNOWN)
    words = "at most 40 trials, 4 at the same time, and 20 node-hours and 100.00 USD"
    assert limited == f"{words}; a training takes about 1 h, its cost is 36.00 USD"
    words = "at most 9 trials, 4 at the same time, without a limit of hours or money"
    assert search_line(search(trials=9), None) == f"{words}; what a training takes is unknown, or it is reused"
