"""The peers of `shard.py`: runs in a peer's environment and answers how long a write or a read took, in seconds."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import load, serve, sync

Rows = dict[str, np.ndarray]


class Tensorflow:
    """`TFRecordWriter` with `tf.train.Example`; `tf.data` with a batched parse."""

    packages = ("tensorflow-cpu",)

    def __init__(self) -> None:
        import tensorflow

        self.tf = tensorflow

    def _lists(self, name: str, rows: Rows, columns: bool) -> Iterator[dict[str, Any]]:
        feature = self.tf.train.Feature
        bytes_list, float_list, int64_list = self.tf.train.BytesList, self.tf.train.FloatList, self.tf.train.Int64List

        def label(value: int) -> Any:
            return feature(int64_list=int64_list(value=[value]))

        if name == "a":
            for image, one in zip(rows["image"], rows["label"].tolist(), strict=True):
                yield {"image": feature(bytes_list=bytes_list(value=[image.tobytes()])), "label": label(one)}
        elif name == "b" and columns:
            names = [f"x{column:02d}" for column in range(20)]
            for row, one in zip(rows["x"], rows["label"].tolist(), strict=True):
                entries = {
                    key: feature(float_list=float_list(value=[value]))
                    for key, value in zip(names, row.tolist(), strict=True)
                }
                yield {**entries, "label": label(one)}
        elif name == "b":
            for row, one in zip(rows["x"], rows["label"].tolist(), strict=True):
                yield {"x": feature(float_list=float_list(value=row)), "label": label(one)}
        elif name == "c":
            for window in rows["tokens"]:
                yield {"tokens": feature(bytes_list=bytes_list(value=[window.tobytes()]))}
        else:
            text = rows["text"].tobytes()
            bounds = [rows[f"{key}_offsets"].tolist() for key in ("tokens", "scores", "text")]
            for at in range(len(bounds[0]) - 1):
                tokens, scores, words = (slice(bound[at], bound[at + 1]) for bound in bounds)
                yield {
                    "tokens": feature(int64_list=int64_list(value=rows["tokens"][tokens])),
                    "scores": feature(float_list=float_list(value=rows["scores"][scores])),
                    "text": feature(bytes_list=bytes_list(value=[text[words]])),
                }

    def write(self, name: str, rows: Rows, out: Path, columns: bool = False) -> None:
        """Write the rows as files below `out`."""
        out.mkdir()
        tf = self.tf
        with tf.io.TFRecordWriter(str(out / "x.tfrecord")) as writer:
            for features in self._lists(name, rows, columns):
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())

    def read(self, name: str, path: str, batch: int) -> int:
        """Parse a file of ours to the end in batches; the rows seen."""
        tf = self.tf
        one = tf.io.FixedLenFeature
        spec = {
            "a": {"image": one([], tf.string), "label": one([], tf.int64)},
            "b": {**{f"x{at:02d}": one([], tf.float32) for at in range(20)}, "label": one([], tf.int64)},
            "c": {"tokens": one([], tf.string)},
            "ragged": {
                "tokens": tf.io.RaggedFeature(tf.int64), "scores": tf.io.RaggedFeature(tf.float32),
                "text": one([], tf.string),
            },
        }[name]  # fmt: skip
        raw = {"a": ("image", tf.uint8), "c": ("tokens", tf.uint16)}.get(name)

        def parse(records: Any) -> Any:
            features = tf.io.parse_example(records, spec)
            if raw:
                features[raw[0]] = tf.io.decode_raw(features[raw[0]], raw[1])
            return features

        data = tf.data.TFRecordDataset(path).batch(batch).map(parse, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
        return sum(int(next(iter(features.values())).shape[0]) for features in data)


class Tfrecord:
    """The package `tfrecord`."""

    packages = ("tfrecord",)

    def write(self, name: str, rows: Rows, out: Path) -> None:
        """Write the rows as files below `out`."""
        from tfrecord.writer import TFRecordWriter

        out.mkdir()
        writer = TFRecordWriter(str(out / "x.tfrecord"))
        for values in _values(name, rows):
            entry = {}
            for key, value in values.items():
                is_float = isinstance(value, np.ndarray) and value.dtype == np.float32
                if isinstance(value, np.ndarray) and not is_float:
                    value = value.tobytes()
                entry[key] = (value, "byte" if isinstance(value, bytes) else "float" if is_float else "int")
            writer.write(entry)
        writer.close()


class Mds:
    """Streaming's MDS, uncompressed, without hashes."""

    packages = ("mosaicml-streaming",)

    def write(self, name: str, rows: Rows, out: Path) -> None:
        """Write the rows as files below `out`."""
        from streaming import MDSWriter

        columns = {
            "a": {"image": "ndarray:uint8:784", "label": "int"},
            "b": {"x": "ndarray:float32:20", "label": "int"},
            "c": {"tokens": "ndarray:uint16:512"},
        }[name]
        with MDSWriter(out=str(out), columns=columns) as writer:
            for values in _values(name, rows):
                writer.write(values)


class Litdata:
    """litdata's `optimize` with one worker, its start-up included."""

    packages = ("litdata",)

    def write(self, name: str, rows: Rows, out: Path) -> None:
        """Write the rows as files below `out`."""
        import litdata

        chosen = list(_values(name, rows))
        litdata.optimize(
            fn=_itself, inputs=chosen, output_dir=str(out), chunk_bytes="64MB", num_workers=1, verbose=False
        )


class Webdataset:
    """webdataset's `TarWriter`."""

    packages = ("webdataset",)

    def write(self, name: str, rows: Rows, out: Path) -> None:
        """Write the rows as files below `out`."""
        import webdataset

        out.mkdir()
        with webdataset.TarWriter(str(out / "x.tar")) as writer:
            for at, values in enumerate(_values(name, rows)):
                sample: dict[str, Any] = {"__key__": f"{at:08d}"}
                for value in values.values():
                    sample.update({"bin": value.tobytes()} if isinstance(value, np.ndarray) else {"cls": value})
                writer.write(sample)


def _values(name: str, rows: Rows) -> Iterator[dict[str, Any]]:
    """One dictionary per row: an array, and an integer if there is a label."""
    key = {"a": "image", "b": "x", "c": "tokens"}[name]
    labels = rows["label"].tolist() if "label" in rows else None
    for at, value in enumerate(rows[key]):
        yield {key: value} if labels is None else {key: value, "label": labels[at]}


def _itself(value: Any) -> Any:
    return value


PEERS = {"tensorflow": Tensorflow, "tfrecord": Tfrecord, "mds": Mds, "litdata": Litdata, "webdataset": Webdataset}


def main() -> None:
    """Answer `versions`, `write` (data set, its folder, rows, place) and `read` (data set, file) requests."""
    peer = PEERS[sys.argv[1]]()
    held: dict[str, Rows] = {}

    def answer(what: str, **request: Any) -> Any:
        if what == "versions":
            return {package: importlib.metadata.version(package) for package in peer.packages}
        if what == "read":
            start = time.perf_counter()
            count = peer.read(**request)
            return time.perf_counter() - start, count
        name, folder, out = request.pop("name"), request.pop("folder"), Path(request.pop("out"))
        limit = request.pop("limit")
        if folder not in held:
            held.clear()
            held[folder] = load(Path(folder))
        rows = held[folder] if limit is None else {key: values[:limit] for key, values in held[folder].items()}
        start = time.perf_counter()
        peer.write(name, rows, out, **request)
        sync(out)
        taken = time.perf_counter() - start
        shutil.rmtree(out)
        return taken

    serve(answer)


if __name__ == "__main__":
    main()
