"""A project whose data, environment and ignored files hold canaries, and a search for them wherever they may have gone.

Every folder that the product writes (state, Prefect, TMPDIR, store) lies below `machine`, so that one search sees all.
The project's code reads from a file how it shall fail, so that a case changes neither code nor environment.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.support.files import write_files
from tests.support.tiny import MODEL, SPEC, trainwright, write_project

STAGES = ("validate", "shard", "train", "verify", "evaluate")
FOLDERS = {"TRAINWRIGHT_HOME": "home", "PREFECT_HOME": "prefect", "TMPDIR": "tmp"}
VARIABLES = ("AWS_SECRET_ACCESS_KEY", "MY_API_TOKEN", "PREFECT_API_AUTH_STRING")
IGNORED = (".env", "secrets.json")
# What is meant to hold rows: the sealed shards of a dataset, and nothing else of the store.
SHARDS = re.compile(r"store/datasets/[^/]+/[^/]+\.(tfrecord|parquet)$")

# How the project's code fails with a value that it saw. `where` is the module of the process that runs it.
FAULTS = '''\
import sys
import warnings
from pathlib import Path

FAULT = Path({fault!r})


def where():
    return getattr(sys.modules["__main__"], "__spec__", None).name.rpartition(".")[2]


def strike(place, value):
    """Do with a value what the file says, if it is meant for this place."""
    wanted, _, kind = FAULT.read_text().partition(" ")
    print("saw", value)
    print("saw", value, file=sys.stderr)
    warnings.warn(f"saw {{value}}")
    if place != wanted:
        return
    if kind == "raise":
        raise ValueError(f"bad row {{value}}")
    if kind == "chain":
        try:
            raise KeyError(value)
        except KeyError as error:
            wrapped = RuntimeError(f"looked for {{value}}")
            wrapped.add_note(f"note {{value}}")
            raise wrapped from error
    if kind == "group":
        raise ExceptionGroup(f"several {{value}}", [ValueError(f"one {{value}}"), TypeError(f"two {{value}}")])
    if kind == "ours":
        from data_contracts.errors import UsageError

        raise UsageError(f"our own class {{value}}", remedy=f"mend {{value}}")
    if kind == "exit":
        raise SystemExit(f"leaving with {{value}}")
    if kind == "kill":
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "arrow":
        import pyarrow as pa

        pa.array([f"x{{value}}"]).cast(pa.int64())
    if kind == "pandas":
        import pandas as pd

        pd.to_numeric(pd.Series([f"x{{value}}"]))
    if kind == "wait":
        import time

        FAULT.with_name("waiting").touch()
        while FAULT.read_text() == f"{{wanted}} wait":
            time.sleep(0.05)
'''

CLEAN = """\
import faults


def clean(batch):
    faults.strike("transform", batch.column("name")[0].as_py())
    return batch
"""

_STEP = """\
        x, y, account = batch
        faults.strike(f"{faults.where()}-step", account[0].item())
        if faults.FAULT.read_text() == f"{faults.where()}-step log":
            self.log("seen", str(account[0].item()))
        loss ="""

SCORE = """\
import torchmetrics.classification

import faults


class Accuracy(torchmetrics.classification.MulticlassAccuracy):
    def update(self, predictions, targets):
        # A metric sees no column but its target; what it saw is told from outside.
        faults.strike("metric", faults.FAULT.with_name("account").read_text())
        super().update(predictions, targets)
