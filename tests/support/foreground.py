"""Signals as a program in the foreground has them: a suite run in the background inherits that they are ignored."""

from __future__ import annotations

import signal


def foreground() -> None:
    """Give this process the dispositions of a foreground job."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
