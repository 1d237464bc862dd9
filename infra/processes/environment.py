"""What a process that runs the user's code gets: an environment, a place for what it prints, and a limit on idling.

The environment is this process's, without credentials that it does not need. It guards against leaks (a logger, a crash
report or an experiment tracker that sends the environment away), not against malicious code, which runs as the same
user.

Full texts that may hold a sensitive value lie below the state folder, readable only by their owner: the log of a
process whose output is withheld is a link to such a file, and a message that would quote such a log names the file
instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts.errors import UserCodeError
from data_contracts.quoting import APPROVED
from infra.settings import on_this_machine, state_folder

if TYPE_CHECKING:
    from data_contracts.messages.children import Advanced

# Names or patterns (`WANDB_API_KEY HF_*`) that are passed on anyway; set where the processes are started.
PASS_ENV = "TRAINWRIGHT_PASS_ENV"
# Names, never values, of the variables that were left out.
LEFT_OUT = "TRAINWRIGHT_ENV_LEFT_OUT"
# Trainings begin without a shakedown; the option `--no-shakedown` sets it for one command.
NO_SHAKEDOWN = "TRAINWRIGHT_NO_SHAKEDOWN"

# Keys under which a request names the places that its process opens itself.
_PLACES = ("store", "sources")
# Compared with the words between underscores, so that TOKENIZERS_PARALLELISM does not match. Wider than the rules of
# `data_contracts` for files and for tags (`KEY` alone counts), because PASS_ENV can pass on a variable that is left
# out.
_WORDS = frozenset(
    ["AUTH", "COOKIE", "CREDS", "DSN", "JWT", "KEY", "KEYS", "PASS", "PAT", "PW", "PWD", "TOKEN", "TOKENS", "WEBHOOK"]
)
_PARTS = (
    "ACCESSKEY", "APIKEY", "CONNECTION_STRING", "CREDENTIAL", "DATABASE_URL", "PASSPHRASE", "PASSWD", "PASSWORD",
    "SECRET",
)  # fmt: skip
_FAMILIES = re.compile(r"PREFECT_|PG[A-Z]+$")
# A Prefect worker sets it for the flow run that a process executes; it shows people to which run a process belongs.
FLOW_RUN = "PREFECT__FLOW_RUN_ID"
_HARMLESS = frozenset({PASS_ENV, LEFT_OUT, FLOW_RUN, APPROVED, "PWD", "OLDPWD"})
_PASSWORD_IN_URL = re.compile(r"\w://[^/\s:@]*:[^/\s@]+@")
# In an address's query (a database's password, the signature of a link), or in a list of fields (Azure's, ODBC's).
_SECRET_FIELD = re.compile(
    r"(?i)[?&][\w.-]{0,40}(?:passw(?:or)?d|pwd|secret|token|signature|api_?key|sig)="
    r"|(?:^|;) ?(?:password|pwd|\w{0,20}(?:account|access)key) ?="
)
# Their addresses hold tokens in many forms; the code's packages are installed already.
_INDEXES = re.compile(r"(?:PIP|UV)_(?!NO_INDEX$).*(?:INDEX|FIND_LINKS)")
# Collectors ask for their keys in headers.
_HEADERS = re.compile(r"OTEL_.*_HEADERS$")
# Or in the endpoint's address, as a user or in its query.
_KEY_IN_ENDPOINT = re.compile(r"(?i)://[^/\s?#]*@|[?&][^=&]*(?:key|token|secret|auth)[^=&]*=")
# Files by which a step of a CI job sets outputs, variables, programs and the summary of the job, or of later steps.
_CI_FILES = re.compile(
    r"(?:GITHUB|GITEA|FORGEJO)_(?:OUTPUT|ENV|PATH|STATE|STEP_SUMMARY)$|BUILDKITE_ENV_FILE$|(?:DRONE|HARNESS)_\w*OUTPUT"
    r"|BITBUCKET_PIPELINES_VARIABLES_PATH$"
)
_PRIVATE_KEY = "PRIVATE KEY-----"
# The key itself in PEM, or the path of its file; the variable of its password has the same beginning.
SIGNING_KEY = "TRAINWRIGHT_SIGNING_KEY"
FOLDER = "withheld"
KEPT_S = 30 * 24 * 3600.0
# As for a rank: half an hour where a piece of work may take long, and ten times the longest piece of work seen.
STALL_S = 1800.0
SLOWEST_TIMES = 10


def for_user_code(environ: Mapping[str, str], request: Mapping[str, Any]) -> dict[str, str]:
    """`environ` without Prefect's variables and without credentials, except those of the places that it must open.

    Args:
        request: request of the process. Its `store` (a `StoreAddress`) and `sources` decide which credentials are kept:
            the variables that they name (`env:NAME`), `AWS_*` for S3 and DVC, `PG*` for PostgreSQL.
    """
    passed = [*needed(request), *patterns_to_pass(environ)]
    left_out = {
        name
        for name, value in environ.items()
        # CircleCI sources BASH_ENV before each step; elsewhere it loads the modules of a cluster.
        if (is_credential(name, value) or (name == "BASH_ENV" and "CIRCLECI" in environ))
        and not any(fnmatchcase(name, pattern) for pattern in passed)
    }
    kept = {name: value for name, value in environ.items() if name not in left_out}
    return {**kept, LEFT_OUT: " ".join(sorted(left_out.union(environ.get(LEFT_OUT, "").split())))}


def patterns_to_pass(environ: Mapping[str, str]) -> list[str]:
    """The names and patterns of variables that a person passes on (PASS_ENV)."""
    return environ.get(PASS_ENV, "").replace(",", " ").split()


def named_variables(value: Any) -> set[str]:
    """The variables that an address or options name (`env:NAME`) as credentials."""
    return set(re.findall(r"\benv:([A-Za-z_]\w*)", json.dumps(value)))


def without_signing(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without keys and without how to open one, for a process whose packages come from a store."""
    kept = {name: value for name, value in environ.items() if _PRIVATE_KEY not in value}
    return {name: value for name, value in kept.items() if not name.startswith(SIGNING_KEY)}


