"""The secret from which the keys of launches follow (`infra.gang.rank_files`): a Secret block on the Prefect server.

Conductors and nodes of one server have it in common. Whoever may use the server can read it, and can run any program on
its workers anyway.
"""

from __future__ import annotations

import contextlib
import secrets
import sys

NAME = "trainwright-launches"


def launch_secret() -> bytes | None:
    """The secret of the Prefect server that runs this flow, made if there is none; None outside of a flow run.

    StorageUnavailable if the server does not answer.
    """
    # A command that does not use Prefect does not import it either.
    context = sys.modules.get("prefect.context")
    if context is None or context.FlowRunContext.get() is None:
        return None
    from prefect.blocks.system import Secret
    from prefect.exceptions import ObjectNotFound

    from infra.orchestrator.admission import asking

    while True:
        try:
            with asking(retries=2) as client:
                return bytes.fromhex(client.read_block_document_by_name(NAME, "secret").data["value"])
        except ObjectNotFound:
            # Another process may have made it since.
            with contextlib.suppress(ValueError):
                Secret(value=secrets.token_hex(32)).save(NAME)
