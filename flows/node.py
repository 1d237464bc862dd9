"""One node of a gang, as a work pool's worker runs it. The supervisor is a process of its own; this process watches it.

However this process ends, the node ends with it. A signal from Prefect or the host is passed on (the node saves a
checkpoint, unless it was cancelled), and the supervisor ends all its processes when this process is gone.
"""

from __future__ import annotations

import json
import logging
import time

from prefect import flow
from prefect.exceptions import Abort
from prefect.states import Cancelled, Completed, Failed, State

from data_contracts.errors import Cancelled as CancelledError
from data_contracts.errors import from_json
from data_contracts.messages.gang import NodeExit
from infra import stopping
from infra.gang.node import LocalNode, own_address
from infra.gang.rank_files import ADDRESS, NODE_KEY, STORE_OPTIONS, derived_key, generation_key, store_options
from infra.orchestrator.flow_runs import begin_flow_run_logs
from infra.orchestrator.gang import launch_secret, servers
from infra.store import layout, open_store

POLL_S = 0.1
log = logging.getLogger("trainwright")


@flow(name="node", retries=0)
def node(store: str, training: str, generation: int, node: int) -> State:
    """Run one node of a generation until it ends.

    Args:
        store: address of the store.
        training: its URI in the store.
        generation: of the gang.
        node: its number in the gang.
    """
    begin_flow_run_logs()
    options = store_options()
    secret = launch_secret()
    assert secret is not None, "this is a flow run"
    key = generation_key(derived_key(secret, store, training), generation)
    env = {STORE_OPTIONS: json.dumps(options), ADDRESS: own_address(servers(options)), NODE_KEY: key.hex()}
    supervisor = LocalNode([store, training, str(generation), str(node)], env, with_parent=True)
    try:
        _wait_for(supervisor)
        said, is_taken = supervisor.ended(), supervisor.is_taken
        printed = supervisor.log()
    finally:
        supervisor.kill()
    if is_taken:
        # Prefect executed this flow run twice. Its state belongs to the execution that has the node.
        raise Abort(f"node {node} runs already")
    path = layout.node_exit(training, generation, node)
    if (ended := open_store(store, options, create=False).find_as(path, NodeExit.from_json)) is None:
        return Failed(message=f"The supervisor {said} and left no answer in the store. {printed[-2000:]}")
    if ended.error is None:
        return Completed(message=f"Node {node} of generation {generation} is done.")
    error = from_json(ended.error)
    log.error("%s", error)
    make = Cancelled if isinstance(error, CancelledError) else Failed
    return make(name=error.cause.replace("_", " ").title().replace(" ", ""), message=error.message)


def _wait_for(supervisor: LocalNode) -> None:
    try:
        while supervisor.ended() is None:
            stopping.check()
            time.sleep(POLL_S)
    except BaseException as signal:
        # Prefect's reaction to SIGTERM, or the worker is stopped as planned. A second signal while the node saves its
        # checkpoint ends the node at once, and so does a stop (SIGSTOP) of the node: it would outlive this process when
        # the host ends it.
        supervisor.terminate()
        while supervisor.ended() is None and not supervisor.is_stopped:
            time.sleep(POLL_S)
        if not isinstance(signal, stopping.HandedOver):
            raise
