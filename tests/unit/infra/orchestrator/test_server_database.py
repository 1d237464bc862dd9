"""What is said of a schema that is not this Prefect's."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from data_contracts.errors import UsageError
from infra.orchestrator import team_server
from infra.orchestrator.team_server import check_schema


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("newest", None),
        (None, " yet. Make them: prefect server database upgrade --yes"),
        ("other", f"has the schema other of another Prefect, and Prefect {version('prefect')} needs newest. If that"),
    ],
)
def test_a_server_starts_on_its_own_schema_alone(
    schema: str | None, sentence: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_server, "find_schema", lambda: schema)
    monkeypatch.setattr(team_server, "needed_schema", lambda: "newest")
    if sentence is None:
        check_schema()
        return
    with pytest.raises(UsageError) as caught:
        check_schema()
    assert sentence in str(caught.value)