def is_credential(name: str, value: str) -> bool:
    """Whether a variable is Prefect's, an index's or the CI's, has a secret's name, or holds a password or key."""
    upper = name.upper()
    if name in _HARMLESS:
        return False
    if any(family.match(upper) for family in (_FAMILIES, _INDEXES, _HEADERS, _CI_FILES)):
        return True
    if any(part in upper for part in _PARTS) or not _WORDS.isdisjoint(upper.split("_")):
        return True
    if upper.startswith("OTEL_") and _KEY_IN_ENDPOINT.search(value):
        return True
    if _SECRET_FIELD.search(value):
        return True
    # A proxy's password is needed to reach anything at all.
    return (bool(_PASSWORD_IN_URL.search(value)) and not upper.endswith("_PROXY")) or _PRIVATE_KEY in value


def explain(error: UserCodeError, environ: Mapping[str, str]) -> None:
    """Let the remedy of `error` say how to pass a variable on, if its message names one left out of `environ`."""
    if missed := [name for name in environ[LEFT_OUT].split() if name in error.message]:
        error.remedy = (
            f"{' and '.join(missed)} was not passed on, because it looks like a credential; if your code needs it, set "
            f"{PASS_ENV}={','.join(missed)} where the pipeline (or its worker) is started."
        )


def needed(request: Mapping[str, Any]) -> set[str]:
    """Names and patterns of the variables that are needed to open the places that a request names."""
    named = {name: request[name] for name in _PLACES if name in request}
    places, names = json.dumps(named), named_variables(named)
    if re.search(r'"s3://|"rev": "', places):
        names.add("AWS_*")
    if '"postgresql' in places:
        names.add("PG*")
    return names


def needed_values(request: Mapping[str, Any]) -> dict[str, str]:
    """The variables of this process that are needed to open the places that a request names."""
    patterns = needed(request)
    return {name: value for name, value in os.environ.items() if any(fnmatchcase(name, each) for each in patterns)}


def new_log(name: str) -> Path:
    """Make an empty file of mode 0600 with a unique name, after removing files older than KEPT_S."""
    folder = state_folder() / FOLDER
    with on_this_machine(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        _sweep(folder)
        stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        path = folder / f"{stamp}-{re.sub(r'[^a-z0-9_-]', '-', name.lower())}.txt"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return path


def rank_log(node_log: Path, rank: int) -> Path:
    """The file for a rank's output, beside that of its node."""
    return node_log.with_name(f"{node_log.stem}-rank-{rank}.txt")


def _sweep(folder: Path) -> None:
    for path in folder.iterdir():
        # Another process may have removed the file: it sweeps, too.
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink()


@dataclass(frozen=True)
class IdleLimit:
    """How long a child may make no progress.

    Attributes:
        hang_s: seconds between two pieces of work. Ten times the longest interval so far applies if that is longer.
        stall_s: the same limit before the first piece of work and in phases that the child calls long; no limit
            exceeds it.
        excused: called when the limit is reached: whether the time does not count, because the store is unreachable.
    """

    hang_s: float
    stall_s: float = STALL_S
    excused: Callable[[], bool] = lambda: False


class IdleWatch:
    """Takes a child's reports and says when it has made no progress for too long."""

    def __init__(self, limit: IdleLimit, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._moved = clock()
        self._slowest_s = 0.0
        self._long = True

    def hear(self, report: Advanced) -> None:
        """Take a report in: any report is progress."""
        now = self._clock()
        if not self._long and not report.long:
            self._slowest_s = max(self._slowest_s, now - self._moved)
        self._moved, self._long = now, report.long

    def overdue_s(self) -> float:
        """Seconds without progress if they exceed the limit; else 0."""
        idle_s = self._clock() - self._moved
        limit, own = self._limit, max(self._limit.hang_s, SLOWEST_TIMES * self._slowest_s)
        if idle_s <= (limit.stall_s if self._long else min(limit.stall_s, own)):
            return 0.0
        if limit.excused():
            self._moved = self._clock()
            return 0.0
        return idle_s
