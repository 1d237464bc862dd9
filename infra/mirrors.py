"""Speaks to the systems outside that are told of runs, such as MLflow. Nothing here decides what is told.

A record of each attempt says what a mirror was told of a run, or of the move of an alias:

    mirrored/<run>/<mirror>/<what>-<attempt>.json        what: `final`, the number of an attempt at the run, or `alias`

The records in a store name addresses, credentials and files. Whoever can write there could otherwise have any variable
of this user's environment sent to a server of theirs; so only those mirrors are followed to which this user's own runs
have been sent.

MLflow is reached by its REST API 2.0: one run for each of ours, and our versions and aliases in its registry. MLflow
does not install beside our packages, and its client would not be bounded in time. Nothing in MLflow is created once, so
ours are found by tags that they are created with; only one process at a time may use this for a store.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from data_contracts.canonical import digest
from data_contracts.errors import StorageUnavailable, TrainwrightError, UsageError
from data_contracts.foreign_files import parse_json
from data_contracts.records import Delivery
from infra import settings
from infra.audit import now
from infra.files import locked, replace_private
from infra.settings import check_approved
from infra.store import Store, layout
from infra.store.s3 import looked_up

if TYPE_CHECKING:
    import httpx


FILE = "mirrors.json"
_MOST = 1000
FINAL, ALIAS = "final", "alias"
# Ends of runs and rollbacks are events in Prefect, whichever mirrors a spec names.
PREFECT = "prefect"
MOST_REPEATS = 4
FIRST_PAUSE_S = 0.25
# One request of metadata; an upload may take as long as the deadline allows.
REQUEST_S = 60.0
MOST_ANSWER_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**20
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
RUN_TAG = "trainwright.run_id"
VERSION_TAG = "trainwright.version"
# Limits of one request to MLflow.
_MOST_LOGGED = {"metrics": 1000, "params": 100, "tags": 100}
_EXISTS, _MISSING = "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"
_API = "/api/2.0/mlflow"
# What every user may ask for.
TRIED = f"{_API}/experiments/search?max_results=1"


def accept(*mirrors: Mapping[str, object]) -> None:
    """Record that this user sends to these mirrors, each with everything that says where and with what."""
    folder = settings.state_folder()
    with locked(folder):  # of two processes at once, neither loses the other's entry
        known = _known()
        if new := [one for one in dict.fromkeys(map(digest, mirrors)) if one not in known]:
            replace_private(folder / FILE, json.dumps([*known, *new][-_MOST:]))


def is_accepted(mirror: Mapping[str, object]) -> bool:
    """Whether this user sent to exactly this mirror before."""
    return digest(mirror) in _known()


def _known() -> list[str]:
    try:
        return [str(one) for one in json.loads((settings.state_folder() / FILE).read_text())]
    except (FileNotFoundError, ValueError):
        return []


def newest_end(store: Store, run_id: str) -> str | None:
    """What the mirrors are told of a run: its final report, else its newest attempt; None if none has ended."""
    if store.exists(layout.report(run_id)):
        return FINAL
    attempts = len(store.list(layout.run_attempts(run_id)))
    return str(attempts - 1) if attempts else None


def newest_delivery(store: Store, run_id: str, mirror: str, what: str) -> tuple[int, Delivery | None]:
    """How often a mirror was told, and the newest attempt; None if there was none."""
    names = [name for name in store.list(layout.mirrored(run_id, mirror)) if name.startswith(f"{what}-")]
    if not names:
        return 0, None
    path = layout.delivery(run_id, mirror, what, len(names) - 1)
    return len(names), store.find_as(path, Delivery.from_json)


def record_delivery(
    store: Store, run_id: str, mirror: str, what: str, attempts: int, *, delivered: bool, sentence: str
) -> tuple[Delivery, int]:
    """Record an attempt to tell a mirror; returns it, and how many there are now.

    Args:
        attempts: how many there were.
    """
    record = Delivery(delivered=delivered, sentence=sentence, at=now())
    while not store.create_once(layout.delivery(run_id, mirror, what, attempts), record.to_json()):
        attempts += 1
    return record, attempts + 1


class Deadline:
    """The time until which several requests may take, in seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left_s(self) -> float:
        """Seconds that are left; 0 if none."""
        return max(self._end - time.monotonic(), 0.0)


