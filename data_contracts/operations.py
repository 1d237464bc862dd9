"""Records of a service in operation: deliveries to mirrors, nodes, sensors, server backups and installed packages."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data_contracts.records import HandOff, Record


class Delivery(HandOff):
    """One attempt.

    Attributes:
        delivered: whether the mirror has all of it now.
        sentence: what was done, or why it failed; without secrets and without values of the data.
        at: the time (UTC, ISO 8601).
    """

    delivered: bool
    sentence: str
    at: str


FailureKind = Literal["failure", "straggler", "corrupt_replica"]


class FailureEvent(HandOff):
    """Something that went wrong on a node in one generation of a training.

    Attributes:
        node: its name, as its supervisor stated it.
        kind: `failure`: it was lost, or a rank on it hung; `straggler`: its own work took far longer than that of the
            others; `corrupt_replica`: it held other parameters than most.
        at: UTC, ISO 8601, by the conductor's clock.
    """

    node: str
    kind: FailureKind
    cause: str
    sentence: str
    training: str
    generation: int
    at: str


class NodeStanding(HandOff):
    """What a person decided about a node: it is drained, or takes part again. The newest decision holds."""

    node: str
    drained: bool
    reason: str
    by: str
    at: str

    @property
    def sentence(self) -> str:
        """Why a node is drained, in brackets behind its name."""
        return f"{self.node} ({self.reason}; by {self.by}, {self.at[:10]})"


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


class InstalledPackage(Record):
    """An installed package.

    Attributes:
        name, version: the name as packages are compared (PEP 503), and the version as it is installed.
        record: SHA-256 over the hashes of files in its RECORD, which every installation of one wheel shares;
            `editable` if it runs from its sources; "" if it has no RECORD, or if an earlier Trainwright noted it.
    """

    name: str
    version: str
    record: str = ""

    @property
    def label(self) -> str:
        """Name, version and the beginning of the digest, for a sentence."""
        return f"{self.name} {self.version}" + (f" (RECORD {self.record[:12]})" if self.record else "")


class InstalledPackages(HandOff):
    """Everything that is installed in one environment, sorted."""

    packages: list[InstalledPackage]
