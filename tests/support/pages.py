"""The fenced blocks of a Markdown page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^( *)(```+)([a-z]*)(?: title=\"([^\"]+)\")? *\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_REASON = re.compile(r"<!-- not run: (.+?) -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language ("" if none), the file that it is to be saved as, and why it is not run."""

    line: int
    language: str
    title: str
    text: str
    reason: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        reason = _REASON.search(text[: match.start()])
        line = text[: match.start()].count("\n") + 1
        found.append(Block(line, match[3], match[4] or "", match[5], reason[1] if reason else ""))
    return found


def script(page: Path) -> str:
    """A page's runnable blocks as a shell script; a command's `# exit code N` says how it ends."""
    parts = []
    for block in blocks(page):
        if block.reason:
            continue
        if block.title:
            parts.append(f"cat > {block.title} <<'END_OF_FILE'\n{block.text}END_OF_FILE")
        elif block.language == "bash":
            parts += [_checked(command, block.line) for command in block.text.splitlines() if command.strip()]
    return "\n".join(parts) + "\n"


def _checked(command: str, line: int) -> str:
    expected = re.search(r"# exit code (\d+)", command)
    code = expected[1] if expected else "0"
    where = f"block of line {line}"
    return f'{command}\ncode=$?; [ $code = {code} ] || {{ echo "{where}: exit code $code, not {code}" >&2; exit 99; }}'
