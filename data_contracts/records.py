"""The bases of what is written as JSON: frozen records, and records with a schema number."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from data_contracts.errors import UsageError
from data_contracts.quoting import escaped

SCHEMA = 1
# A text for people that may quote a value of the data, or come from a store that others write.
Sentence = Annotated[str, AfterValidator(escaped)]


class Record(BaseModel):
    """A frozen JSON record; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """The record as Python objects that JSON can hold."""
        return self.model_dump(mode="json")


class HandOff(Record):
    """A record with a schema number of its own, written to the store or to a file."""

    schema_version: int = SCHEMA

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Read what `to_json` wrote; UsageError for a schema newer than this code's, also of a record inside."""
        return cls.model_validate(value)

    @model_validator(mode="before")
    @classmethod
    def _refuse_newer(cls, value: Any) -> Any:
        newest = cls.model_fields["schema_version"].default
        version = value.get("schema_version", newest) if isinstance(value, dict) else newest
        if not isinstance(version, int) or version > newest:
            raise UsageError(
                f"This {cls.__name__} has schema {version!r}, newer than the {newest} that this Trainwright reads.",
                remedy="Upgrade Trainwright.",
            )
        return value
