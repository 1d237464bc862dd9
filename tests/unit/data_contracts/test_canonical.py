"""Canonical JSON: one value, one text; and the names that may become paths."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_contracts.canonical import KEY_LENGTH, canonical, digest, reuse_key, valid_name

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text('aé✓ "\\\n'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abé.", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_reading_gives_the_value_and_writing_again_the_same_bytes(value: Any) -> None:
    written = canonical(value)
    assert json.loads(written) == value
    assert canonical(json.loads(written)) == written


@given(st.dictionaries(st.text("abcdé", max_size=4), VALUES, max_size=6), st.randoms())
def test_the_order_of_keys_decides_nothing(value: dict[str, Any], random: Any) -> None:
    shuffled = list(value.items())
    random.shuffle(shuffled)
    assert digest(dict(shuffled)) == digest(value)


def test_the_bytes_themselves() -> None:
    assert canonical({"b": [1, 2.5, None, True], "a": "é"}) == '{"a":"é","b":[1,2.5,null,true]}'.encode()
    # Fixed for good: ids in every store rest on it.
    assert digest({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, {"a": [math.nan]}])
def test_what_json_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(value)


def test_another_process_with_another_hash_seed_gives_the_same_digest(repository: Path) -> None:
    value = {name: list("edcba") for name in ("x", "y", "z")}
    code = f"from data_contracts.canonical import digest; print(digest({value!r}))"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, cwd=repository, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert done.stdout.strip() == digest(value)


def test_a_reuse_key_changes_with_each_thing_that_decides_a_result() -> None:
    base: dict[str, Any] = {
        "stage": "shard", "stage_version": 1, "settings": {"seed": 0}, "inputs": ["a"], "code_digest": None,
    }  # fmt: skip
    changes: list[dict[str, Any]] = [
        {"stage": "train"}, {"stage_version": 2}, {"settings": {"seed": 1}}, {"inputs": ["b"]}, {"code_digest": "c"},
    ]  # fmt: skip
    keys = [reuse_key(**{**base, **change}) for change in [{}, *changes]]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {KEY_LENGTH}
    assert reuse_key(**base) == keys[0] == valid_name(keys[0])


@pytest.mark.parametrize("name", ["a", "0", "digits", "a.b_c-d", "a" * 63])
def test_names(name: str) -> None:
    assert valid_name(name) == name


@pytest.mark.parametrize("name", ["", "A", "ä", "a b", "-a", ".a", "_a", "..", "a/b", "a\n", "a" * 64])
def test_no_names(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a name"):
        valid_name(name)
