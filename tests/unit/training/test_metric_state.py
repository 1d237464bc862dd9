"""A metric continues from its accumulated state."""

from __future__ import annotations

import torch
from torchmetrics import CatMetric, MeanMetric

from training.lightning_adapter import keeps_rows, last_value, restore_states, states_of, update_count


def test_a_metric_continues_from_the_state_of_another() -> None:
    first, second = MeanMetric(), MeanMetric()
    first(torch.tensor([1.0, 2.0]))
    restore_states(second, states_of(first), update_count(first))
    second(torch.tensor([6.0]))
    assert (float(second.compute()), update_count(second), float(last_value(second))) == (3.0, 2, 6.0)


def test_one_that_keeps_its_rows_is_known() -> None:
    assert (keeps_rows(CatMetric()), keeps_rows(MeanMetric())) == (True, False)