def refused_as(error: UsageError) -> str:
    """The server's error code, such as `RESOURCE_ALREADY_EXISTS`, of a request that it refused; "" if it has none."""
    return str(error.details.get("error_code", ""))


def credentials(field: str, address: str, named: Mapping[str, str | None]) -> dict[str, Any]:
    """What httpx needs to show who asks, from a mirror's named credentials.

    UsageError if one is not set, or if nobody on this machine approved that it is sent to the address.
    """
    check_approved({value: f"{field}.{name}" for name, value in named.items() if value is not None}, address)
    known = {name: looked_up(f"{field}.{name}", value) for name, value in named.items() if value is not None}
    if "token" in known:
        return {"headers": {"Authorization": f"Bearer {known['token']}"}}
    return {"auth": (known["username"], known["password"])} if "username" in known else {}


class Endpoint(contextlib.AbstractContextManager["Endpoint"]):
    """A server, until it is left.

    Args:
        name: of the server in messages, such as `MLflow`.
        access: of `credentials`.
    """

    def __init__(self, name: str, address: str, access: Mapping[str, Any], deadline: Deadline) -> None:
        import httpx

        self.name, self.address, self.deadline = name, address, deadline
        # A redirect is not followed: it could lead the credentials elsewhere.
        self._client = httpx.Client(base_url=address, follow_redirects=False, **access)

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, method: str, path: str, *, again: bool = True, **parts: Any) -> Any:
        """The answer's JSON ({} if it is empty).

        Args:
            again: whether a request that failed may be repeated: it may have arrived.
            parts: `json` or `params` of httpx.

        Raises:
            StorageUnavailable: no answer, or an error of the server's, until the deadline or the last repeat.
            UsageError: the server refuses the request; `refused_as` has its code.
        """
        answer = self._repeated(method, path, MOST_REPEATS if again else 0, parts)
        try:
            return parse_json(answer) if answer else {}
        except ValueError as error:
            raise StorageUnavailable(f"{self._it} gave an answer that is not JSON.", remedy=self._look) from error

    def try_credentials(self, path: str) -> None:
        """Ask once for `path`; UsageError if the credentials are refused, StorageUnavailable without an answer.

        Another refusal says nothing about the credentials.
        """
        try:
            self._once("GET", path, {}, None)
        except UsageError as error:
            if error.details["status"] in (401, 403):
                raise

    def upload(self, path: str, file: Path) -> None:
        """Put a file, in chunks; raises as `ask` does."""
        size = {"Content-Length": str(file.stat().st_size), "Content-Type": "application/octet-stream"}
        self._repeated("PUT", path, MOST_REPEATS, {"headers": size}, file)

    @property
    def _it(self) -> str:
        return f"{self.name} at {self.address}"

    @property
    def _look(self) -> str:
        return "Look at the server; `trainwright mirror` tells it again."

    def _repeated(
        self, method: str, path: str, repeats: int, parts: Mapping[str, Any], file: Path | None = None
    ) -> bytes:
        for number in range(repeats + 1):
            try:
                return self._once(method, path, parts, file)
            except StorageUnavailable:
                pause_s = FIRST_PAUSE_S * 2**number
                if number == repeats or pause_s > self.deadline.left_s():
                    raise
                time.sleep(pause_s)
        raise AssertionError("unreachable")

    def _once(self, method: str, path: str, parts: Mapping[str, Any], file: Path | None) -> bytes:
        import httpx

        left_s = self.deadline.left_s()
        if left_s <= 0:
            raise self._late()
        content = None if file is None else self._chunks(file)
        timeout_s = left_s if file is not None else min(left_s, REQUEST_S)
        try:
            with self._client.stream(method, path, content=content, timeout=timeout_s, **parts) as answer:
                body = self._body(answer)
        except httpx.TimeoutException as error:
            raise StorageUnavailable(f"{self._it} did not answer in time.", remedy=self._look) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise StorageUnavailable(
                f"{self._it} could not be reached ({type(error).__name__}).", remedy=self._look
            ) from error
        failure = self._failure(answer.status_code, body)
        if failure is not None:
            raise failure
        return body

    def _chunks(self, file: Path) -> Iterator[bytes]:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                if not self.deadline.left_s():
                    raise self._late()
                yield chunk

    def _body(self, answer: httpx.Response) -> bytes:
        """The answer's body; StorageUnavailable for one that comes too slowly or does not end."""
        body = bytearray()
        for chunk in answer.iter_bytes():
            body += chunk
            if len(body) > MOST_ANSWER_BYTES:
                raise StorageUnavailable(f"{self._it} gave an answer that is too long.", remedy=self._look)
            if not self.deadline.left_s():
                raise self._late()
        return bytes(body)

    def _late(self) -> StorageUnavailable:
        return StorageUnavailable(f"{self._it} was not told everything in time.", remedy=self._look)

    def _failure(self, status: int, body: bytes) -> TrainwrightError | None:
        if status < 300:
            return None
        if status in _AGAIN:
            return StorageUnavailable(f"{self._it} answered with an error ({status}).", remedy=self._look)
        kind = _error_code(body)
        if status < 400:
            what, remedy = "answers with a redirect, which is not followed", "Give the address that it leads to."
        elif status in (401, 403):
            what, remedy = "refuses the credentials", "Check the credentials that the spec names."
        else:
            what, remedy = "refuses a request", self._look
        said = f"{status}, {kind}" if kind else f"{status}"
        return UsageError(f"{self._it} {what} ({said}).", remedy=remedy, details={"error_code": kind, "status": status})


