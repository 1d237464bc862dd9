"""JSON of others: what would end or fill the process is refused before a parser sees it, all else is read."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from data_contracts import foreign_files
from data_contracts.foreign_files import MAX_DEPTH, TooDeep, check_nesting, parse_json

DEEP = {
    "lists": b"[" * 100_000 + b"]" * 100_000,
    "objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "one level more": b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    "closed before": b"]" * 200_000 + b"[" * 200_000,
    "closers in texts": b'["]",' * 200_000,
    "escapes": b'["\\\\","\\"]",' * 200_000,
    "over lines": b'{"a":\n' * 200 + b"1" + b"}\n" * 200,
    "in the last row": b'{"a": [1]}\n' * 1000 + b"[" * 200 + b"]" * 200,
}


@pytest.mark.parametrize("data", DEEP.values(), ids=DEEP)
def test_deep_json_is_refused(data: bytes) -> None:
    with pytest.raises(TooDeep, match="a value is nested deeper than 100 levels"):
        check_nesting(data)
    with pytest.raises(TooDeep):
        parse_json(data)


def test_more_objects_than_any_record_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_files, "MAX_CONTAINERS", 1000)
    assert len(parse_json(b"[" + b"[]," * 998 + b"{}]")) == 999
    with pytest.raises(ValueError, match="there are more than 1,000 objects and lists"):
        parse_json(b"[" + b"[]," * 999 + b"{}]")


def test_json_that_is_cut_off_is_left_to_the_parser() -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_json(b"[" * 60 + b'{"a": [1' * 20)


def drawn(dice: random.Random, depth: int) -> Any:
    """A value of exactly this depth, with texts that look like brackets and escapes."""
    text = "".join(dice.choices('[]{}"\\ab\n', k=dice.randrange(6)))
    if not depth:
        return dice.choice([text, dice.random(), None, True])
    inside = drawn(dice, depth - 1)
    flat = [text, 1, {text: [text]}] if depth > 2 else [text]
    return [*flat, inside, *flat] if dice.random() < 0.5 else {"a" + text: inside, "b": flat[0]}


def test_what_is_at_most_as_deep_is_read_as_json_reads_it() -> None:
    dice = random.Random(1)
    for number in range(80):
        depth = dice.choice([3, 40, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 150])
        value = drawn(dice, depth)
        data = json.dumps(value, indent=dice.choice([None, 1]), ensure_ascii=bool(number % 2)).encode()
        if depth > MAX_DEPTH:
            with pytest.raises(TooDeep):
                parse_json(data)
        else:
            assert parse_json(data) == value, data
