"""Two processes that seal other content under one key at once both succeed, and nothing sealed is damaged."""

from __future__ import annotations

from collections.abc import Callable

from data_contracts.handoffs import Ref
from infra.store import Store, layout
from infra.store.seal import Writer
from infra.store.store import newest_sealed, seal_attempt, seal_from


def filling(files: dict[str, bytes], between: Callable[[], object] = lambda: None) -> Callable[[Writer], Ref]:
    """Puts files, with a call after the first one, and seals."""

    def fill(writer: Writer) -> Ref:
        for number, (name, data) in enumerate(files.items()):
            writer.put(name, data)
            if number == 0:
                between()
        return writer.seal("contract", {}, {})

    return fill


def test_other_content_of_a_process_at_work_is_neither_taken_nor_replaced(store: Store) -> None:
    others: list[Ref] = []

    def meanwhile() -> None:
        if not others:
            others.append(seal_attempt(store, "contracts", "k", filling({"a": b"2", "b": b"2"})))

    ref = seal_attempt(store, "contracts", "k", filling({"a": b"1", "b": b"1"}, meanwhile))
    assert {ref.uri, others[0].uri} == {"contracts/k-0", "contracts/k-1"}
    assert store.read(f"{ref.uri}/a") == b"1"
    assert store.read(f"{others[0].uri}/b") == b"2"
    for each in (ref, others[0]):
        assert store.verify(each).ref == each
    assert store.newest("contracts", "k") in (ref, others[0])


def test_what_a_killed_process_left_is_completed_or_passed_over(store: Store) -> None:
    store.writer("contracts/same-0").put("a", b"1")
    assert seal_attempt(store, "contracts", "same", filling({"a": b"1"})).uri == "contracts/same-0"
    store.writer("contracts/other-0").put("a", b"of another machine")
    ref = seal_attempt(store, "contracts", "other", filling({"a": b"1"}))
    assert ref.uri == "contracts/other-1"
    assert store.newest("contracts", "other") == ref


def test_one_that_chose_its_attempt_before_passes_over_what_was_sealed_there_meanwhile(store: Store) -> None:
    chosen = store.next_attempt("contracts", "k")
    other = seal_attempt(store, "contracts", "k", filling({"a": b"2"}))
    assert seal_from(store, chosen, filling({"a": b"2"})) == other
    assert seal_from(store, chosen, filling({"a": b"1"})).uri == "contracts/k-1"
    assert store.verify(other).ref == other


def test_the_newest_sealed_attempts_are_found_without_deleted_unsealed_and_damaged_ones(store: Store) -> None:
    for number in range(6):
        seal_attempt(store, "contracts", "k", filling({"a": f"{number}".encode()}))
    store.writer("contracts/k-6").put("a", b"not sealed")
    store.create(layout.tombstone("contracts/k-5"), b"{}")
    store.forget(layout.manifest("contracts/k-4"))
    store.create(layout.manifest("contracts/k-4"), b"{}")
    for most, found in ((1, [3]), (3, [3, 2, 1]), (9, [3, 2, 1, 0])):
        uris = [manifest.uri for manifest in newest_sealed(store, "contracts", "k", most)]
        assert uris == [f"contracts/k-{number}" for number in found]