"""


@dataclass
class Scene:
    """A project with canaries on a machine of its own.

    Attributes:
        tokens: what must be nowhere, by what it is.
        inside: whether the machine's folders lie in the project.
    """

    folder: Path
    inside: bool = False
    tokens: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.project = self.folder / "project"
        self.machine = (self.project if self.inside else self.folder) / "machine"
        self.store = self.machine / "store"
        for name in ("home", "prefect", "tmp", "store"):
            (self.machine / name).mkdir(parents=True)
        self.fault = self.folder / "fault"
        self.fault.write_text("nowhere ")
        # A row's value begins with its column's token, so any row's is found.
        self.tokens["column name"] = f"Jane{secrets.token_hex(6)}"
        self.tokens["column account"] = str(secrets.randbelow(9 * 10**11) + 10**11)
        self.tokens |= {f"variable {name}": f"v{secrets.token_hex(8)}" for name in VARIABLES}
        self.tokens |= {f"file {name}": f"f{secrets.token_hex(8)}" for name in IGNORED}
        (self.folder / "account").write_text(self.tokens["column account"])
        self._write()

    @property
    def spec(self) -> Path:
        """The pipeline spec."""
        return self.project / "pipeline.yaml"

    def env(self, *without: str) -> dict[str, str]:
        """The environment of a command: its machine's folders and the planted variables."""
        planted = {name: self.tokens[f"variable {name}"] for name in VARIABLES if name not in without}
        return {**{name: str(self.machine / part) for name, part in FOLDERS.items()}, **planted}

    def run(
        self, verb: str, *arguments: str, env: Mapping[str, str] | None = None, forked: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Carry out a command on the project; what it printed is searched later."""
        words = [verb, self.spec, "--store", self.store, *arguments]
        done = trainwright(*words, cwd=self.project, env=env or self.env(), forked=forked)
        self.outputs.append(f"{verb} {arguments}\n{done.stdout}\n{done.stderr}")
        return done

    def write(
        self, words: list[str], run: str, *, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Carry out a command in the project's folder; SPEC and RUN stand for the spec and a run's id."""
        known = {"SPEC": str(self.spec), "RUN": run}
        store = [] if words[0] == "key" else ["--store", str(self.store)]
        done = trainwright(*(known.get(word, word) for word in words), *store, cwd=self.project, env=env or self.env())
        self.outputs.append(f"{words}\n{done.stdout}\n{done.stderr}")
        return done

    def reach(self, stage: str | None) -> None:
        """Carry out the stages before this one (None: all), without a fault."""
        for before in STAGES if stage is None else STAGES[: STAGES.index(stage)]:
            if before not in self.reached:
                self.fault.write_text("nowhere ")
                done = self.run(before)
                assert done.returncode == 0, done.stdout + done.stderr
                self.reached.add(before)

    def hits(self, *roots: Path) -> list[str]:
        """Where a canary stands: in an output, or in a file below the machine's folder or `roots`.

        Left out is what is meant to hold rows, and the bundles of code, which have a test of their own.
        """
        found = [
            f"{what} in the output of {text[:40]!r}" for text in self.outputs for what in self.seen_in(text.encode())
        ]
        for path in files(self.machine, *roots):
            if not (SHARDS.search(str(path)) or is_withheld(path) or path.is_relative_to(self.store / "code")):
                found += [f"{what} in {path}" for what in self.held_by(path)]
        return found

    def held_by(self, path: Path) -> list[str]:
        """The canaries in a file or its name."""
        try:
            return list(self.seen_in(path.read_bytes() + str(path).encode()))
        except FileNotFoundError:  # gone meanwhile
            return []

    def withheld(self, said: str) -> str:
        """The full text that a sentence names by its path."""
        named = re.search(r"(/\S+?/withheld/[\w.-]+?\.txt) on ", said)
        assert named is not None, said
        path = Path(named[1])
        assert is_withheld(path)
        return path.read_text()

    def seen_in(self, data: bytes) -> Iterator[str]:
        """The canaries in these bytes."""
        for what, token in self.tokens.items():
            at = data.find(token.encode())
            if at >= 0:
                yield f"{what} ({data[max(0, at - 60) : at + 60]!r})"

    def _write(self) -> None:
        write_project(self.project)
        model = MODEL.replace("import torch\n", "import torch\n\nimport faults\n", 1)
        model = model.replace("        x, y = batch\n        loss =", _STEP, 1).replace(
            "x, y = batch", "x, y, _ = batch"
        )
        files = {
            ".gitignore": "\n".join(IGNORED),
            ".env": f"TOKEN={self.tokens['file .env']}\n",
            "secrets.json": json.dumps({"token": self.tokens["file secrets.json"]}),
            "faults.py": FAULTS.format(fault=str(self.fault)),
            "clean.py": CLEAN,
            "score.py": SCORE,
            "net.py": model.replace("return self.net(x)", _FORWARD),
        }
        write_files(self.project, files)
        self._write_rows()
        metric = SPEC["evaluate"]["metrics"]["accuracy"]
        spec = {
            **SPEC,
            "data": {"source": "rows.csv", "sensitive": ["name", "account", "when"]},
            "shards": {"split": {"key": "id"}, "transform": "clean.clean"},
            "train": {**SPEC["train"], "batch": [["a", "b", "c"], "label", "account"]},
            "evaluate": {"metrics": {"accuracy": {**metric, "class_path": "score.Accuracy"}}},
        }
        spec["train"]["lightning"] = {**spec["train"]["lightning"], "trainer": {"max_epochs": 1}}
        self.spec.write_text(yaml.safe_dump(spec, sort_keys=False))

    def _write_rows(self) -> None:
        draw = random.Random(1)
        head = ["id", "name", "account", "when", "a", "b", "c", "label"]
        lines = [head]
        for number in range(600):
            a, b, c = (round(draw.uniform(-1, 1), 6) for _ in range(3))
            name, account = (
                f"{self.tokens['column name']}-{number}",
                f"{self.tokens['column account']}{number // 2:03d}",
            )
            day = f"2026-01-{number % 28 + 1:02d}"
            lines.append([str(one) for one in (number, name, account, day, a, b, c, int(a + b > c))])
        text = "\n".join(",".join(line) for line in lines) + "\n"
        # What Arrow cannot read, each in another way.
        name, account = self.tokens["column name"], self.tokens["column account"]
        twice = [[line[1], *line] for line in lines[1:]]
        records = [dict(zip(head, line, strict=True)) for line in lines[1:]]
        records[300]["name"] = {name: 1}
        files: dict[str, str | bytes] = {
            "rows.csv": text,
            "long.csv": f"{text}600,{name},{account},2026-01-01,0,0,0,1,{name},{name}\n",
            "quote.csv": f'{text}600,"{name},{account},2026-01-01,0,0,0,1\n',
            "latin.csv": text.encode() + f"600,{name}\xe9,1,,0,0,0,1\n".encode("latin-1"),
            "headless.csv": text.partition("\n")[2],
            "twice.csv": "\n".join(map(",".join, twice)) + "\n",
            "text-1.csv": text,
            "text-2.csv": f"{','.join(head)}\n600,x,{name},2026-01-01,0,0,0,1\n",
            "mixed.jsonl": "\n".join(map(json.dumps, records)) + "\n",
            "broken.jsonl": f'{{"name": "{name}"}}\n{{"name": {name}}}\n',
        }
        write_files(self.project, files)
        table = pa.table({"name": [f"{name}-{row}" for row in range(600)], "id": range(600)})
        pq.write_table(table, self.project / "page.parquet", compression="none", use_dictionary=False)
        whole = bytearray((self.project / "page.parquet").read_bytes())
        whole[8:40] = bytes(32)
        (self.project / "page.parquet").write_bytes(whole)


_FORWARD = """\
return self.net(x)

    def predict_step(self, batch, batch_idx):
        faults.strike("predict", batch[2][0].item())
        return self(batch[0])"""


def is_withheld(path: Path) -> bool:
    """Whether a file may hold full texts: it lies where they are kept, for its owner alone."""
    if path.parent.name != "withheld":
        return False
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)]
    return modes == [0o600, 0o700]


def files(*roots: Path) -> Iterator[Path]:
    """Every regular file below some folders, links not followed; one that goes meanwhile is left out."""
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink():
                    yield path
