"""Arguments that cannot be parsed are an error like any other: a sentence, JSON if asked for, exit code 2."""

from __future__ import annotations

import json

import pytest

from flows.cli import SUBCOMMANDS, main, parser

ALL = "`trainwright --help` lists the commands."
WRONG = {
    "no command": ([], f"the following arguments are required: COMMAND. {ALL}"),
    "no such command": (["plann"], f"there is no command plann; did you mean plan? {ALL}"),
    "nothing like it": (["zzz"], f"there is no command zzz. {ALL}"),
    "no spec": (
        ["run"],
        "run: the following arguments are required: SPEC. `trainwright run --help` lists the arguments.",
    ),
    "no such option": (
        ["plan", "a.yaml", "--foo"],
        "plan: unrecognized arguments: --foo. `trainwright plan --help` lists the arguments.",
    ),
    "a field and its value apart": (
        ["run", "a.yaml", "--set", "train.seed", "3"],
        "run: unrecognized arguments: 3. --set takes one argument: --set train.seed=3. `trainwright run --help` lists "
        "the arguments.",
    ),
    "not a number": (
        ["logs", "a", "--rank", "first"],
        "logs: argument --rank: invalid int value: 'first'. `trainwright logs --help` lists the arguments.",
    ),
}


@pytest.mark.parametrize("asked", ["", "--js"])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case: str, asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, sentence = WRONG[case]
    assert main([*arguments, *([asked] if asked else [])]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("usage: trainwright")
    assert err.endswith(f"\ntrainwright: {sentence}\n")
    if not asked:
        assert out == ""
        return
    told = json.loads(out)
    assert (told["exit_code"], told["error"]["cause"]) == (2, "usage")
    assert f"{told['error']['message']} {told['error']['remedy']}" == sentence


def test_help_lists_each_command_on_one_line_of_a_terminal() -> None:
    lines = parser().format_help().splitlines()
    assert [line for line in lines if len(line) > 80] == []
    names = [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("  -")]
    assert sorted(names) == sorted(SUBCOMMANDS)


@pytest.mark.parametrize(("command", "length"), [("run", True), ("plan", True), ("validate", False), ("train", False)])
def test_only_a_command_that_accepts_a_length_offers_it(command: str, length: bool) -> None:
    [commands] = [action for action in parser()._actions if action.choices]
    [window] = [one for one in commands.choices[command]._actions if one.dest == "window"]
    assert ("7d" in window.help) is length
