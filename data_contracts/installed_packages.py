"""What is installed where a process imports from: each package with the digest of its own list of files."""

from __future__ import annotations

from data_contracts.records import HandOff, Record


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
