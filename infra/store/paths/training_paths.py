"""The part of the layout about trainings; `infra/store/layout.py` has all paths.

`training` is `trainings/<key>-<n>`.
"""

from __future__ import annotations

import re

from infra.store.paths.path_parts import check_path
from infra.store.paths.path_parts import name_part as _name
from infra.store.paths.path_parts import number_part as _number
from infra.store.paths.run_paths import trainings

_GENERATION = re.compile(r"g(0|[1-9][0-9]*)")
_CHECKPOINT = re.compile(r"([0-9]+)-(g[0-9]+)(?:\.([a-z]+))?")


def training(key: str, n: int) -> str:
    """Directory of a training."""
    return f"{trainings()}/{_name(key)}-{_number(n)}"


def lease(training: str) -> str:
    """Pointer: who conducts the training."""
    return f"{check_path(training)}/lease"


def latest(training: str) -> str:
    """Pointer: the training's committed checkpoints."""
    return f"{check_path(training)}/latest"


def result(training: str) -> str:
    """The checkpoint that the training handed over."""
    return f"{check_path(training)}/result.json"


def generation(training: str, g: int) -> str:
    """Folder of generation `g`."""
    return f"{check_path(training)}/g{_number(g)}"


def split_generation(name: str) -> int | None:
    """The number in `g<number>`, the name of a generation's folder; None for another name."""
    match = _GENERATION.fullmatch(name)
    return int(match[1]) if match else None


def launch(training: str, g: int) -> str:
    """The launch settings of generation `g`."""
    return f"{generation(training, g)}/launch.json"


def cancel(training: str, g: int) -> str:
    """Marker that cancels generation `g`."""
    return f"{generation(training, g)}/cancel"


def rollcall(training: str, g: int) -> str:
    """The nodes that take part in generation `g`, and their rendezvous."""
    return f"{generation(training, g)}/rollcall.json"


def node(training: str, g: int, k: int) -> str:
    """Folder in which node `k` reports."""
    return f"{generation(training, g)}/node-{_number(k)}"


def joined(training: str, g: int, k: int) -> str:
    """Node `k`'s answer to the roll-call."""
    return f"{node(training, g, k)}/joined.json"


def beat(training: str, g: int, k: int, i: int) -> str:
    """Heartbeat `i` of node `k`."""
    return f"{node(training, g, k)}/beat-{_number(i)}.json"


def node_exit(training: str, g: int, k: int) -> str:
    """Record of how node `k` ended."""
    return f"{node(training, g, k)}/exit.json"


def rank_log(training: str, g: int, k: int, rank: int, i: int | None = None) -> str:
    """The end of a rank's log, stored by node `k`; or piece `i` of it, stored while it runs."""
    return f"{node(training, g, k)}/log-rank-{_number(rank)}{'' if i is None else f'-{_number(i)}'}.txt"


def logger_files(training: str, g: int) -> str:
    """An archive of the files that the loggers of the user's config wrote in a generation."""
    return f"{generation(training, g)}/loggers.zip"


def checkpoints(training: str) -> str:
    """Folder of a training's checkpoints and their marks."""
    return f"{check_path(training)}/checkpoints"


def checkpoint(training: str, step: int, g: int) -> str:
    """Sealed checkpoint of a step, written by generation `g`."""
    return f"{checkpoints(training)}/{_number(step)}-g{_number(g)}"


def split_checkpoint(name: str) -> tuple[int, int, str] | None:
    """`<step>-g<generation>`, optionally with `.<mark>`, as (step, generation, mark or ""); None for another name."""
    match = _CHECKPOINT.fullmatch(name)
    generation = split_generation(match[2]) if match else None
    return None if match is None or generation is None else (int(match[1]), generation, match[3] or "")


def verified(checkpoint_uri: str) -> str:
    """Mark: the verify stage passed."""
    return f"{check_path(checkpoint_uri)}.verified"


def quarantined(checkpoint_uri: str) -> str:
    """Mark: quarantined, with the reason."""
    return f"{check_path(checkpoint_uri)}.quarantined"
