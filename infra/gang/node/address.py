"""The address at which the other nodes of a gang reach this host."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from infra.gang.environment import ADDRESS
from infra.gang.node.local import LOOPBACK


def own_address(peers: Iterable[str]) -> str:
    """TRAINWRIGHT_ADDRESS, else the address from which this host reaches the first of `peers` (URLs) on another host.

    Loopback if all peers are on this host: then the other nodes are, too.
    """
    if named := os.environ.get(ADDRESS):
        return named
    for url in peers:
        found = _towards(url)
        if found is not None and not ipaddress.ip_address(found).is_loopback:
            return found
    return LOOPBACK


def _towards(url: str) -> str | None:
    parts = urlsplit(url)
    if not parts.hostname:
        return None
    with contextlib.suppress(OSError):
        for family, kind, _, _, target in socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM):
            # Connecting a datagram socket sends nothing: it only chooses the route.
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
    return None
