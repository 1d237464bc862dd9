"""The bytes of a safetensors file, piece by piece and without a copy, for a store that hashes them as it writes.

The library either writes a file itself or returns all of it in memory, so a checkpoint's bytes are moved twice. The
bytes are exactly those of the library's `save`: eight bytes with the header's length, the header (JSON, padded to
eight), the tensors by type and then by name. See https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch

PIECE_BYTES = 2**23
# In the order in which the library puts them into a file.
DTYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def file_pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
    """The file's bytes in order.

    Args:
        tensors: by name; contiguous, in host memory, of a type in DTYPES.
    """
    places = {dtype: place for place, dtype in enumerate(DTYPES)}
    names = sorted(tensors, key=lambda name: (places[tensors[name].dtype], name))
    header: dict[str, dict] = {}
    at = 0
    for name in names:
        tensor = tensors[name]
        end = at + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield memoryview(len(encoded).to_bytes(8, "little") + encoded)
    for name in names:
        data = tensors[name].reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]
