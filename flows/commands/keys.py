"""`key`: make a pair of keys to sign receipts with."""

from __future__ import annotations

import argparse
from pathlib import Path

from flows.commands.guard import Answer


def key(arguments: argparse.Namespace) -> Answer:
    """The `key` command."""
    from infra.signing.keys import load_public_key, make_key_pair

    private, public = make_key_pair(Path(arguments.folder).expanduser())
    identity = load_public_key(public).id
    lines = [
        f"{private} is the private key; only you may read it.",
        f"{public} is the public key, id {identity[:16]}…: give it to everyone who verifies.",
        f"Next: export TRAINWRIGHT_SIGNING_KEY={private.resolve()}",
    ]
    return Answer("\n".join(lines), {"private": str(private), "public": str(public), "id": identity})
