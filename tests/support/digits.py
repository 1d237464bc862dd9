"""The digits example in a folder of its own, shortened: a few seconds of training on two ranks, and still promoted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits"
EPOCHS = 8


def copy_digits(folder: Path, **sections: Any) -> Path:
    """Copy the example into `folder`, make its data there, and return the spec's path.

    Args:
        sections: replace whole top-level sections of the spec.
    """
    folder.mkdir(parents=True)
    for path in sorted(EXAMPLE.iterdir()):
        if path.is_file():
            shutil.copy(path, folder)
    subprocess.run([sys.executable, str(folder / "prepare.py")], check=True, timeout=400)
    change_yaml(folder / "lightning.yaml", ["trainer", "max_epochs"], EPOCHS)
    spec = folder / "pipeline.yaml"
    for name, section in sections.items():
        change_yaml(spec, [name], section)
    return spec


def change_yaml(path: Path, keys: list[str], value: Any) -> None:
    """Set the field of a YAML file that `keys` lead to."""
    whole = yaml.safe_load(path.read_text())
    at = whole
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
