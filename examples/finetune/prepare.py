"""Makes what somebody who fine-tunes has already: a pretrained model in `base/`, and texts of another kind in `data/`.

The model is a small GPT-2 over bytes, trained for a few seconds on the standard library's source and saved as Hugging
Face's libraries save theirs; its digest is written into `pipeline.yaml`. The texts are the manual that comes with
Python. It needs torch, pyarrow and the packages of requirements.txt: `python prepare.py` in their environment. Run it
again and nothing changes.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import GPT2Config, GPT2LMHeadModel

HERE = Path(__file__).resolve().parent
LENGTH = 64


def windows(text: str) -> list[list[int]]:
    """The text's bytes in pieces of LENGTH; what is left at its end is dropped."""
    data = text.encode()
    return [list(data[at : at + LENGTH]) for at in range(0, len(data) - LENGTH + 1, LENGTH)]


def write_texts(path: Path) -> None:
    """One row for each piece of the manual, with its topic."""
    rows = [(topic, piece) for topic, text in sorted(topics.items()) for piece in windows(text)]
    topic, tokens = zip(*rows, strict=True)
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"topic": topic, "tokens": pa.array(tokens, pa.list_(pa.uint8()))}), path)


def write_base(folder: Path, steps: int = 150) -> None:
    """Train the model and save it."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
        )
    )
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    pieces = torch.tensor([piece for path in sources for piece in windows(path.read_text(errors="replace"))])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = pieces[torch.randint(len(pieces), (16,))]
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def write_digest(folder: Path, spec: Path) -> None:
    """Write into the pipeline what `sha256sum *.safetensors | sha256sum` prints in the folder."""
    files = sorted(folder.glob("*.safetensors"))
    listed = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    digest = hashlib.sha256(listed.encode()).hexdigest()
    spec.write_text(re.sub(r"digest: sha256:[0-9a-f]{64}", f"digest: sha256:{digest}", spec.read_text()))


if __name__ == "__main__":
    if not (HERE / "data" / "manual.parquet").exists():
        write_texts(HERE / "data" / "manual.parquet")
    if not (HERE / "base" / "model.safetensors").exists():
        write_base(HERE / "base")
    write_digest(HERE / "base", HERE / "pipeline.yaml")
