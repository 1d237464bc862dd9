"""The files of an export run elsewhere, and hold neither rows nor paths nor source lines."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.support import portables
from tests.unit.training.export.test_tracing import LABEL, ROOT, X, portable, rows_of
from training.export.files import ONNX, SAFETENSORS, TORCH, write_onnx, write_tensors, write_torch
from training.export.tracing import Untraceable, traced


@pytest.mark.parametrize("module", [portables.Plain, portables.Classes, portables.Tuples])
def test_an_onnx_file_has_the_names_and_the_values(module: Any, tmp_path: Path) -> None:
    one = portable(module())
    program, facts = traced(one, [*X, LABEL], ROOT)
    names = one.course.names
    example = {fact.name: torch.zeros(2, dtype=torch.float64) for fact in facts}
    write_onnx(program, example, one.course, tmp_path, 0)
    session = onnxruntime.InferenceSession(str(tmp_path / ONNX))
    assert [(given.name, given.type) for given in session.get_inputs()] == [(name, "tensor(double)") for name in "abc"]
    assert [made.name for made in session.get_outputs()] == names
    for rows in (1, 9):
        inputs = rows_of(facts, rows)
        with torch.no_grad():
            expected = one(inputs)
        made = session.run(names, {name: value.numpy() for name, value in inputs.items()})
        for name, value in zip(names, made, strict=True):
            np.testing.assert_allclose(value, expected[name].numpy(), atol=1e-5)
    assert_says_nothing((tmp_path / ONNX).read_bytes())


def test_a_torch_file_holds_no_row_no_path_and_no_source(tmp_path: Path) -> None:
    one = portable(portables.Plain())
    program, facts = traced(one, [*X, LABEL], ROOT)
    write_torch(program, tmp_path)
    with zipfile.ZipFile(tmp_path / TORCH) as archive:
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    assert members["data/sample_inputs/model.pt"] == b""
    for content in members.values():
        assert_says_nothing(content)
    inputs = rows_of(facts, 4)
    made = torch.export.load(tmp_path / TORCH).module()(inputs)
    torch.testing.assert_close(made["prediction"], one(inputs)["prediction"])


def assert_says_nothing(content: bytes) -> None:
    for word in (b"portables.py", b"site-packages", b"self.net(x", str(ROOT).encode()):
        assert word not in content


def test_an_operation_that_onnx_lacks_is_named_with_its_line(tmp_path: Path) -> None:
    one = portable(portables.Decomposed())
    program, facts = traced(one, [*X, LABEL], ROOT)
    with pytest.raises(Untraceable) as raised:
        write_onnx(program, {fact.name: torch.zeros(2) for fact in facts}, one.course, tmp_path, 0)
    message = raised.value.message
    assert message.startswith("ONNX has no form of the operation aten._linalg_svd in portables.py:")
    assert "return torch.linalg.svd(" in message
    assert raised.value.exit_code == 8
    assert not list(tmp_path.iterdir())


def test_tensors_that_are_tied_are_written_under_each_plain_name(tmp_path: Path) -> None:
    module = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    module["head"].weight = module["embed"].weight
    module["head"] = torch.compile(module["head"], backend="eager")
    module.register_buffer("mask", torch.tensor([float("-inf"), 0.0]))
    assert write_tensors(module, tmp_path) == (3, 32, ["head.weight"])
    read = load_file(tmp_path / SAFETENSORS)
    own = {name.replace("_orig_mod.", ""): value for name, value in module.state_dict().items()}
    assert {name: torch.equal(value, own[name]) for name, value in read.items()} == {
        "embed.weight": True,
        "head.weight": True,
        "mask": True,
    }
