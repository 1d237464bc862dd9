"""The child process that hashes raw files in a DVC repository or on S3: `python -m infra.sources.digest_worker`.

It reads no configuration file of AWS's, also none that a repository names: a profile in it may run a program.
"""

from __future__ import annotations

import os
from pathlib import Path

from data_contracts.messages.raw_data import DIGESTS, DigestRequest, FileDigests
from infra.processes.child_main import Report, child_main
from infra.sources.digests import digest_now
from infra.sources.places import Places

# A path below a device, which nobody can make.
_NO_FILE = f"{os.devnull}/none"


def main(request: DigestRequest, report: Report) -> FileDigests:
    """The digests of the files that a request names; errors as in `digest_now`."""
    os.environ |= dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), _NO_FILE)
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        os.environ.pop(name, None)
    places = Places(request.sources, Path(request.root))
    return FileDigests(digests=[digest_now(file, places) for file in request.files])


if __name__ == "__main__":
    child_main(DIGESTS, main)
