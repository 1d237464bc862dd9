"""The peers of `loader.py`: runs in a peer's environment and answers how long a sample took, in seconds.

Each stores the data in its own format, opens one loader, and gives shuffled batches of 256 as tensors.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import load, serve

BATCH = 256
BUFFER = 10_000
Rows = dict[str, np.ndarray]


def samples(rows: Rows) -> Iterator[dict[str, Any]]:
    """One dictionary per row."""
    names = list(rows)
    for values in zip(*rows.values(), strict=True):
        yield dict(zip(names, values, strict=True))


def rows_in(batch: Any) -> int:
    """Rows of a batch."""
    return len(next(iter(batch.values())) if isinstance(batch, dict) else batch[0])


class Streaming:
    """MosaicML Streaming's MDS behind torch's DataLoader."""

    def store(self, rows: Rows, out: Path) -> None:
        """Write the rows below `out`."""
        from streaming import MDSWriter

        columns = {
            key: "int" if values.ndim == 1 else f"ndarray:{values.dtype.name}:{values.shape[1]}"
            for key, values in rows.items()
        }
        with MDSWriter(out=str(out), columns=columns) as writer:
            for sample in samples(rows):
                writer.write({key: int(v) if np.ndim(v) == 0 else v for key, v in sample.items()})

    def open(self, rows: Rows, out: Path) -> Iterable[Any]:
        """A loader of what was stored."""
        from streaming import StreamingDataset
        from torch.utils.data import DataLoader

        # np.uint16 is no type of torch's default collation.
        def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
            import torch

            return {key: torch.from_numpy(np.stack([one[key] for one in batch])) for key in batch[0]}

        return DataLoader(
            StreamingDataset(local=str(out), shuffle=True, batch_size=BATCH), batch_size=BATCH, collate_fn=collate
        )


class Litdata:
    """Lightning's litdata, chunks of tensors."""

    def store(self, rows: Rows, out: Path) -> None:
        """Write the rows below `out`."""
        import litdata

        keys = list(rows)
        litdata.optimize(
            fn=_Row(rows, keys), inputs=list(range(len(rows[keys[0]]))), output_dir=str(out), chunk_bytes="64MB",
            num_workers=1,
        )  # fmt: skip

    def open(self, rows: Rows, out: Path) -> Iterable[Any]:
        """A loader of what was stored."""
        import litdata

        dataset = litdata.StreamingDataset(str(out), shuffle=True)
        return litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0)


class _Row:
    def __init__(self, rows: Rows, keys: list[str]) -> None:
        self.rows, self.keys = rows, keys

    def __call__(self, at: int) -> dict[str, Any]:
        import torch

        return {
            key: int(self.rows[key][at]) if self.rows[key].ndim == 1 else torch.from_numpy(self.rows[key][at])
            for key in self.keys
        }


class Webdataset:
    """webdataset's tar files and its shuffle buffer."""

    def store(self, rows: Rows, out: Path) -> None:
        """Write the rows below `out`."""
        out.mkdir()
        with tarfile.open(out / "0.tar", "w") as tar:
            for number, sample in enumerate(samples(rows)):
                for key, value in sample.items():
                    data = np.asarray(value).tobytes()
                    info = tarfile.TarInfo(f"{number:08}.{key}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))

    def open(self, rows: Rows, out: Path) -> Iterable[Any]:
        """A loader of what was stored."""
        import torch
        import webdataset

        kinds = {key: values.dtype for key, values in rows.items()}

        def batch(samples_: list[dict[str, bytes]]) -> dict[str, Any]:
            return {
                key: torch.from_numpy(
                    np.frombuffer(b"".join(one[key] for one in samples_), kind).reshape(len(samples_), -1).copy()
                )
                for key, kind in kinds.items()
            }

        source = webdataset.WebDataset(str(out / "0.tar"), shardshuffle=False).shuffle(5000)
        return source.batched(BATCH, collation_fn=batch)


class HuggingFace:
    """Hugging Face datasets, iterable with a buffer, as arrays."""

    def store(self, rows: Rows, out: Path) -> None:
        """Write the rows below `out`."""
        import datasets

        def feature(values: np.ndarray) -> Any:
            value = datasets.Value(values.dtype.name)
            return value if values.ndim == 1 else datasets.Sequence(value, length=values.shape[1])

        features = datasets.Features({key: feature(values) for key, values in rows.items()})
        datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(out))

    def open(self, rows: Rows, out: Path) -> Iterable[Any]:
        """A loader of what was stored."""
        import torch

        shuffled = self.shuffled(out, "numpy")

        def batches() -> Iterator[Any]:
            for batch in shuffled.iter(batch_size=BATCH):
                yield {key: torch.from_numpy(np.ascontiguousarray(values)) for key, values in batch.items()}

        return _Again(batches)

    def shuffled(self, out: Path, form: str) -> Any:
        """What was stored, through a buffer."""
        import datasets

        loaded = datasets.load_from_disk(str(out)).with_format(form).to_iterable_dataset()
        return loaded.shuffle(seed=0, buffer_size=BUFFER)


