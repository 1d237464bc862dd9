"""A spec that is right, to be broken in one place by each case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SPEC = """\
version: 1
name: digits
data:
  source: digits.parquet
  sensitive: [id]
contract: {suite: suite.json}
shards:
  split:
    key: id
train:
  lightning: lightning.yaml
  global_batch_size: 64
  devices: 2
  batch: [[p0, p1], label]
evaluate:
  metrics:
    accuracy:
      class_path: torchmetrics.Accuracy
      target: 1
      mode: max
promote:
  gates:
    - {metric: accuracy, min: 0.9}
    - metric: accuracy
      min_gain: 0
"""


@pytest.fixture
def spec_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes the right spec, with texts replaced, as `spec.yaml` in the current folder; gives its relative path."""
    monkeypatch.chdir(tmp_path)

    def write(*changes: tuple[str, str], text: str = SPEC) -> Path:
        for old, new in changes:
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the spec"
            text = text.replace(old, new)
        Path("spec.yaml").write_text(text)
        return Path("spec.yaml")

    return write
