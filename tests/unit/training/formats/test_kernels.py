"""What the kernels share: CRC-32C, and machine code that is kept, where it can be, and loaded only where it is used."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.unit.training.formats import reference
from training.formats import kernels


@pytest.mark.parametrize("size", [*range(40), 1000, 4099])
def test_a_checksum_is_crc_32c(size):
    data = random.Random(size).randbytes(size)
    padded = np.frombuffer(bytearray(data), np.uint8)
    assert int(kernels.masked_crc(padded, 0, size)).to_bytes(4, "little") == reference.record(data)[-4:]


def test_kernels_work_where_their_machine_code_cannot_be_kept(tmp_path):
    shutil.copy(kernels.__file__, tmp_path)
    (tmp_path / "__pycache__").touch()  # nobody, root included, can make a folder of that name
    code = "import numpy, kernels; print(kernels.masked_crc(numpy.zeros(8, numpy.uint8), 0, 0))"
    unkept = {**os.environ, "XDG_CACHE_HOME": "/dev/null/none", "HOME": "/dev/null"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=unkept, capture_output=True, text=True, check=True
    )
    assert int(done.stdout).to_bytes(4, "little") == reference.record(b"")[-4:]
