"""Garbage collections of a process that runs tests leave out what was there before the first test, and come less often.

149 unit tests take 25.7 s of a processor with it, and 32.9 s without: collecting imports most of the product and its
libraries, and little garbage has cycles here.
"""

from __future__ import annotations

import gc


def collect_less_garbage() -> None:
    """To be called once the tests are collected."""
    gc.freeze()
    gc.set_threshold(50_000, 50)
