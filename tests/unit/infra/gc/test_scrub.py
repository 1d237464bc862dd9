"""The scrub: each sealed directory has its day, and a damaged one hides no other."""

from __future__ import annotations

import os
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import StorageUnavailable
from infra.garbage import SEALED, Limits, collect
from infra.scrub import PERIOD_DAYS, Checked, check_each, due_on, sealed_directories
from infra.store import Store, layout
from tests.support.damage import HARMS, bound_by_permissions
from tests.support.histories import OLD_S, YOUNG_S, History

TODAY = date(2026, 11, 30)


def grown(store: Store, age_s: float = YOUNG_S) -> History:
    """A store with a sealed directory in each area."""
    history = History(store)
    of = {area: history.sealed(area, age_s) for area in SEALED}
    training = history.training(age_s, of["datasets"], of["code"])
    history.promote(age_s, history.version(age_s, training, of["evaluations"]))
    return history


def test_what_is_sealed_is_found_in_every_area_and_nothing_else_is(any_store: Store) -> None:
    history = grown(any_store)
    history.unsealed("datasets", YOUNG_S)
    found = sealed_directories(any_store)
    assert set(found) == {part.uri for part in history.parts.values() if part.sealed}
    assert {uri.partition("/")[0] for uri in found} == layout.SEALED_AREAS.keys()
    assert [(one.uri, one.damage) for one in check_each(any_store, found)] == [(uri, "") for uri in found]
    checkpoint = next(uri for uri in found if uri.startswith("trainings/"))
    any_store.create(layout.quarantined(checkpoint), b"{}")
    assert set(sealed_directories(any_store)) == set(found) - {checkpoint}, "it is known to be broken"


def test_a_file_of_a_user_that_is_called_manifest_seals_nothing_and_odd_names_end_nothing(store: Store) -> None:
    assert sealed_directories(store) == []
    writer = store.writer("code/c")
    writer.put("web/manifest.json", b"{}")
    assert sealed_directories(store) == [], "it may be being written"
    writer.seal("code", {}, {})
    for name in (b"a\nb", b"\xff", b"a\\b"):
        folder = os.path.join(os.fsencode(store.uri), b"code", name)
        os.mkdir(folder)
        Path(os.fsdecode(folder), layout.MANIFEST).write_bytes(b"{}")
    assert sealed_directories(store) == ["code/c"]


def test_within_a_month_each_has_one_day_and_no_day_has_them_all() -> None:
    uris = [f"datasets/{n}-0" for n in range(10_000)]
    parts = [due_on(TODAY + timedelta(days=n), uris) for n in range(PERIOD_DAYS)]
    assert sorted(uri for part in parts for uri in part) == sorted(uris)
    assert max(map(len, parts)) < 2 * len(uris) / PERIOD_DAYS
    assert due_on(TODAY + timedelta(days=PERIOD_DAYS), uris) == parts[0]


@pytest.mark.parametrize("harm", [*HARMS, "extra"])
def test_damage_is_named_and_the_others_are_looked_at(harm: str, store: Store) -> None:
    history = History(store)
    before, damaged, after = sorted(history.sealed("datasets", YOUNG_S) for _ in range(3))
    file, other = (Path(store.uri, uri, "part-0") for uri in (damaged, after))
    if harm == "extra":
        store.create(f"{damaged}/part-1", b"x")
    else:
        HARMS[harm](file, other)
    with bound_by_permissions():
        found = list(check_each(store, [before, damaged, after]))
    assert [(one.uri, one.bytes) for one in found] == [(before, 50), (damaged, 0), (after, 50)]
    assert f"{damaged}/part-{int(harm == 'extra')}" in found[1].damage
    assert "\n" not in found[1].damage


def test_what_could_not_be_read_is_not_damaged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = History(store).sealed("datasets", YOUNG_S)

    def away(path: str) -> None:
        raise StorageUnavailable("it timed out.")

    monkeypatch.setattr(store, "verify", away)
    assert list(check_each(store, [uri])) == [Checked(uri, unread="it timed out.")]


def test_what_is_deleted_between_two_directories_is_left_out(store: Store) -> None:
    history = grown(store, OLD_S)
    old = [history.sealed("datasets", OLD_S) for _ in range(3)]
    history.ageing()
    uris = sealed_directories(store)
    checks = check_each(store, uris)
    found = [next(checks)]
    gone = {one.item.uri for one in collect(store, by="a test", limits=Limits()).deleted}
    assert set(old) < gone
    found += checks
    assert [one.damage for one in found] == [""] * len(found)
    assert {one.uri for one in found[1:]} == set(uris[1:]) - gone


def test_what_is_being_deleted_is_not_damaged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest goes first, also before a file of that name in a folder that sorts before it."""
    uri = History(store).sealed("code", OLD_S)
    writer = store.writer("code/d")
    writer.put("a/manifest.json", b"{}")
    writer.put("b", b"b")
    writer.seal("code", {}, {})
    deleted: list[str] = []
    delete = store._backend.delete

    def watched(path: str) -> None:
        delete(path)
        deleted.append(path)
        assert [one.damage for one in check_each(store, [uri, "code/d"])] == [""]

    monkeypatch.setattr(store._backend, "delete", watched)
    assert store.remove("code/d", why="w", by="b")
    assert len(deleted) == 3


def test_what_is_deleted_while_it_is_read_is_left_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = store.writer("datasets/k-0")
    entries = [writer.put(name, b"x") for name in ("a", "b")]
    writer.seal("dataset", {}, {}, entries)
    digest = store._backend.digest

    def deleted_after(*asked: Any, **more: Any) -> tuple[int, str]:
        result = digest(*asked, **more)
        store.remove("datasets/k-0", why="w", by="b")
        return result

    monkeypatch.setattr(store._backend, "digest", deleted_after)
    assert list(check_each(store, ["datasets/k-0"])) == []