class HuggingFaceArrow(HuggingFace):
    """The same as Arrow tables, turned into tensors by hand."""

    def open(self, rows: Rows, out: Path) -> Iterable[Any]:
        """A loader of what was stored."""
        import torch

        shuffled = self.shuffled(out, "arrow")

        def tensor(column: Any) -> Any:
            array = column.combine_chunks()
            flat = array if column.type.num_fields == 0 else array.flatten()
            return torch.from_numpy(flat.to_numpy(zero_copy_only=False)).reshape(len(array), -1)

        def batches() -> Iterator[Any]:
            for batch in shuffled.iter(batch_size=BATCH):
                yield {key: tensor(batch[key]) for key in rows}

        return _Again(batches)


class HuggingFaceMap(HuggingFace):
    """Hugging Face datasets, map style, shuffled globally."""

    def open(self, rows: Rows, out: Path) -> Iterable[Any]:
        """A loader of what was stored."""
        import datasets
        from torch.utils.data import DataLoader

        loaded = datasets.load_from_disk(str(out)).with_format("numpy")

        def collate(batch: Any) -> Any:
            import torch

            return {key: torch.from_numpy(np.stack([one[key] for one in batch])) for key in batch[0]}

        return DataLoader(loaded, batch_size=BATCH, shuffle=True, collate_fn=collate)


class Grain:
    """grain over mapped arrays, shuffled globally."""

    def store(self, rows: Rows, out: Path) -> None:
        """Write the rows below `out`."""
        out.mkdir()
        for key, values in rows.items():
            np.save(out / f"{key}.npy", values)

    def open(self, rows: Rows, out: Path) -> Iterable[Any]:
        """A loader of what was stored."""
        import grain

        mapped = {key: np.load(out / f"{key}.npy", mmap_mode="r") for key in rows}

        class Source:
            def __len__(self) -> int:
                return len(next(iter(mapped.values())))

            def __getitem__(self, at: int) -> Any:
                return {key: values[at] for key, values in mapped.items()}

        dataset = grain.MapDataset.source(Source()).shuffle(seed=0).batch(BATCH, drop_remainder=True)

        def batches() -> Iterator[Any]:
            import torch

            for at in range(len(dataset)):
                yield {key: torch.from_numpy(np.asarray(values)) for key, values in dataset[at].items()}

        return _Again(batches)


class Tfdata:
    """tf.data: TFRecord, a shuffle buffer, a batched parse."""

    def store(self, rows: Rows, out: Path) -> None:
        """Write the rows below `out`."""
        import tensorflow as tf

        out.mkdir()
        feature = tf.train.Feature
        with tf.io.TFRecordWriter(str(out / "0.tfrecord")) as writer:
            for sample in samples(rows):
                features = {
                    key: feature(int64_list=tf.train.Int64List(value=[int(value)]))
                    if np.ndim(value) == 0
                    else feature(float_list=tf.train.FloatList(value=value))
                    if value.dtype == np.float32
                    else feature(bytes_list=tf.train.BytesList(value=[value.tobytes()]))
                    for key, value in sample.items()
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

    def open(self, rows: Rows, out: Path) -> Iterable[Any]:
        """A loader of what was stored."""
        import tensorflow as tf

        fixed = tf.io.FixedLenFeature
        spec = {
            key: fixed([], tf.int64)
            if values.ndim == 1
            else fixed([values.shape[1]], tf.float32)
            if values.dtype == np.float32
            else fixed([], tf.string)
            for key, values in rows.items()
        }
        kinds = {key: values.dtype for key, values in rows.items()}

        def parse(batch: Any) -> Any:
            parsed = tf.io.parse_example(batch, spec)
            return {
                key: tf.io.decode_raw(value, tf.as_dtype(kinds[key])) if value.dtype == tf.string else value
                for key, value in parsed.items()
            }

        records = tf.data.TFRecordDataset(str(out / "0.tfrecord")).shuffle(BUFFER).batch(BATCH)
        return _Again(lambda: records.map(parse).prefetch(2).as_numpy_iterator())


class _Again:
    """Something to iterate again and again."""

    def __init__(self, begin: Any) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


PEERS: dict[str, type] = {
    "streaming": Streaming,
    "litdata": Litdata,
    "webdataset": Webdataset,
    "datasets": HuggingFace,
    "datasets arrow": HuggingFaceArrow,
    "datasets map": HuggingFaceMap,
    "grain": Grain,
    "tf.data": Tfdata,
}
_opened: dict[tuple[str, str], Iterable[Any]] = {}


def answer(peer: str, name: str, folder: str, most_s: float) -> float:
    """Seconds per sample of an epoch of one opened loader, its first batch counted, cut off after `most_s` seconds."""
    key = (peer, name)
    if key not in _opened:
        rows = load(Path(folder))
        made, out = PEERS[peer](), Path(folder).parent / f"{name}-{peer.replace(' ', '-')}"
        shutil.rmtree(out, ignore_errors=True)
        made.store(rows, out)
        _opened[key] = made.open(rows, out)
    seen, since = 0, time.perf_counter()
    for batch in _opened[key]:
        seen += rows_in(batch)
        if time.perf_counter() - since > most_s:
            break
    return (time.perf_counter() - since) / seen


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if sys.argv[1:] != ["tensorflow"]:
        import torch

        torch.set_num_threads(1)
    serve(answer)
