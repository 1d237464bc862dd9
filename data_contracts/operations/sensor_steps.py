"""The steps of a sensor: one for each time that new data started a run."""

from __future__ import annotations

from pydantic import Field

from data_contracts.records import HandOff, Record


class SensorCursor(Record):
    """The newest step of a sensor whose run has been started."""

    sensor: str
    step: int = Field(ge=0, strict=True)


class SensorStep(HandOff):
    """A step of a sensor, created once before its run is started.

    Attributes:
        sensor: id of the sensor, which makes the keys of its runs different from those of another store's sensor.
        n: from 0.
        files: marks of files, each of one file's place and stamp; those that are new since step `n - 1`.
        whole: `files` are all that are known; earlier steps need not be read.
        starts: whether a run is started for it; False for the first look, and for a reset.
    """

    sensor: str
    n: int
    files: list[str]
    whole: bool = False
    starts: bool = True
    by: str
    at: str
