"""A stage stands in one place: those that `flows.stages.LINE` lists, and one that is added there and nowhere else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from flows.stages import stages, verbs
from tests.support.added_stage import copy_with_card
from tests.support.tiny import answer, trainwright


def test_a_stage_is_named_as_its_module_and_takes_what_stands_above_it() -> None:
    above: list[str] = []
    for stage, verb in zip(stages(), verbs(), strict=True):
        assert stage.name == verb
        assert [taken.name for taken in stage.takes if taken.name not in above] == []
        above.append(verb)


def test_an_added_stage_has_its_verb_its_hand_off_and_its_line_in_a_plan(tmp_path: Path, repository: Path) -> None:
    root = copy_with_card(repository, tmp_path / "copy")
    golden = Path(shutil.copytree(repository / "tests/golden/store-v1", tmp_path / "golden"))

    def command(*arguments: str | Path) -> dict[str, Any]:
        where = [golden / "project/pipeline.yaml", "--store", golden / "store", "--json"]
        done = trainwright(*arguments, *where, cwd=tmp_path, env={"PYTHONPATH": str(root)})
        assert done.returncode == 0, done.stderr
        return answer(done)

    def planned() -> tuple[str, str]:
        [card] = [step for step in command("plan")["stages"] if step["name"] == "card"]
        return card["action"], card["why"]

    assert planned() == ("run", "there is no card of this checkpoint")
    out = tmp_path / "card.json"
    first = command("card", "--out", out)
    assert first["stage"]["status"] == "ran"
    assert first["handoff"] == json.loads(out.read_text()) == {"schema_version": 1, "text": "tiny at step 45"}
    again = command("card")
    assert (again["stage"]["status"], again["handoff"]) == ("reused", first["handoff"])
    assert planned() == ("reuse", again["stage"]["reused_from"])
