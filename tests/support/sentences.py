"""The exact wording of errors, in one place: tests/golden/sentences.json, which this module writes anew when it is run.

Each table makes sentences of bad inputs. Tests elsewhere assert that an input is refused, and where; how it is said
stands in that file alone, and a change of wording is a change of that file.
"""

from __future__ import annotations

import contextlib
import json
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.frozen import GOLDEN, command, in_json
from tests.support.tiny import write_project

KEPT = GOLDEN / "sentences.json"


@dataclass(frozen=True)
class BadPlan:
    """A tiny project with a mistake, and further arguments of `plan`.

    Attributes:
        file: the file that is wrong.
        old: the text in it that is replaced; None for all of it.
        new: what stands there instead; None if the file is missing.
    """

    file: str = ""
    old: str | None = None
    new: str | None = None
    arguments: Sequence[str] = ()

    def spoil(self, folder: Path) -> None:
        """Make the mistake in a project."""
        path = folder / self.file
        if not self.file:
            return
        if self.new is None:
            path.unlink()
        elif self.old is None:
            path.write_text(self.new)
        else:
            text = path.read_text()
            assert text.count(self.old) == 1
            path.write_text(text.replace(self.old, self.new))

    def words(self, folder: Path) -> list[str]:
        """The further arguments, for a project in this folder."""
        return [argument.replace("FOLDER", str(folder)) for argument in self.arguments]


def with_set(field: str, value: str) -> BadPlan:
    """A mistake in an argument of `--set`."""
    return BadPlan(arguments=("--set", f"{field}={value}"))


PLANS = {
    "no spec": BadPlan("pipeline.yaml"),
    "empty spec": BadPlan("pipeline.yaml", new=""),
    "no YAML": BadPlan("pipeline.yaml", "version: 1", "version: [1"),
    "missing file": BadPlan("rows.csv"),
    "glob without files": with_set("data.source", "part-*.csv"),
    "empty file": BadPlan("rows.csv", new=""),
    "missing suite": BadPlan("suite.json"),
    "wrong type": BadPlan("pipeline.yaml", "global_batch_size: 32", "global_batch_size: many"),
    "wrong type in --set": with_set("train.seed", "first"),
    "unknown key": BadPlan("pipeline.yaml", "global_batch_size", "global_batchsize"),
    "no such class": with_set("train.lightning.model.class_path", "net.Nett"),
    "no such module": with_set("train.lightning.model.class_path", "nett.Net"),
    "no such class, in its line": BadPlan("pipeline.yaml", "net.Net", "net.Nett"),
    "no such function": with_set("train.transform", "net.scaled"),
    "no such metric class": with_set("evaluate.metrics.accuracy.class_path", "torchmetrics.classification.Akkuracy"),
    "gate on a metric that does not exist": with_set("promote.gates", "[{metric: acuracy, min: 0.5}]"),
    "store below a file": BadPlan(arguments=("--store", "FOLDER/rows.csv/store")),
}


def of_plans(work: Path) -> dict[str, str]:
    """What `plan` says about each of PLANS."""
    sentences: dict[str, str] = {}
    for number, (name, bad) in enumerate(PLANS.items()):
        folder = work / str(number) / "tiny"
        spec = write_project(folder)
        bad.spoil(folder)
        with contextlib.chdir(folder):
            answer = json.loads(command("plan", spec, *bad.words(folder), "--json"))
        assert answer["exit_code"] == 2
        error = answer["error"]
        sentences[name] = anywhere(f"{error['message']} {error['remedy']}".strip(), folder)
    return sentences


def anywhere(sentence: str, folder: Path) -> str:
    """A sentence as it is kept: without the places of this project and this environment."""
    return sentence.replace(str(folder), "FOLDER").replace(sysconfig.get_path("purelib"), "SITE")


# A kind of bad input → what makes its sentences in an empty folder: a name for each case, and what is said.
TABLES: dict[str, Callable[[Path], dict[str, str]]] = {"plan": of_plans}


def kept() -> dict[str, dict[str, str]]:
    """The sentences as they were when the file was written."""
    tables: dict[str, dict[str, str]] = json.loads(KEPT.read_text())
    return tables


def main() -> None:
    """Write the file anew."""
    with tempfile.TemporaryDirectory() as folder:
        sentences = {}
        for name, table in TABLES.items():
            (Path(folder) / name).mkdir()
            sentences[name] = table(Path(folder) / name)
    KEPT.write_text(in_json(sentences) + "\n")


if __name__ == "__main__":
    main()
