"""examples/serving: what it missed while Prefect was away it looks up, and only the secret makes it look.

(Through a real promotion, rejected night and rollback, with `--slow`: tests/integration/test_serving_example.py.)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from onnx import TensorProto, helper
from prefect.events.schemas.events import Event, Resource
from websockets.sync.server import ServerConnection, serve

from tests.support.pool import until
from tests.support.prometheus import free_port

SECRET = "b0b5" * 16
# In place of the command: the file `champion` has the number of the version.
COMMAND = """#!{python}
import json, pathlib, shutil, sys
place = pathlib.Path({place!r})
verb, name, *rest = sys.argv[1:]
if verb == "show":
    number = int((place / "champion").read_text())
    with (place / "looks").open("a") as looks:
        print(number, file=looks)
    print(json.dumps({{"name": "tiny", "version": number, "ref": {{"seal": f"seal of {{number}}"}}}}))
else:
    shutil.copytree(place / name, rest[0])
"""


def write_export(folder: Path, number: int) -> None:
    """An export of a version whose output is its input and the number."""
    folder.mkdir()
    values = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["rows"]) for name in ("a", "prediction")]
    one = helper.make_tensor("number", TensorProto.DOUBLE, [1], [float(number)])
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "number"], ["prediction"])], "g", [values[0]], [values[1]], [one]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    about = {"model": "tiny", "version": number, "version_ref": {"seal": f"seal of {number}"}}
    columns = {"inputs": [{"name": "a", "dtype": "float64"}], "outputs": [{"name": "prediction"}]}
    (folder / "export.json").write_text(json.dumps({**about, **columns}))


@contextmanager
def events(port: int) -> Iterator[list[ServerConnection]]:
    """Prefect's stream of events: its subscribers, to whom nothing is sent by itself."""
    connections: list[ServerConnection] = []

    def handle(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(json.dumps({"type": "auth_success"}))
        connection.recv()
        connections.append(connection)
        for _ in connection:
            pass

    with serve(handle, "127.0.0.1", port, subprotocols=["prefect"]) as server:  # type: ignore[list-item]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield connections
        server.shutdown()
        for connection in connections:
            connection.close()
        thread.join()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[httpx.Client]:
    """A client, with the secret, of a service of version 1; Prefect's server would be at `tmp_path / "port"`."""
    port, prefect = free_port(), free_port()
    (tmp_path / "port").write_text(str(prefect))
    (tmp_path / "champion").write_text("1")
    for number in (1, 2, 3):
        write_export(tmp_path / f"tiny@{number}", number)
    command = tmp_path / "bin" / "trainwright"
    command.parent.mkdir()
    command.write_text(COMMAND.format(python=sys.executable, place=str(tmp_path)))
    command.chmod(0o755)
    script = Path(__file__).resolve().parents[3] / "examples/serving/serve.py"
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "SERVING_SECRET": SECRET}
    environment |= {"PREFECT_API_URL": f"http://127.0.0.1:{prefect}/api", "PREFECT_HOME": str(tmp_path / "prefect")}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, script, "tiny@champion", "store", str(port)], env=environment, stderr=log
        ) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client,
    ):
        client.headers["Authorization"] = f"Bearer {SECRET}"
        yield client
        process.kill()


def serves(service: httpx.Client, number: int) -> bool:
    try:
        answer = service.get("/")
    except httpx.TransportError:
        return False
    return bool(answer.json() == {"model": "tiny", "version": number})


def test_it_looks_at_each_connection_at_each_event_and_when_it_is_told_with_the_secret(
    service: httpx.Client, tmp_path: Path
) -> None:
    log, prefect = tmp_path / "log", int((tmp_path / "port").read_text())
    until(lambda: serves(service, 1), what=log.read_text)
    with events(prefect):
        until(lambda: (tmp_path / "looks").read_text() == "1\n1\n", what=log.read_text)  # at its start, when connected
    (tmp_path / "champion").write_text("2")  # while the server is away: no event tells of it
    with events(prefect) as subscribers:
        until(lambda: serves(service, 2), what=log.read_text)
        until(lambda: subscribers, what=log.read_text)
        (tmp_path / "champion").write_text("3")
        resource = {"prefect.resource.id": "trainwright.model.tiny"}
        event = Event(event="trainwright.model.promoted", resource=Resource(resource), id=uuid4())
        subscribers[0].send(json.dumps({"type": "event", "event": event.model_dump(mode="json")}))
        until(lambda: serves(service, 3), what=log.read_text)
    (tmp_path / "champion").write_text("2")
    shutil.rmtree(tmp_path / "tiny@2")  # a rollback needs no second export
    for shown in ("", "Bearer", f"Bearer {SECRET[1:]}", f"Basic {SECRET}"):
        for path in ("/reload", "/predict"):
            assert service.post(path, headers={"Authorization": shown}).status_code == 401
    assert service.post("/predict", json={"a": [1, 2]}).json()["outputs"] == {"prediction": [4.0, 5.0]}
    assert service.post("/reload").status_code == 202
    until(lambda: serves(service, 2), what=log.read_text)
    assert service.post("/predict", json={"b": [1]}).status_code == 400
    assert SECRET not in log.read_text()
