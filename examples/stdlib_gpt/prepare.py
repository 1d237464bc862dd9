"""Copies the source text of this interpreter's own standard library to `data/`, one file per module.

`json/decoder.py` becomes `data/json.decoder.txt`: real text, over 10 MB, there on every machine with Python. Tests are
left out if what remains is large enough. Run it again and nothing changes: `python prepare.py`.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
MIN_BYTES = 10_000_000
# Beside the library, not of it.
NEVER = {"site-packages", "dist-packages", "__pycache__"}
TESTS = {"test", "tests", "idle_test"}


def modules(library: Path, left_out: set[str]) -> dict[str, bytes]:
    """Dotted module name → source, sorted by name; without empty files and without folders named in `left_out`."""
    found = {}
    for path in library.rglob("*.py"):
        parts = path.relative_to(library).with_suffix("").parts
        if not left_out & set(parts[:-1]) and (source := path.read_bytes()):
            found[".".join(parts)] = source
    return dict(sorted(found.items()))


def library_text(library: Path) -> dict[str, bytes]:
    """The library's modules, with its tests only where there would be less than `MIN_BYTES` without."""
    for left_out in (NEVER | TESTS, NEVER):
        found = modules(library, left_out)
        if sum(map(len, found.values())) >= MIN_BYTES:
            return found
    sys.exit(f"{library} holds less than {MIN_BYTES:,} bytes of source; use an interpreter with its whole library.")


def main() -> None:
    """Write what is missing or changed, remove what does not belong, then mark the folder complete."""
    DATA.mkdir(exist_ok=True)
    text = library_text(Path(sysconfig.get_path("stdlib")))
    for path in DATA.glob("*.txt"):
        if path.stem not in text:
            path.unlink()
    for module, source in text.items():
        path = DATA / f"{module}.txt"
        if not path.is_file() or path.read_bytes() != source:
            path.write_bytes(source)
    (DATA / ".complete").write_text(f"{len(text)} modules, {sum(map(len, text.values()))} bytes\n")


if __name__ == "__main__":
    main()
