"""A stage that is added as docs/adding-a-stage.md says, to a copy of the sources: one file, one line, one page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOMS = ("flows", "tasks", "training", "infra", "data_contracts")
PAGE = "# card\n\n`trainwright card SPEC` writes one sentence about a verified checkpoint.\n"


def copy_with_card(repository: Path, folder: Path) -> Path:
    """Copy the sources and add the stage of that page after `verify`; returns the copy's root."""
    for name in (*ROOMS, "docs"):
        shutil.copytree(repository / name, folder / name)
    module, added = re.findall(r"```python\n(.*?)```", (folder / "docs/adding-a-stage.md").read_text(), re.DOTALL)
    [verify] = (folder / "tasks").rglob("verify.py")
    verify.with_name("card.py").write_text(module)
    line = folder / "flows/stages.py"
    [before] = [one for one in line.read_text().splitlines(keepends=True) if '.verify": "' in one]
    line.write_text(line.read_text().replace(before, before + added))
    (folder / "docs/card.md").write_text(PAGE)
    return folder
