"""A real Prometheus that scrapes ports of this machine each second, and what it answers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.waiting import free_port


@contextlib.contextmanager
def prometheus(folder: Path, targets: Mapping[int, Path], rules: Path | None = None) -> Iterator[str]:
    """The address of a Prometheus.

    Args:
        targets: the ports that it scrapes, each with the file of the secret that it shows there.
        rules: file of rules that it evaluates each second.
    """
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [] if rules is None else [str(rules)],
        "scrape_configs": [
            {
                "job_name": f"trainwright-{target}",
                "authorization": {"credentials_file": str(token)},
                "static_configs": [{"targets": [f"127.0.0.1:{target}"]}],
            }
            for target, token in targets.items()
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    arguments = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("wb") as log:
        served = subprocess.Popen(
            ["prometheus", *arguments, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            served.terminate()
            served.wait(480)


def answer(address: str, path: str, **question: Any) -> Any:
    """The data that the API answers with."""
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(question, doseq=True)}"
    with urllib.request.urlopen(url, timeout=60) as got:
        return json.loads(got.read())["data"]


def ask(address: str, query: str) -> list[dict[str, Any]]:
    """The series that a query has now."""
    return answer(address, "query", query=query)["result"]  # type: ignore[no-any-return]
