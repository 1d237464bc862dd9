"""Codes on what a training's conductor and nodes write for each other: HMAC-SHA256 with keys that are not in the store.

Whoever can write to the store can write these files, too, but cannot make the codes.

    launches/<digest of store and training>    in the state folder: the keys with which this machine has launched the
                                               training, one a line, the newest last

From a training's key follows one for each generation, which its nodes get. Machines that share a secret, as those of
one Prefect server do, derive the same keys from it.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from data_contracts.canonical import digest
from data_contracts.errors import CorruptError
from infra.files.atomic import replace_private
from infra.machine.settings import on_this_machine, state_folder

FIELD = "hmac"
T = TypeVar("T")
V = TypeVar("V", bound=Mapping[str, Any])


@dataclass(frozen=True)
class Codes:
    """Writes and checks codes.

    Attributes:
        keys: a code made with any of them is right; new ones are made with the last. Without keys nothing is written or
            checked: so it is in a process that nobody gave a key.
    """

    keys: tuple[bytes, ...] = field(repr=False)

    def code(self, path: str, value: Mapping[str, Any]) -> dict[str, str]:
        """The field with the code of a value as the record `path`; no field without keys."""
        return {FIELD: _code(self.keys[-1], path, value)} if self.keys else {}

    def coded(self, path: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """The value with its code as the record `path`."""
        return {**value, **self.code(path, value)}

    def are_right(self, path: str, value: Mapping[str, Any]) -> bool:
        """Whether a value has a right code as the record `path`."""
        own = str(value.get(FIELD, "")).encode()
        return any(hmac.compare_digest(_code(key, path, value).encode(), own) for key in self.keys)

    def checked(self, path: str, value: V) -> V:
        """The value; CorruptError if there are keys and none of them made its code."""
        if self.keys and not self.are_right(path, value):
            raise CorruptError(
                f"{path} does not carry the code of its launch: no process of this training wrote it.",
                remedy="Find out who can write to the store, delete the file and run again. If another machine has "
                'conducted the training meanwhile, see docs/threats.md, "Records of a training".',
                details={"file": path},
            )
        return value

    def checking(self, path: str, parse: Callable[[Any], T]) -> Callable[[Any], T]:
        """`parse`, after the code of the record `path` was checked."""
        return lambda value: parse(self.checked(path, value))


# Of a process that nobody gave a key.
NO_CODES = Codes(())


def codes_of_generation(store_uri: str, training: str, generation: int) -> Codes:
    """The codes of a generation that this machine launches."""
    return Codes((generation_key(launch_key(store_uri, training), generation),))


def launch_keys(store_uri: str, training: str) -> list[bytes]:
    """The keys with which this machine has launched a training, the newest last."""
    try:
        return [bytes.fromhex(line) for line in _file(store_uri, training).read_text().split()]
    except FileNotFoundError:
        return []


def launch_key(store_uri: str, training: str) -> bytes:
    """The newest key with which this machine has launched a training; a new one, which it remembers, if it has none."""
    return remember_key(store_uri, training, next_key(store_uri, training, None))


def next_key(store_uri: str, training: str, secret: bytes | None) -> bytes:
    """The key to conduct a training with; the conductor remembers it once it has taken the training over.

    Args:
        secret: of the machines that may conduct it; None: of this machine alone.
    """
    if secret is not None:
        return derived_key(secret, store_uri, training)
    return [secrets.token_bytes(32), *launch_keys(store_uri, training)][-1]


def remember_key(store_uri: str, training: str, key: bytes) -> bytes:
    """Remember a key as the newest of a training; returns it."""
    keys, path = launch_keys(store_uri, training), _file(store_uri, training)
    if keys[-1:] != [key]:
        with on_this_machine(path.parent):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            lines = [*(earlier.hex() for earlier in keys if earlier != key), key.hex()]
            replace_private(path, "".join(f"{line}\n" for line in lines))
    return key


def derived_key(secret: bytes, store_uri: str, training: str) -> bytes:
    """The key of a training that follows from a shared secret."""
    return hmac.digest(secret, f"{store_uri}\n{training}".encode(), "sha256")


def generation_key(key: bytes, generation: int) -> bytes:
    """The key of one generation, for its nodes."""
    return hmac.digest(key, f"generation {generation}".encode(), "sha256")


def _code(key: bytes, path: str, value: Mapping[str, Any]) -> str:
    body = json.dumps([path, {name: part for name, part in value.items() if name != FIELD}], sort_keys=True)
    return hmac.digest(key, body.encode(), "sha256").hex()


def _file(store_uri: str, training: str) -> Path:
    return state_folder() / "launches" / digest([store_uri, training])[:40]
