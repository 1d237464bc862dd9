"""Raw files that a store names, read again only in places that the reader names.

Whoever can write a store can name any place in it: a repository whose configuration runs programs, or a server to which
credentials are sent. So a DVC repository is opened only in the reader's folder, and S3 only below the reader's
addresses, by a child process (`python -m infra.sources.named_places`) that has neither keys nor AWS's configuration
files, which may name programs. Files on this machine are only read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.messages.raw_data import DIGESTS, DigestRequest, FileDigests
from data_contracts.pipeline_spec import SourceSpec
from infra.child import run_child
from infra.processes.child_main import Report, child_main
from infra.processes.environment import PASS_ENV, named_variables, patterns_to_pass
from infra.sources.places import Places
from infra.sources.resolve import digest_now

# A path below a device, which nobody can make.
_NO_FILE = f"{os.devnull}/none"


@dataclass(frozen=True)
class NamedPlaces:
    """Where a reader says that raw data lies now: in a folder, in the place of the spec's, and below S3 addresses."""

    folder: Path | None = None
    addresses: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: Sequence[str]) -> NamedPlaces:
        """The places that `--data` names; UsageError for two folders, or an address without a bucket."""
        addresses = tuple(text.rstrip("/") for text in texts if text.startswith("s3:"))
        folders = [Path(text).resolve() for text in texts if not text.startswith("s3:")]
        bad = next((address for address in addresses if not re.match("s3://[^/]", address)), None)
        if bad is not None or len(folders) > 1:
            raise UsageError(
                "--data names two folders." if bad is None else f"--data: {bad} names no bucket.",
                remedy="Name one folder, and an address such as s3://bucket/raw for each place on S3.",
            )
        return cls(folders[0] if folders else None, addresses)

    def moved(self, file: SourceFile, root: Path) -> SourceFile:
        """A raw file with its path in the reader's folder, if it lay below `root`, the spec's folder."""
        path = Path(file.uri)
        if self.folder is None or "://" in file.uri or file.rev is not None or not path.is_relative_to(root):
            return file
        return file.model_copy(update={"uri": str(self.folder / path.relative_to(root))})

    def include(self, file: SourceFile, source: SourceSpec) -> bool:
        """Whether a raw file that a store names may be opened."""
        if source.uri.startswith("s3://"):
            return any(file.uri.startswith(f"{address}/") for address in self.addresses)
        return source.rev is None or self.folder is not None

    def require(self, file: SourceFile, source: SourceSpec) -> None:
        """Raise UsageError unless a raw file may be opened, with credentials of AWS's own variables alone."""
        if not self.include(file, source):
            s3 = source.uri.startswith("s3://")
            where = f"--data s3://{file.uri.removeprefix('s3://').partition('/')[0]}" if s3 else "--data DIR"
            what = "S3" if s3 else "a DVC repository"
            raise UsageError(
                f"The raw file {file.uri} lies in {what}, in a place that only the store names.",
                remedy=f"If you know the place, name it with {where}.",
            )
        refuse_foreign_credentials(source.storage_options)


NO_PLACES = NamedPlaces()


def refuse_foreign_credentials(options: Mapping[str, Any]) -> None:
    """UsageError if options from a store name a profile, or a variable that is not AWS's own: it would be sent there.

    A variable that TRAINWRIGHT_PASS_ENV names may be used.
    """
    passed = ["AWS_*", *patterns_to_pass(os.environ)]
    named = sorted(named_variables(options))
    bad = [name for name in named if not any(fnmatchcase(name, pattern) for pattern in passed)]
    profile = "profile" in options or any(str(value).startswith("profile:") for value in options.values())
    if bad or profile:
        what = f"the variable {bad[0]}" if bad else "a profile of AWS's configuration"
        raise UsageError(
            f"The store names {what} as a credential for raw data on S3, which is not used without your word.",
            remedy="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and store options that name them."
            if profile
            else f"If this variable is meant for that server, set {PASS_ENV}={','.join(bad)}.",
        )


def digests_now(
    files: Sequence[SourceFile], sources: list[SourceSpec], root: Path, places: NamedPlaces
) -> list[str | None]:
    """The current digest of each raw file that a store names, in order; None for one that no longer exists.

    Raises: UsageError for a place that the reader did not name, and as `digest_now`.
    """
    for file in files:
        places.require(file, sources[file.source])

    def is_apart(file: SourceFile) -> bool:
        source = sources[file.source]
        return bool(source.rev) or source.uri.startswith("s3://")

    apart = list(filter(is_apart, files))
    request = DigestRequest(files=apart, sources=sources, root=str(places.folder or root))
    digests = iter(run_child(DIGESTS, request).digests if apart else ())
    here = Places(sources, root)
    return [next(digests) if is_apart(file) else digest_now(places.moved(file, root), here) for file in files]


def main(request: DigestRequest, report: Report) -> FileDigests:
    """The digests of the files that a request names; errors as in `digest_now`."""
    os.environ |= dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), _NO_FILE)
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        os.environ.pop(name, None)
    places = Places(request.sources, Path(request.root))
    return FileDigests(digests=[digest_now(file, places) for file in request.files])


if __name__ == "__main__":
    child_main(DIGESTS, main)
