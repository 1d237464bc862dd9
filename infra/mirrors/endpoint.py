"""Requests to a mirror's server: repeated within a deadline, never to another address, secrets in no message."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from data_contracts.errors import StorageUnavailable, TrainwrightError, UsageError
from data_contracts.foreign_json import parse_json
from infra.machine.approved_credentials import check_approved
from infra.store.s3 import looked_up

if TYPE_CHECKING:
    import httpx

MOST_REPEATS = 4
FIRST_PAUSE_S = 0.25
# One request of metadata; an upload may take as long as the deadline allows.
REQUEST_S = 60.0
MOST_ANSWER_BYTES = 64 * 2**20
_PIECE_BYTES = 2**20
_AGAIN = (408, 425, 429, 500, 502, 503, 504)


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


class Endpoint:
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

    def __enter__(self) -> Self:
        return self

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
        """Put a file, in pieces; raises as `ask` does."""
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
        content = None if file is None else self._pieces(file)
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

    def _pieces(self, file: Path) -> Iterator[bytes]:
        with file.open("rb") as stream:
            while piece := stream.read(_PIECE_BYTES):
                if not self.deadline.left_s():
                    raise self._late()
                yield piece

    def _body(self, answer: httpx.Response) -> bytes:
        """The answer's body; StorageUnavailable for one that comes too slowly or does not end."""
        body = bytearray()
        for piece in answer.iter_bytes():
            body += piece
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
