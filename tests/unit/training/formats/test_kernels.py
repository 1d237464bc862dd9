"""What the kernels share: CRC-32C, and machine code that is kept, where it can be, and loaded only where it is used."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from training.formats import kernels

_spec = importlib.util.spec_from_file_location("formats_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


@pytest.mark.parametrize("size", [*range(20), 1000, 4099])
def test_a_checksum_is_crc_32c_by_tables_as_by_instruction(size):
    data = random.Random(size).randbytes(size)
    padded = np.frombuffer(bytearray(data + bytes(kernels.SPARE_BYTES)), np.uint8)
    assert int(kernels.masked_crc(padded, 0, size)).to_bytes(4, "little") == reference.record(data)[-4:]
    crc = 0xFFFFFFFF
    for at in range(0, size - size % 8, 8):
        crc = int(kernels.crc_by_tables(np.uint64(crc), np.uint64(int.from_bytes(data[at : at + 8], "little"))))
    assert crc ^ 0xFFFFFFFF == crc32c(data[: size - size % 8])


def test_numba_is_imported_where_tfrecord_is_used_and_nowhere_else():
    code = (
        "import sys; from training import formats; formats.get('parquet'); print('numba' in sys.modules);"
        "formats.get('tfrecord'); print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_kernels_work_where_their_machine_code_cannot_be_kept(tmp_path):
    shutil.copy(kernels.__file__, tmp_path)
    (tmp_path / "__pycache__").touch()  # nobody, root included, can make a folder of that name
    code = "import numpy, kernels; print(kernels.masked_crc(numpy.zeros(8, numpy.uint8), 0, 0))"
    unkept = {**os.environ, "XDG_CACHE_HOME": "/dev/null/none", "HOME": "/dev/null"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=unkept, capture_output=True, text=True, check=True
    )
    assert int(done.stdout).to_bytes(4, "little") == reference.record(b"")[-4:]
