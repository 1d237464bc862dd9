"""Runs the lines of an export's page in a process that does not have Trainwright."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any


def lines_of(folder: Path) -> str:
    """The three lines on an export's page, as they stand there."""
    block = re.search(r"^```python\n(.*?)^```$", (folder / "README.md").read_text(), re.S | re.M)
    assert block[1].count("\n") == 3
    return block[1]


def run_elsewhere(folder: Path, rows: Path, shown: str, into: Path) -> Any:
    """Run exactly the lines of a page beside a copy of the export, in a process without Trainwright."""
    shutil.copytree(folder, into)
    shutil.copy(rows, into / "rows.parquet")
    hide = "import sys; sys.meta_path = [one for one in sys.meta_path if '__editable__' not in str(one)]\n"
    alone = (
        "\nimport importlib.util\nassert not any(importlib.util.find_spec(name) for name in ('infra', 'training'))\n"
    )
    code = f"{hide}{lines_of(folder)}{alone}import json\nprint(json.dumps({shown}))"
    command = [sys.executable, "-I", "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=into, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
