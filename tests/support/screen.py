"""A small terminal: what a person sees after some bytes, whether the cursor is shown, and commands that run on one."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PARTS = re.compile(r"\x1b\[(?P<arguments>[?0-9;]*)(?P<command>[A-Za-z])|(?P<move>[\r\n])|(?P<shown>[^\x1b\r\n])")


@dataclass
class Screen:
    """Lines are never scrolled out of reach; what it does not understand fails an assertion.

    Attributes:
        cursor: whether the cursor is shown.
    """

    columns: int
    lines: list[str] = field(default_factory=lambda: [""])
    cursor: bool = True
    row: int = 0
    column: int = 0

    def write(self, data: str) -> Screen:
        """Take output in; returns itself."""
        at = 0
        while at < len(data):
            found = _PARTS.match(data, at)
            assert found is not None, f"a terminal would obey {data[at : at + 20]!r}"
            at = found.end()
            if found["shown"] is not None:
                self._show(found["shown"])
            elif found["move"] is not None:
                self._move(found["move"])
            else:
                self._obey(found["arguments"], found["command"])
        return self

    @property
    def text(self) -> str:
        """The lines, without spaces at their ends."""
        return "\n".join(line.rstrip() for line in self.lines)

    def _show(self, character: str) -> None:
        if self.column == self.columns:
            self._move("\r")
            self._move("\n")
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
        self.column += 1

    def _move(self, character: str) -> None:
        if character == "\r":
            self.column = 0
            return
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def _obey(self, arguments: str, command: str) -> None:
        match command, arguments:
            case "A", _:
                self.row -= int(arguments or 1)
                assert self.row >= 0
            case "K", "2":
                self.lines[self.row] = ""
            case (("h" | "l"), "?25"):
                self.cursor = command == "h"
            case "m", _:  # colours
                pass
            case _:
                raise AssertionError(f"a terminal would obey CSI {arguments}{command}")


# The command becomes the leader of a session whose terminal is the one given, as a shell's window has it.
_LAUNCH = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """A command on a pseudo-terminal of its own; what it prints is kept in `output`.

    Args:
        stdout: where its stdout goes instead.
    """

    def __init__(
        self, *command: str | Path, env: Mapping[str, str] | None = None, columns: int = 80, stdout: Path | None = None
    ) -> None:
        self.output, self.columns = "", columns
        self._fd, slave = pty.openpty()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.resize(columns)
        environ = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        environ |= {"TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[2]), **(env or {})}
        with contextlib.ExitStack() as stack:
            out = slave if stdout is None else stack.enter_context(stdout.open("wb"))
            self.process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, sys.executable, *map(str, command)],
                stdin=slave, stdout=out, stderr=slave, env=environ, start_new_session=True,
            )  # fmt: skip
        os.close(slave)

    def resize(self, columns: int) -> None:
        """Give the window another width."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Press keys, such as b"\\x03" for Ctrl-C."""
        os.write(self._fd, keys)

    def until(self, text: str) -> str:
        """Read on until `text` is on the screen; the screen's text."""
        while text not in (shown := self.screen().text):
            assert self._read(), f"it ended without {text!r}:\n{shown}"
        return shown

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self.process.wait()

    def screen(self) -> Screen:
        """What is on the screen now."""
        return Screen(self.columns).write(self.output)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # nobody holds the other end any more
            data = b""
        self.output += self._decoder.decode(data)
        return bool(data)