def _error_code(body: bytes) -> str:
    """The error code of MLflow's answers; the message is left out: it may quote what was sent."""
    try:
        kind = parse_json(body).get("error_code", "")
    except (ValueError, AttributeError):
        return ""
    return kind if isinstance(kind, str) and kind.replace("_", "").isalnum() and len(kind) < 60 else ""


@dataclass(frozen=True, kw_only=True)
class MlflowRun:
    """What MLflow is to know of a run.

    Attributes:
        metrics: `{"key", "value", "timestamp", "step"}` each; equal ones are one metric, so they may be sent again.
        status: `FINISHED`, `FAILED` or `KILLED`.
        started_ms, ended_ms: Unix times in milliseconds.
    """

    run_id: str
    experiment: str
    name: str
    params: Mapping[str, str]
    metrics: Sequence[Mapping[str, Any]]
    tags: Mapping[str, str]
    status: str
    started_ms: int
    ended_ms: int


@dataclass(frozen=True)
class Kept:
    """A run as MLflow has it: its id there, and where its artifacts are."""

    id: str
    artifact_uri: str

    @property
    def takes_files(self) -> bool:
        """Whether the server itself takes the run's artifacts."""
        return urlsplit(self.artifact_uri).scheme == "mlflow-artifacts"


class Mlflow:
    """The server behind `endpoint`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def put_run(self, run: MlflowRun) -> Kept:
        """Make the run, or bring it up to date. UsageError and StorageUnavailable as `Endpoint.ask`."""
        experiment = self._experiment(run.experiment)
        tags = {**run.tags, RUN_TAG: run.run_id, "mlflow.runName": run.name}
        kept = self._found_or_made(
            lambda: self._find_run(experiment, run.run_id),
            "runs/create",
            {
                "experiment_id": experiment,
                "run_name": run.name,
                "start_time": run.started_ms,
                "tags": _pairs({RUN_TAG: run.run_id}),
            },
        )
        logged: dict[str, Sequence[Any]] = {"metrics": run.metrics, "params": _pairs(run.params), "tags": _pairs(tags)}
        for what, values in logged.items():
            for part in _parts(values, _MOST_LOGGED[what]):
                self._post("runs/log-batch", {"run_id": kept.id, what: part})
        self._post("runs/update", {"run_id": kept.id, "status": run.status, "end_time": run.ended_ms})
        return kept

    def put_artifact(self, kept: Kept, path: str, file: Path) -> bool:
        """Store a file beside the run; False if the server does not take artifacts itself."""
        if not kept.takes_files:
            return False
        folder = quote(urlsplit(kept.artifact_uri).path.strip("/"))
        self._endpoint.upload(f"/api/2.0/mlflow-artifacts/artifacts/{folder}/{quote(path)}", file)
        return True

    def put_version(self, model: str, version: int, kept: Kept, tags: Mapping[str, str], description: str) -> str:
        """Register our version `version` of a model, if it is not; returns MLflow's own number."""
        self._model(model)
        asked = {
            "name": model,
            "source": f"{kept.artifact_uri}/model",
            "run_id": kept.id,
            "tags": _pairs({**tags, VERSION_TAG: str(version)}),
            "description": description,
        }
        return str(self._found_or_made(lambda: self.find_version(model, version), "model-versions/create", asked))

    def find_version(self, model: str, version: int) -> str | None:
        """MLflow's number of our version; None if it is not registered."""
        chosen = f"name = '{model}' and tags.`{VERSION_TAG}` = '{version}'"
        answer = self._get("model-versions/search", {"filter": chosen, "max_results": "100"})
        numbers = [int(one["version"]) for one in answer.get("model_versions", [])]
        return str(min(numbers)) if numbers else None

    def put_alias(self, model: str, alias: str, number: str) -> None:
        """Make an alias name a version, by MLflow's number."""
        self._post("registered-models/alias", {"name": model, "alias": alias, "version": number})

    def _experiment(self, name: str) -> str:
        def find() -> str | None:
            try:
                found = self._get("experiments/get-by-name", {"experiment_name": name})["experiment"]
            except UsageError as error:
                if refused_as(error) != _MISSING:
                    raise
                return None
            if found.get("lifecycle_stage") == "deleted":
                raise UsageError(
                    f"The experiment {name} was deleted in MLflow.", remedy="Restore it there, or name another one."
                )
            return str(found["experiment_id"])

        return str(self._found_or_made(find, "experiments/create", {"name": name}))

    def _model(self, name: str) -> None:
        try:
            self._post("registered-models/create", {"name": name})
        except UsageError as error:
            if refused_as(error) != _EXISTS:
                raise

    def _find_run(self, experiment: str, run_id: str) -> Kept | None:
        asked = {
            "experiment_ids": [experiment],
            "filter": f"tags.`{RUN_TAG}` = '{run_id}'",
            "max_results": 1,
            "order_by": ["attributes.start_time ASC", "attributes.run_id ASC"],
        }
        runs = self._post("runs/search", asked).get("runs", [])
        return Kept(runs[0]["info"]["run_id"], runs[0]["info"]["artifact_uri"]) if runs else None

    def _found_or_made(self, find: Callable[[], Any], path: str, body: Mapping[str, Any]) -> Any:
        """What `find` returns, made if it is None; a request whose answer is lost is not repeated unseen."""
        lost: StorageUnavailable | None = None
        for _ in range(3):
            if (existing := find()) is not None:
                return existing
            try:
                self._endpoint.ask("POST", f"{_API}/{path}", again=False, json=body)
            except StorageUnavailable as error:
                lost = error
            except UsageError as error:
                if refused_as(error) != _EXISTS:
                    raise
        raise lost or StorageUnavailable(f"MLflow does not list what it made ({path}).", remedy="Look at its log.")

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._endpoint.ask("POST", f"{_API}/{path}", json=body)

    def _get(self, path: str, parameters: Mapping[str, str]) -> Any:
        return self._endpoint.ask("GET", f"{_API}/{path}", params=parameters)


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _parts(values: Sequence[Any], most: int) -> list[list[Any]]:
    return [list(values[start : start + most]) for start in range(0, len(values), most)]
