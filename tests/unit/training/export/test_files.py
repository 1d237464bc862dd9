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

from data_contracts.errors import UserCodeError
from tests.support import portables
from tests.unit.training.export.test_tracing import LABEL, ROOT, X, portable, rows_of
from training.export.portable import Untraceable, traced
from training.export.worker import (
    ONNX,
    SAFETENSORS,
    TORCH,
    pretrained_in,
    write_onnx,
    write_pretrained,
    write_tensors,
    write_torch,
)


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


def test_an_operation_that_onnx_lacks_is_named(tmp_path: Path) -> None:
    one = portable(portables.Decomposed())
    program, facts = traced(one, [*X, LABEL], ROOT)
    with pytest.raises(Untraceable) as raised:
        write_onnx(program, {fact.name: torch.zeros(2) for fact in facts}, one.course, tmp_path, 0)
    message = raised.value.message
    assert message.startswith("ONNX has no form of the operation aten._linalg_svd.")
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


class Library(nn.Module):
    """As models of transformers are: it writes and reads folders of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def save_pretrained(self, folder: Path) -> None:
        torch.save(self.state_dict(), Path(folder) / "of-the-library")

    @classmethod
    def from_pretrained(cls, folder: Path) -> Library:
        model = cls()
        model.load_state_dict(torch.load(Path(folder) / "of-the-library"))
        return model


class Forgetful(Library):
    @classmethod
    def from_pretrained(cls, folder: Path) -> Library:
        return cls()


class Adapted(nn.Module):
    """As peft's: what it saves are adapters, unless they are merged."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.adapter = model, nn.Parameter(torch.ones(()))

    def save_pretrained(self, folder: Path) -> None:
        raise AssertionError("only the adapters")

    def merge_and_unload(self) -> nn.Module:
        with torch.no_grad():
            self.model.layer.weight += self.adapter
        return self.model


@pytest.mark.parametrize("adapted", [False, True])
def test_a_librarys_model_is_written_for_its_own_from_pretrained(adapted: bool, tmp_path: Path) -> None:
    model = Library()
    weight = model.layer.weight.detach().clone()
    module = nn.Sequential(Adapted(model) if adapted else model)
    written = write_pretrained(pretrained_in(module), tmp_path)
    assert (written.files, written.tensors, written.parameters) == (["of-the-library"], 2, 6)
    assert written.pretrained == f"{__name__.partition('.')[0]}.Library"
    assert Library.from_pretrained(tmp_path).layer.weight.equal(weight + 1 if adapted else weight)


def test_a_module_with_more_than_the_librarys_model_is_not_written_by_the_library() -> None:
    assert pretrained_in(nn.Sequential(Library(), nn.Linear(1, 1))) is None
    assert pretrained_in(nn.Linear(1, 1)) is None


def test_what_from_pretrained_makes_is_compared(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"^Forgetful\.from_pretrained makes another layer\.(weight|bias)"):
        write_pretrained(Forgetful(), tmp_path)
