"""The store of a game day: a new one beside the pipeline's, which is removed at the end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from data_contracts.errors import UsageError
from infra.processes.processes import uninterrupted
from infra.store.opening import open_store
from infra.store.store import Store


def address_beside(address: str, name: str) -> str:
    """The address of a game day's store beside another; `name` is one that nothing else has."""
    place = address.rstrip("/")
    bucket_alone = "://" in place and "/" not in place.partition("://")[2]
    return f"{place}{'/' if bucket_alone else '-'}gameday-{name}"


@contextmanager
def own_store(address: str, storage_options: Mapping[str, Any], name: str) -> Iterator[Store]:
    """A new store beside the one at an address, which is removed at the end; `name` is one that nothing else has."""
    uri = address_beside(address, name)
    try:
        yield open_store(uri, storage_options)
    finally:
        with uninterrupted():
            _remove(uri, storage_options)


def _remove(uri: str, storage_options: Mapping[str, Any]) -> None:
    """Remove the store; its address was made for it, so nobody else has files there."""
    if "://" not in uri:
        shutil.rmtree(uri, ignore_errors=True)
        return
    try:
        store = open_store(uri, storage_options, create=False)
    except UsageError:  # the store could not be made, and the reason is being raised
        return
    for file in store.stored():
        store.forget(file.path)
    for leftover in store.leftovers():  # uploads of killed ranks: no listing shows them, but they cost money
        store.drop(leftover)
