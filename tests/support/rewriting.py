"""Rewrites the assertions of test files once, on all processors, before pytest-xdist starts its workers.

In a fresh clone no test file has bytecode. Each worker collects all files, in the same order as the others, so each
would rewrite them all, which takes 8 s of a processor's time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir


def files_with_tests(config: pytest.Config) -> list[Path]:
    """The test files below what the command line names."""
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return sorted({file for path in named for file in ([path] if path.is_file() else path.rglob("test_*.py"))})


def rewrite_all(config: pytest.Config, files: Sequence[Path]) -> None:
    """Rewrite these files' assertions, in a fork for each processor, where the bytecode is missing or outdated."""
    processors = len(os.sched_getaffinity(0))
    forks = []
    for part in range(processors):
        if (pid := os.fork()) == 0:
            try:
                rewrite(config, files[part::processors])
            finally:
                os._exit(0)
        forks.append(pid)
    for pid in forks:
        os.waitpid(pid, 0)


def rewrite(config: pytest.Config, files: Sequence[Path]) -> list[Path]:
    """Rewrite these files' assertions in this process; returns those whose bytecode was missing or outdated."""
    rewritten = []
    for file in files:
        folder = get_cache_dir(file)
        bytecode = folder / f"{file.stem}{PYC_TAIL}"
        if _read_pyc(file, bytecode) is None:
            folder.mkdir(parents=True, exist_ok=True)
            source_hash, code = _rewrite_test(file, config)
            _write_pyc(config.stash[assertstate_key], code, source_hash, bytecode)
            rewritten.append(file)
    return rewritten
