"""The record beside a backup of a team's Prefect server: what it was made of, and by which versions."""

from __future__ import annotations

from data_contracts.records import HandOff


class ServerBackup(HandOff):
    """`backup.json`, written last: a folder without it holds no whole backup.

    Attributes:
        made: the time (UTC, ISO 8601) when the dump began.
        trainwright: version that made the backup.
        prefect: version that was installed then.
        database_schema: the revision of Prefect's schema in the dump.
        postgresql: major version of the server that was dumped.
        size: of the dump, in bytes.
        digest: BLAKE3 of the dump.
    """

    made: str
    trainwright: str
    prefect: str
    database_schema: str
    postgresql: int
    size: int
    digest: str
