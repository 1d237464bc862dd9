"""Tagged JSON: what goes in comes out, with its types and its order; what has no form is named, never pickled."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, deque
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.checkpoint.files import UnsupportedState, decode, encode


def through_json(value: Any) -> Any:
    """`value` encoded, written, read and decoded; tensors go through a dictionary."""
    kept: dict[str, torch.Tensor] = {}
    text = json.dumps(encode(value, kept.__setitem__), allow_nan=False)
    return decode(json.loads(text), kept.__getitem__)


VALUES: list[Any] = [
    None,
    True,
    0,
    2**70,
    "text",
    "$",
    1.5,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    (),
    (1, (2, [3])),
    {1, 2, 3},
    frozenset({"a"}),
    b"\x00\xff",
    bytearray(b"x"),
    1 + 2j,
    {},
    {"b": 1, "a": 2},
    {1: "one", (2, 3): "pair", None: 0, 2.5: []},
    {"$": "a user's own key", "value": 1},
    OrderedDict([("z", 1), ("a", 2)]),
    Counter({30: 2, 60: 1}),
    deque([1, 2], maxlen=5),
    deque(),
    np.float32(0.1),
    np.int64(-3),
    np.bool_(True),
    torch.float16,
    torch.device("cpu"),
    torch.Size([2, 3]),
    {"nested": [{"deep": ({"set": {1}}, [math.inf])}]},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    back = through_json(value)
    assert repr(back) == repr(value)  # with the order of a dictionary, the sign of a zero, and NaN
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor(3), torch.zeros(0, 4), torch.arange(6).reshape(2, 3), torch.tensor([math.nan]), torch.ones(2).bool()],
    ids=str,
)
def test_a_tensor_leaves_through_put_under_its_path(tensor: torch.Tensor) -> None:
    kept: dict[str, torch.Tensor] = {}
    written = encode({"a": [0, {"b": tensor}]}, kept.__setitem__)
    assert list(kept) == ["a/1/b"]
    assert "a/1/b" in json.dumps(written)
    back = decode(written, kept.__getitem__)["a"][1]["b"]
    assert torch.equal(back.nan_to_num(7), tensor.nan_to_num(7))


@pytest.mark.parametrize(
    "array",
    [
        np.array([["low", "high"], ["", "ü"]]),
        np.array("alone"),
        np.array([b"a", b"\xff\x01"]),
        np.array(["x", None, 1.5, ("a", 1), [2]], dtype=object),
        np.array(["2026-11-28", "NaT"], dtype="datetime64[ns]"),
        np.array([3], dtype="timedelta64[s]"),
        np.zeros((0, 2), dtype="<U7"),
        np.arange(6.0).reshape(2, 3),
        np.array(5, np.int8),
        np.zeros((0, 2), np.uint8),
    ],
    ids=str,
)
def test_an_array_comes_back(array: np.ndarray[Any, Any]) -> None:
    back = through_json({"classes_": array})["classes_"]
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert str(back.tolist()) == str(array.tolist())


def test_a_set_has_the_same_bytes_whatever_its_order() -> None:
    # 0 and 8 fall into the same slot, so a set keeps them in the order in which they came.
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    assert encode(one, {}.__setitem__) == encode(other, {}.__setitem__)


class Word(str, Enum):  # noqa: UP042 - a StrEnum's text is its value, this one's is not
    ONE = "one"


class Pair(NamedTuple):
    left: int


def test_a_text_enum_comes_back_as_its_text() -> None:
    assert through_json({"stage": Word.ONE}) == {"stage": "one"}


@pytest.mark.parametrize(
    ("value", "path", "kind"),
    [
        ({"a": [1, object()]}, "a/1", "object"),
        ({"a": {"f": print}}, "a/f", "builtin_function_or_method"),
        ((Path("x"),), "0", "PosixPath"),
        (Pair(1), "", "Pair"),
        ([np.zeros(1, dtype=[("a", "i4")])], "0", "NumPy array of [('a', '<i4')]"),
        ([np.zeros(1, dtype=">f8")], "0", "NumPy array of >f8"),
        ([np.zeros(1, dtype=np.longdouble)], "0", "NumPy array of float128"),
        ([np.ma.masked_equal([1.0, 2.0], 2.0)], "0", "numpy.ma.MaskedArray"),
        ({object(): 1}, "key 0", "object"),
        ([Exception], "0", "type"),
        ({"kept": np.array(["x", Exception], dtype=object)}, "kept/1", "type"),
    ],
)
def test_what_has_no_form_is_named(value: Any, path: str, kind: str) -> None:
    with pytest.raises(UnsupportedState) as caught:
        encode(value, {}.__setitem__)
    assert caught.value.path == path
    assert caught.value.kind.endswith(kind)


@pytest.mark.parametrize(
    ("tag", "value", "sentence"),
    [
        ("eval", "1", "unknown"),
        ("object", [], "unknown"),
        ("dtype", "nn", "unknown"),
        ("array", ["<U99999999", [1], ["a"]], "unknown array"),
        ("array", ["<f8", [1], [1.0]], "unknown array"),
        ("array", ["<U1", [3], ["a"]], "cannot reshape"),
    ],
)
def test_an_unknown_tag_and_an_array_that_claims_more_than_it_has_are_refused(
    tag: str, value: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        decode({"$": tag, "value": value}, {}.__getitem__)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(PLAIN)
def test_any_nesting_comes_back(value: Any) -> None:
    assert through_json(value) == value


SCHEDULES = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    "make",
    [
        lambda o: SCHEDULES.StepLR(o, 2),
        lambda o: SCHEDULES.MultiStepLR(o, [1, 3, 3]),
        lambda o: SCHEDULES.LambdaLR(o, lambda step: 0.9**step),
        lambda o: SCHEDULES.ReduceLROnPlateau(o),
        lambda o: SCHEDULES.OneCycleLR(o, 0.1, total_steps=10),
        lambda o: SCHEDULES.CyclicLR(o, 0.01, 0.1),
        lambda o: SCHEDULES.CosineAnnealingWarmRestarts(o, 3),
        lambda o: SCHEDULES.SequentialLR(o, [SCHEDULES.LinearLR(o), SCHEDULES.CosineAnnealingLR(o, 5)], [2]),
        lambda o: SCHEDULES.ChainedScheduler([SCHEDULES.ConstantLR(o), SCHEDULES.ExponentialLR(o, 0.9)]),
    ],
)
def test_every_schedule_of_torch_has_a_form(make: Any) -> None:
    def stepped() -> tuple[Any, Any]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.05, momentum=0.9)
        return optimizer, make(optimizer)

    optimizer, schedule = stepped()
    for _ in range(3):
        optimizer.step()
        schedule.step(*([1.0] if isinstance(schedule, SCHEDULES.ReduceLROnPlateau) else []))
    other_optimizer, other = stepped()
    other_optimizer.load_state_dict(through_json(optimizer.state_dict()))
    other.load_state_dict(through_json(schedule.state_dict()))
    for each, one in ((optimizer, schedule), (other_optimizer, other)):
        each.step()
        one.step(*([1.0] if isinstance(one, SCHEDULES.ReduceLROnPlateau) else []))
    assert other_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
