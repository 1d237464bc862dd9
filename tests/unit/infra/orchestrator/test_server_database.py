"""What is said of a schema that is not this Prefect's."""

from __future__ import annotations

import pytest

from data_contracts.errors import UsageError
from infra.orchestrator import team_server
from infra.orchestrator.team_server import check_schema


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("newest", None),
        (None, "The database has no tables of Prefect 3.8.8 yet. Make them: prefect server database upgrade --yes"),
        ("older", "has the schema older of an earlier Prefect, and Prefect 3.8.8 needs newest. Make a backup"),
        ("newer", "has the schema newer, which Prefect 3.8.8 does not know: a later Prefect has used it. Install that"),
    ],
)
def test_a_server_starts_on_its_own_schema_alone(
    schema: str | None, sentence: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_server, "find_schema", lambda: schema)
    monkeypatch.setattr(team_server, "needed_schema", lambda: "newest")
    monkeypatch.setattr(team_server, "is_known_schema", lambda schema: schema in ("older", "newest"))
    monkeypatch.setattr(team_server, "prefect_version", lambda: "3.8.8")
    if sentence is None:
        check_schema()
        return
    with pytest.raises(UsageError) as caught:
        check_schema()
    assert sentence in str(caught.value)
