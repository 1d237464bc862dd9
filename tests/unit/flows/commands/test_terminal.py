"""What a store or a rank says reaches a terminal as text, never as commands to it."""

from __future__ import annotations

import logging
from argparse import Namespace
from unittest.mock import Mock

import pytest

from data_contracts.errors import UsageError
from flows.commands import guard
from flows.commands.terminal import printable

ATTACK = "\x1b]0;pwned\x07\x1b[2J\x1b[31m"
SHOWN = "\\x1b]0;pwned\\x07\\x1b[2J\\x1b[31m"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (ATTACK, SHOWN),
        ("a\rb\x00\x7f\x9b2J", "a\\rb\\x00\\x7f\\x9b2J"),
        ("abc\u202etxt.\u2066\u200f", "abc\\u202etxt.\\u2066\\u200f"),
        ("half \udcff", "half \\udcff"),
        ("\x1b[8m\x1b[31;8m", "\\x1b[8m\\x1b[31;8m"),
        ("a\n ::set-output name=x::y\n##[debug]z", "a\n \\x3a:set-output name=x::y\n\\u0023#[debug]z"),
        ("\x1b[32mpromoted\x1b[0m", "\\x1b[32mpromoted\\x1b[0m"),
        ("a\n\tb \\ ä 猫 👩\u200d🔬", "a\n\tb \\ ä 猫 👩\u200d🔬"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_only_the_verdict_at_the_beginning_of_an_answer_has_a_colour() -> None:
    verdict = "\x1b[32mpromoted\x1b[0m"
    assert printable(f"{verdict}: {verdict}", coloured=True) == f"{verdict}: \\x1b[32mpromoted\\x1b[0m"
    assert printable("\x1b[31mrm -rf\x1b[0m", coloured=True) == "\\x1b[31mrm -rf\\x1b[0m"


def test_answers_logs_and_errors_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"handlers": [], "propagate": True, "level": guard.log.level}.items():
        monkeypatch.setattr(guard.log, name, value)

    def told(arguments: Namespace) -> guard.Answer:
        logging.getLogger("trainwright").info("logged %s", f"{ATTACK}\nnot a line")
        return guard.Answer(f"answered {ATTACK}", {})

    failed = Mock(side_effect=UsageError(f"failed {ATTACK}", user_traceback=f"traced {ATTACK}"))
    arguments = Namespace(json=False, command="doctor")
    assert [guard.carry_out(lambda: told, arguments), guard.carry_out(lambda: failed, arguments)] == [0, 2]
    said = capsys.readouterr()
    assert said.out == f"answered {SHOWN}\n"
    assert said.err == f"logged {SHOWN}\\nnot a line\ntraced {SHOWN}\ntrainwright: failed {SHOWN}\n"
