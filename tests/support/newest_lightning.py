"""Runs the tests of what we rely on inside Lightning against the newest version that the package index has.

`python -m tests.support.newest_lightning [--pre] [VERSION]`, from the repository's root. Lightning and torchmetrics are
installed by pip into a virtual environment of their own, without their dependencies; all else, torch above all, comes
from the environment that runs this. The exit code is that of the tests.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

TESTS = ("tests/unit/training/test_lightning_adapter.py", "tests/distributed/test_hooks.py")
PACKAGES = ("lightning", "torchmetrics")
VERSIONS = f"from importlib.metadata import version; print(*map(version, {PACKAGES!r}))"


def main() -> int:
    """Make the environment, say which versions are in it, and run the table there."""
    parser = argparse.ArgumentParser(description="What we rely on inside Lightning, in its newest version.")
    parser.add_argument("version", nargs="?", help="of Lightning; default: the newest")
    parser.add_argument("--pre", action="store_true", help="the newest may be a pre-release")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="newest-lightning-") as folder:
        python = made(Path(folder), wanted.version, ["--pre"] if wanted.pre else [])
        found = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout.split()
        for package, version in zip(PACKAGES, found, strict=True):
            locked = importlib.metadata.version(package)
            same = "which is the locked one" if version == locked else f"the locked one is {locked}"
            print(f"{package} {version}, {same}", flush=True)
        return subprocess.run([python, "-m", "pytest", "-q", *TESTS], check=False).returncode


def made(folder: Path, version: str | None, options: list[str]) -> Path:
    """The interpreter of a new environment in this folder; CalledProcessError if pip finds no such version."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    lightning = f"lightning=={version}" if version else "lightning"
    install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", *options, lightning, "torchmetrics"]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    # Only now, so that pip does not take what is there already for installed. What the environment has itself, a .pth
    # file of its own among it, comes first.
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (own / "others.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in others))
    return python


if __name__ == "__main__":
    sys.exit(main())
