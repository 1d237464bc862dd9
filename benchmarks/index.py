"""The index of a checkpoint of 10,000 ranks: what it takes to write and to read it, and what each rank is sent.

    python benchmarks/index.py [--quick]

The ranks' messages are made here, in one process, as `training.checkpoint.saver` makes them; nothing is trained.
Without `cut`, each of the 34 million pieces would stand in the index: 5 GB, which no reader takes.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from common import machine

from data_contracts.canonical import canonical, digest
from data_contracts.handoffs import FileEntry
from infra.store.seal import write_manifest
from training.checkpoint.files import INDEX, Cut, Entry, Index, TensorReader, read_index
from training.checkpoint.saver import merge

TENSORS, RANKS = 3411, 10_000
ROWS, COLUMNS = 16_384, 4_096


def entries(tensors: int, ranks: int) -> dict[str, Entry]:
    """What rank 0 holds: a third are weights, the others the optimizer's."""
    made = {}
    for number in range(tensors):
        name = f"state_dict/layers.{number // 3}.weight" if number % 3 == 0 else f"optimizer_states/0/state/{number}/v"
        file = "weights-" if number % 3 == 0 else "state-"
        cut = Cut(file=file, key=name.removeprefix("state_dict/"), dimension=0, parts=ranks)
        made[name] = Entry(shape=(ROWS, COLUMNS), dtype="float32", sharded=True, slices=[], cut=cut)
    return made


def message(rank: int) -> dict[str, object]:
    """What a rank says of its part."""
    names = (f"weights-{rank}.safetensors", f"state-{rank}.safetensors", f"rank-{rank}.json")
    files = [FileEntry(path=name, bytes=1, blake3=digest(name)).to_json() for name in names]
    return {"value": {"files": files, "tensors": {}, "cuts": digest(0)}}


def main() -> None:
    """Write an index, read it, and print what that took."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a hundredth of the ranks")
    ranks = RANKS // 100 if parser.parse_args().quick else RANKS
    print(machine())
    began = time.perf_counter()
    sent = [json.dumps(message(rank), separators=(",", ":")).encode() for rank in range(ranks)]
    gathered = len(sent) * max(map(len, sent))
    made_s = time.perf_counter() - began

    began = time.perf_counter()
    parts = [json.loads(text)["value"] for text in sent]
    index = merge([entries(TENSORS, ranks), *({} for _ in parts[1:])])
    files = [FileEntry.model_validate(entry) for part in parts for entry in part["files"]]
    encoded = canonical(index.to_json())
    manifest = write_manifest("checkpoint", {}, {}, files)[0]
    written_s = time.perf_counter() - began

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / INDEX).write_bytes(encoded)
        began = time.perf_counter()
        found = read_index(Path(folder))
        read_s = time.perf_counter() - began
        began = time.perf_counter()
        with TensorReader(Path(folder), Index(tensors=found.tensors)) as reader:
            held = sum(1 for name in found.tensors for _ in reader.entry(name).slices_in((0, 0), (2, COLUMNS)))
        placed_s = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{TENSORS:,} tensors on {ranks:,} ranks; the messages were made in {made_s:.1f} s")
    print(f"gathered by each rank    {gathered / 2**20:6.1f} MiB")
    print(f"index written by rank 0  {written_s:6.2f} s; it has {len(encoded):,} bytes, the manifest {len(manifest):,}")
    print(f"index read by a rank     {read_s:6.2f} s; its {held:,} pieces found in {placed_s:.2f} s")
    print(f"most memory of this process, which is all ranks at once: {peak:,.0f} MiB")
    print(json.dumps({"written_s": written_s, "read_s": read_s, "gathered_mib": gathered / 2**20, "peak_mib": peak}))


if __name__ == "__main__":
    main()
