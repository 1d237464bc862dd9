"""Hosts on one machine: network namespaces with addresses of their own on a bridge, whose links can be cut.

They share the file system, so a store in a folder is reached from all; what goes over the network is theirs alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

_NETNS = Path("/etc/netns")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Hosts:
    """`count` hosts and, at `gateway`, this machine. Needs root.

    Attributes:
        gateway: this machine's address, which every host reaches.
        addresses: of the hosts.
    """

    def __init__(self, count: int) -> None:
        number = os.getpid() % 250
        self._bridge = f"tw{number}"
        self.gateway = f"10.213.{number}.1"
        self.addresses = [f"10.213.{number}.{11 + host}" for host in range(count)]
        self._names = [f"tw{number}-{host}" for host in range(count)]
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self.gateway}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for name, address in zip(self._names, self.addresses, strict=True):
                self._add(name, address)
        except BaseException:
            self.close()
            raise

    def _add(self, name: str, address: str) -> None:
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", self._bridge, "up")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")
        # Without these each connection waits ten seconds for a name server that is not there.
        folder = _NETNS / name
        folder.mkdir(parents=True, exist_ok=True)
        known = {
            "127.0.0.1": "localhost",
            self.gateway: "gateway",
            **dict(zip(self.addresses, self._names, strict=True)),
        }
        lines = [f"{prefix}{one} {called}\n" for one, called in known.items() for prefix in ("", "::ffff:")]
        (folder / "hosts").write_text("".join(lines))
        (folder / "resolv.conf").write_text("")

    def inside(self, host: int) -> list[str]:
        """The beginning of a command that runs on a host."""
        return ["ip", "netns", "exec", self._names[host]]

    def of(self, pid: int) -> int | None:
        """The host that a process runs on; None for this machine, or a process that has ended."""
        with contextlib.suppress(OSError):
            space = os.stat(f"/proc/{pid}/ns/net").st_ino
            for host, name in enumerate(self._names):
                if os.stat(f"/run/netns/{name}").st_ino == space:
                    return host
        return None

    def cut(self, host: int) -> None:
        """Nothing goes from or to a host any more; nobody is told."""
        _ip("link", "set", self._names[host], "nomaster")

    def cut_one_way(self, host: int) -> None:
        """What a host sends is lost; it hears the others."""
        others = [self.gateway, *(one for one in self.addresses if one != self.addresses[host])]
        for address in others:
            self._neighbour(host, "replace", address, "lladdr", "02:00:00:00:00:01", "nud", "permanent")

    def mend(self, host: int) -> None:
        """Undo either cut."""
        _ip("link", "set", self._names[host], "master", self._bridge)
        for address in [self.gateway, *self.addresses]:
            with contextlib.suppress(subprocess.CalledProcessError):
                self._neighbour(host, "del", address)

    def _neighbour(self, host: int, verb: str, address: str, *told: str) -> None:
        _ip("-n", self._names[host], "neigh", verb, address, *told, "dev", "eth0")

    def close(self) -> None:
        """Take all of it away."""
        for name in self._names:
            # By itself, a link goes with its host a while later, and the next hosts' have the same names.
            subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            shutil.rmtree(_NETNS / name, ignore_errors=True)
        subprocess.run(["ip", "link", "del", self._bridge], check=False, capture_output=True)
