"""How PostgreSQL's programs find Prefect's database, and what is said of a schema that is not this Prefect's."""

from __future__ import annotations

import pytest

from data_contracts.errors import UsageError
from infra.orchestrator import team_server
from infra.orchestrator.team_server import Database, check_schema, variables_of, variables_of_tls


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql+asyncpg://me:p%40ss@db:5433/prefect?ssl=require",
            {"PGHOST": "db", "PGPORT": "5433", "PGUSER": "me", "PGPASSWORD": "p@ss", "PGDATABASE": "prefect",
             "PGSSLMODE": "require"},
        ),
        (
            "postgresql+asyncpg:///prefect?host=/run/db&port=5433&user=me&password=p%40ss",
            {"PGHOST": "/run/db", "PGPORT": "5433", "PGUSER": "me", "PGPASSWORD": "p@ss", "PGDATABASE": "prefect"},
        ),
        (
            "postgresql+asyncpg://me@/prefect?host=one:5433&host=two:5434",
            {"PGHOST": "one,two", "PGPORT": "5433,5434", "PGUSER": "me", "PGDATABASE": "prefect"},
        ),
        ("postgresql+asyncpg:///prefect", {"PGDATABASE": "prefect"}),
        ("postgresql+asyncpg://me@db/prefect", {"PGHOST": "db", "PGUSER": "me", "PGDATABASE": "prefect"}),
    ],
)  # fmt: skip
def test_the_database_of_an_address(url: str, expected: dict[str, str]) -> None:
    assert variables_of(url) == expected


def test_programs_check_the_server_as_prefect_does() -> None:
    from prefect.settings.models.server.database import SQLAlchemyTLSSettings as Tls

    assert variables_of_tls(Tls(enabled=False, ca_file="/ca.pem")) == {}
    assert variables_of_tls(Tls(enabled=True)) == {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": "system"}
    given = Tls(enabled=True, check_hostname=False, ca_file="/ca.pem", cert_file="/me.pem", key_file="/me.key")
    assert variables_of_tls(given) == {
        "PGSSLMODE": "verify-ca", "PGSSLROOTCERT": "/ca.pem", "PGSSLCERT": "/me.pem", "PGSSLKEY": "/me.key",
    }  # fmt: skip


@pytest.mark.parametrize(
    "url", ["", "no address", "sqlite+aiosqlite:///prefect.db", "postgresql+asyncpg://me:secret@db", "http://[:secret"]
)
def test_an_address_of_no_database(url: str) -> None:
    with pytest.raises(UsageError, match="names no PostgreSQL database") as caught:
        variables_of(url)
    assert "secret" not in str(caught.value)


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
    monkeypatch.setattr(team_server, "look_at_database", lambda: Database(schema, 36, 15))
    monkeypatch.setattr(team_server, "needed_schema", lambda: "newest")
    monkeypatch.setattr(team_server, "is_known_schema", lambda schema: schema in ("older", "newest"))
    monkeypatch.setattr(team_server, "prefect_version", lambda: "3.8.8")
    if sentence is None:
        check_schema()
        return
    with pytest.raises(UsageError) as caught:
        check_schema()
    assert sentence in str(caught.value)
