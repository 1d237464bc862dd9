"""What it costs to know the members of a gang: our hub beside what other libraries have for it.

    python benchmarks/membership.py [--quick]

One process is the conductor, two others are its members, 256 or 1,250 of them. Each member says every five seconds how
its eight ranks are. `joined_s`: from the first member's start until the conductor knows all. `cpu`: the conductor's
share of a core while they train. `gone_s`: from a member's end by SIGKILL until the conductor knows it.

`distributed` is Dask's communication over TLS; `tcpstore` is torch's own store, where members write a key each and the
conductor reads all keys once a second; `tree` is the same with a leader for each 32 members, which the conductor reads
alone. Neither of torch's has a word to show or encrypts, and neither tells of an end: a key that stands still does, so
`gone_s` is the silence of 12 s that the gang has anyway.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import machine

EVERY_S = 5.0
KINDS = ("hub", "distributed", "tcpstore", "tree")
CHILDREN = 2
LEADS = 32


def report(node: int) -> Any:
    """What a member says: a heartbeat of eight ranks."""
    from data_contracts.messages.gang import Heartbeat, RankMeasures, RankReport

    measured = RankMeasures(spent_s={"forward": 1.5, "backward": 2.5}, step_counts=[0] * 20, steps_s=100.0, loss=1.25)
    ranks = [
        RankReport(
            rank=8 * node + place, device="cuda", phase="training", step=100, samples=25_600, metrics={"loss": 1.25},
            place="backward", moves=400, own_s=50.0, steps=100, measured=measured,
        )
        for place in range(8)
    ]  # fmt: skip
    return Heartbeat(time=time.time(), ranks=ranks)


def said(known: dict[str, Any]) -> None:
    """Tell the parent."""
    print(json.dumps(known), flush=True)


def waits(until: Callable[[], bool], every_s: float = 0.1) -> None:
    """Look until it is true."""
    while not until():
        time.sleep(every_s)


# ---- conductors


def conduct(kind: str, members: int, folder: Path, train_s: float) -> None:
    """Listen, say where, wait for all, follow them, and wait for one that is gone."""
    follow = {"hub": Hub, "distributed": Comms, "tcpstore": Keys, "tree": Keys}[kind](kind, members, folder)
    said({"at": follow.at})
    waits(lambda: follow.look() and len(follow.alive) == members)
    said({"joined": time.time()})
    began, spent = time.monotonic(), time.process_time()
    waits(lambda: follow.look() and time.monotonic() - began > train_s, 1.0 if kind in ("tcpstore", "tree") else 0.5)
    said({"cpu": (time.process_time() - spent) / (time.monotonic() - began)})
    waits(lambda: follow.look() and len(follow.alive) < members)
    said({"gone": time.time()})
    os._exit(0)


class Hub:
    """Ours, as a generation hears it; a member whose connection ends without a word is looked for by its launcher."""

    def __init__(self, kind: str, members: int, folder: Path) -> None:
        from infra.gang import hub
        from infra.gang.rank_files import Codes

        self.hub = hub.Hub("127.0.0.1")
        self.hub.codes = Codes((b"k" * 32,))
        self.at = self.hub.at.to_json()
        self.heard: dict[int, float] = {}

    @property
    def alive(self) -> set[int]:
        """Members that have been heard of."""
        return {node for node, at in self.heard.items() if time.monotonic() - at < 12}

    def look(self) -> bool:
        """Take in what was said; always true."""
        self.heard.update({node: at for node, at, _ in self.hub.news()})
        return True


class Comms:
    """Dask's: a server whose handler reads each member's messages."""

    def __init__(self, kind: str, members: int, folder: Path) -> None:
        import threading

        from distributed.comm import listen

        self.alive: set[int] = set()
        self._newest: dict[int, Any] = {}
        self._loop, ready = asyncio.new_event_loop(), threading.Event()

        async def hear(comm: Any) -> None:
            node = await comm.read()
            self.alive.add(node)
            try:
                while True:
                    self._newest[node] = await comm.read()
            except Exception:
                self.alive.discard(node)

        async def serve() -> None:
            listener = await listen("tls://127.0.0.1:0", hear, ssl_context=tls(folder, server=True))
            self.at = {"uri": listener.contact_address}
            ready.set()
            await asyncio.Event().wait()

        threading.Thread(target=self._loop.run_until_complete, args=(serve(),), daemon=True).start()
        ready.wait()

    def look(self) -> bool:
        """Take in what was said; always true."""
        self._newest.clear()
        return True


class Keys:
    """torch's store: members set keys, which are read all at once."""

    def __init__(self, kind: str, members: int, folder: Path) -> None:
        from torch.distributed import TCPStore

        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300))
        self.at = {"port": self.store.port}
        self.names = [f"lead-{n}" for n in range(-(-members // LEADS))] if kind == "tree" else None
        self.members, self.heard = members, dict[int, tuple[str, float]]()

    @property
    def alive(self) -> set[int]:
        """Members that have been heard of."""
        return {node for node, (_, at) in self.heard.items() if time.monotonic() - at < 12}

    def look(self) -> bool:
        """Take in what was said; always true."""
        names = self.names or [f"member-{n}" for n in range(self.members)]
        if not self.store.check(names):
            return True
        for texts in self.store.multi_get(names):
            for text in json.loads(texts) if self.names else [texts]:
                beat = json.loads(text)
                if self.heard.get(beat["node"], ("", 0.0))[0] != beat["time"]:
                    self.heard[beat["node"]] = (beat["time"], time.monotonic())
        return True


# ---- members


def be(kind: str, at: dict[str, Any], first: int, count: int, folder: Path) -> None:
    """Be members until this process is killed."""
    nodes = range(first, first + count)
    if kind in ("hub", "distributed"):
        asyncio.run(connect_all(kind, at, nodes, folder))
    else:
        set_keys(kind, at, nodes)


async def connect_all(kind: str, at: dict[str, Any], nodes: range, folder: Path) -> None:
    """A connection for each member."""
    gate = asyncio.Semaphore(32)
    await asyncio.gather(*((hub_member if kind == "hub" else comm_member)(at, node, gate, folder) for node in nodes))


async def hub_member(at: dict[str, Any], node: int, gate: asyncio.Semaphore, folder: Path) -> None:
    """What `Line` does, without a thread of its own."""
    import ssl

    from websockets.asyncio.client import connect

    from data_contracts.messages.gang import Joined
    from infra.gang.hub import _text
    from infra.gang.rank_files import Codes

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=at["certificate"])
    headers = {"Authorization": Codes((b"k" * 32,)).word()}
    async with gate:
        connection = await connect(
            f"wss://{at['address']}:{at['port']}/{node}", ssl=context, additional_headers=headers, compression=None,
            proxy=None, open_timeout=60,
        )  # fmt: skip
    await connection.send(_text(Joined(node=node, address="127.0.0.1", port=1, instance=str(node))))
    while True:
        await asyncio.sleep(EVERY_S)
        await connection.send(_text(report(node)))


async def comm_member(at: dict[str, Any], node: int, gate: asyncio.Semaphore, folder: Path) -> None:
    """A comm of Dask."""
    from distributed.comm import connect

    async with gate:
        comm = await connect(at["uri"], timeout=60, ssl_context=tls(folder, server=False))
    await comm.write(node)
    while True:
        await asyncio.sleep(EVERY_S)
        await comm.write(report(node).to_json())


def set_keys(kind: str, at: dict[str, Any], nodes: range) -> None:
    """One client writes for all members of this process; a leader's key has those of its members."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", at["port"], is_master=False, wait_for_workers=False)
    while True:
        texts = {node: json.dumps({"node": node, **report(node).to_json()}) for node in nodes}
        if kind == "tree":
            for lead in sorted({node // LEADS for node in nodes}):
                store.set(f"lead-{lead}", json.dumps([texts[node] for node in nodes if node // LEADS == lead]))
        else:
            for node, text in texts.items():
                store.set(f"member-{node}", text)
        time.sleep(EVERY_S)


def tls(folder: Path, *, server: bool) -> Any:
    """A context with the certificate in the folder, which both ends have."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / "both.pem")
    context.load_cert_chain(folder / "both.pem")
    return context


# ---- the trial


def trial(kind: str, members: int, train_s: float) -> dict[str, float]:
    """One conductor and its members, from the start until one of them is missed."""
    from infra.gang.hub import _certified

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "both.pem").write_bytes(b"".join(_certified()))
        own = [sys.executable, __file__]
        conductor = subprocess.Popen(
            [*own, "--conduct", kind, str(members), name, str(train_s)], stdout=subprocess.PIPE, text=True
        )
        children: list[subprocess.Popen[bytes]] = []
        try:
            assert conductor.stdout is not None
            at = json.loads(conductor.stdout.readline())["at"]
            began = time.time()
            alone = LEADS if kind == "tree" else 1
            left = members - alone
            each = [alone, left // CHILDREN // LEADS * LEADS]
            each.append(members - sum(each))
            first = 0
            for count in each:
                children.append(subprocess.Popen([*own, "--be", kind, json.dumps(at), str(first), str(count), name]))
                first += count
            joined = json.loads(conductor.stdout.readline())["joined"] - began
            cpu = json.loads(conductor.stdout.readline())["cpu"]
            children[0].send_signal(signal.SIGKILL)
            killed = time.time()
            gone = json.loads(conductor.stdout.readline())["gone"] - killed
        finally:
            for child in (conductor, *children):
                child.kill()
                child.wait()
    return {"joined_s": joined, "cpu": cpu, "gone_s": gone}


def main() -> None:
    """Measure, print a table and, as the last line, the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="64 members once, instead of 256 and 1,250 three times")
    parser.add_argument("--conduct", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--be", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.conduct:
        kind, members, folder, train_s = arguments.conduct
        return conduct(kind, int(members), Path(folder), float(train_s))
    if arguments.be:
        kind, at, first, count, folder = arguments.be
        return be(kind, json.loads(at), int(first), int(count), Path(folder))
    sizes, rounds, train_s = ((64,), 1, 10.0) if arguments.quick else ((256, 1_250), 3, 20.0)
    print(machine())
    print(", ".join(f"{name} {version(name)}" for name in ("websockets", "distributed", "torch")))
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for members in sizes:
            for kind in KINDS:
                found.setdefault((kind, members), []).append(trial(kind, members, train_s))
    figures = {}
    print(f"{'':>12} {'members':>8} {'joined_s':>9} {'cpu':>7} {'gone_s':>7}")
    for (kind, members), trials in found.items():
        middle = {name: statistics.median(one[name] for one in trials) for name in ("joined_s", "cpu", "gone_s")}
        print(f"{kind:>12} {members:>8,} {middle['joined_s']:>9.2f} {middle['cpu']:>7.3f} {middle['gone_s']:>7.2f}")
        figures |= {f"{kind}_{members}_{name}": round(value, 4) for name, value in middle.items()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
