"""The rules of promote.canary, each as the error that `load_spec` points to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data_contracts.errors import SpecError
from data_contracts.load import load_spec
from data_contracts.pipeline_spec.promote import CanarySpec
from tests.unit.data_contracts.pipeline_spec.test_spec import EXTERNAL

Write = Callable[..., Path]
# (what the section `promote` begins with, the error without place)
BROKEN = [
    (
        "promote:\n  canary: {metric: accuracy}\n",
        "promote.canary.within: is missing: a canary needs a window; give one, such as within: 14d",
    ),
    (
        "promote:\n  canary: {metric: accuracy, within: 14d, min_gain: 0, margin: 0}\n",
        "promote.canary.margin: does not go with min_gain; give one of them",
    ),
    (
        "promote:\n  canary: {metric: accuracy, within: 14d, margin: 1e70}\n",
        "promote.canary.margin: must be a finite number",
    ),
    (
        "promote:\n  canary: {metric: accuracy, within: 400d}\n",
        "promote.canary.within: '400d' is not between 1m and 365d",
    ),
    (
        "promote:\n  canary: {metric: acuracy, within: 14d}\n",
        "promote.canary.metric: 'acuracy' is not a metric of evaluate; it has accuracy; did you mean accuracy?",
    ),
    (
        "  sets: {judge: {source: j.csv, sealed: true}}\npromote:\n  canary: {metric: judge/accuracy, within: 14d}\n",
        "promote.canary.metric: 'judge' is a sealed set, and a canary's scores are shown; name another",
    ),
    (
        "promote:\n  alias: canary\n  canary: {metric: accuracy, within: 14d}\n",
        "promote.alias: cannot be canary with promote.canary, which keeps its candidates there; choose another",
    ),
]


@pytest.mark.parametrize(("new", "error"), BROKEN, ids=[error.partition(";")[0] for _, error in BROKEN])
def test_a_broken_rule_names_its_field(new: str, error: str, spec_file: Write) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(spec_file(("promote:\n", new)))
    place, _, said = str(caught.value).partition(": ")
    assert said == error
    assert place.startswith("spec.yaml:")


def test_external_data_has_no_canary(spec_file: Write) -> None:
    with pytest.raises(SpecError, match=r"promote\.canary: needs rows that Trainwright reads, and data is external"):
        load_spec(spec_file(*EXTERNAL, ("promote:\n", "promote:\n  canary: {metric: accuracy, within: 14d}\n")))


def test_a_margin_is_a_loss_that_is_accepted() -> None:
    assert CanarySpec(within="14d", metric="a").bound == 0
    assert CanarySpec(within="14d", metric="a", min_gain=0.01).bound == 0.01
    assert CanarySpec(within="14d", metric="a", margin=0.02).bound == -0.02
