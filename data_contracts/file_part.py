"""The findings in one checked raw file that the store keeps, so that the same suite need not read it again."""

from __future__ import annotations

from pydantic import Field

from data_contracts.handoffs import HandOff
from data_contracts.profile.record import Profile


class FilePart(HandOff):
    """What is kept of a file that was checked.

    Attributes:
        own: the file's own Arrow schema, serialized, in hexadecimal digits.
        text_from: as in the file's facts.
        row_groups: as in the file's facts.
        schema_of_all: digest of the schema of all files, under which the rest was found.
        rows: its rows.
        values: of measures, by `data_contracts.contract.parts.name_of`.
        profile: of its rows.
    """

    own: str
    text_from: dict[str, int]
    row_groups: list[tuple[int, int]]
    schema_of_all: str
    rows: int = Field(ge=0)
    values: dict[str, int | float | None]
    profile: Profile
