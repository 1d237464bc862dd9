"""A checkpoint's form: written by any number of ranks, read whole or in part by one process, and by other tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as in_one_piece
from torch import nn

from data_contracts.errors import CorruptError, UsageError
from infra.store import Store
from tests.support.refusals import refusal
from training.checkpoint import UnsupportedState, files, load_module_weights, read_tensors
from training.checkpoint.files import DTYPES, INDEX, Entry, TensorReader, TensorSlice, file_chunks, read_state
from training.checkpoint.saver import (
    Capture,
    CheckpointTarget,
    Staging,
    capture,
    capture_rng,
    merge,
    read_history,
    read_rank_state,
    save,
)


class Net(nn.Module):
    def __init__(self, width: int = 3, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inlet = nn.Linear(2, width, dtype=dtype)
        self.outlet = nn.Linear(2, width, dtype=dtype)
        self.outlet.weight = self.inlet.weight
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))


def state_of(module: nn.Module) -> dict[str, Any]:
    """What Lightning's checkpoint looks like, in small."""
    optimizer = torch.optim.Adam(module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {
        "state_dict": module.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "callbacks": {
            "Early{'monitor': 'x'}": {"best": torch.tensor(0.5), "seen": {1, 2}, "limits": (1, float("inf"))}
        },
        "loops": {"counts": {1: 2}},
        "hyper_parameters": {"anything": object()},
    }


@pytest.fixture
def stored(store: Store, tmp_path: Path) -> Callable[..., Path]:
    """Captures, saves and seals a checkpoint of one rank; gives its folder."""

    def write(
        checkpoint: dict[str, Any],
        own: dict[str, Any] | None = None,
        sealed: dict[str, Any] | None = None,
    ) -> Path:
        place = CheckpointTarget(store, "trainings/t-0/checkpoints/1-g0", {"step": 1}, {}, sealed or {}, tmp_path)
        ref = save(place, capture(checkpoint, own or {}, 0), 1, [{"step": 1, "loss": 0.1}])
        assert store.verify(ref).kind == "checkpoint"
        return store.local(ref)

    return write


def test_what_is_saved_comes_back(stored: Callable[..., Path]) -> None:
    module = Net()
    checkpoint = state_of(module)
    own = {"rng": capture_rng(), "running": {"mean": torch.tensor(1.5)}}
    folder = stored(checkpoint, own)
    with TensorReader(folder) as reader:
        back = read_state(folder, reader.read)
    assert "hyper_parameters" not in back
    assert back["loops"] == checkpoint["loops"]
    assert back["callbacks"]["Early{'monitor': 'x'}"] == checkpoint["callbacks"]["Early{'monitor': 'x'}"]
    for name, tensor in checkpoint["state_dict"].items():
        assert torch.equal(back["state_dict"][name], tensor), name
    fresh = Net()
    optimizer = torch.optim.Adam(fresh.parameters())
    optimizer.load_state_dict(back["optimizer_states"][0])
    for number, state in checkpoint["optimizer_states"][0]["state"].items():
        for name, tensor in state.items():
            assert torch.equal(back["optimizer_states"][0]["state"][number][name], tensor)
    assert read_rank_state(folder, 0)["running"]["mean"] == 1.5
    assert read_rank_state(folder, 1) is None
    assert read_history(folder) == [{"step": 1, "loss": 0.1}]


def test_weights_are_plain_safetensors_under_their_own_names_and_tied_ones_stored_once(
    stored: Callable[..., Path],
) -> None:
    module = Net()
    folder = stored(state_of(module))
    found = load_file(folder / "weights-0.safetensors")
    assert set(found) == {"inlet.weight", "inlet.bias", "outlet.bias", "mask"}
    assert torch.equal(found["inlet.weight"], module.inlet.weight)
    assert torch.equal(dict(read_tensors(folder))["state_dict/outlet.weight"], module.inlet.weight)


def test_what_a_module_is_rebuilt_from_is_sealed_in_its_own_order(stored: Callable[..., Path]) -> None:
    told = {"train": {"b": 1, "a": {"d": [1.5], "c": None}}, "code_digest": "x", "dataset_id": None}
    folder = stored({}, sealed=told)
    assert (folder / "train.json").read_text() == json.dumps(told, separators=(",", ":"))


def test_temporaries_that_take_each_others_place_stay_apart() -> None:
    # None is contiguous, so each is copied before it is stored.
    arrays = {f"n{at}": np.full((64, 2), at, np.float32).T for at in range(20)}
    taken = capture({"extra": arrays}, {}, 0)
    held = taken.files["state-0.safetensors"]
    assert [float(held[f"extra/n{at}"][0, 0]) for at in range(20)] == list(range(20))


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(
    "value",
    [{"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}}, {1: torch.zeros(1), "1": torch.ones(1)}],
    ids=["a path", "a number"],
)
def test_two_tensors_of_one_name_are_refused(value: dict[Any, Any], dry: bool) -> None:
    with pytest.raises(UnsupportedState, match="second tensor of that name"):
        capture({"extra": value}, {}, 0, dry=dry)


def test_what_ranks_hold_whole_is_what_rank_0_holds() -> None:
    parts = [
        capture({"logged": {"both": torch.zeros(1)}}, {"mine": torch.zeros(2)}, 0),
        capture({"logged": {"both": torch.zeros(3), "here": torch.zeros(1)}}, {"mine": torch.zeros(4)}, 1),
    ]
    found = merge([part.entries for part in parts]).tensors
    assert {name: entry.shape for name, entry in found.items()} == {
        "logged/both": (1,),
        "ranks/0/mine": (2,),
        "ranks/1/mine": (4,),
    }


def test_parts_that_make_up_no_tensor_are_never_sealed() -> None:
    taken = Capture(0)
    piece = TensorSlice(file="weights-0.safetensors", key="w", offset=(0,), shape=(2,))
    taken.entries["state_dict/w"] = Entry(shape=(4,), dtype="float32", sharded=True, slices=[piece])
    with pytest.raises(UsageError, match="tensor state_dict/w is not made up by its pieces"):
        merge([taken.entries, {}])


@pytest.mark.parametrize(
    ("value", "path", "kind"),
    [
        (torch.zeros(2, 2).to_sparse(), "extra/0", "sparse_coo float32 tensor"),
        (torch.zeros(2, dtype=torch.complex128), "extra/0", "strided complex128 tensor"),
        (torch.zeros(2, device="meta"), "extra/0", "meta tensor"),
        (object(), "extra/0", "object"),
    ],
)
def test_what_cannot_be_held_is_named_in_a_dry_run(value: Any, path: str, kind: str) -> None:
    with pytest.raises(UnsupportedState) as caught:
        capture({"extra": [value]}, {}, 0, dry=True)
    assert (caught.value.path, caught.value.kind) == (path, kind)


@pytest.mark.parametrize("then", [True, False])
def test_a_module_takes_the_weights_of_one_that_was_compiled_otherwise(then: bool, stored: Callable[..., Path]) -> None:
    modules: list[Any] = [Net(), Net()]
    modules[not then].inlet = torch.compile(modules[not then].inlet, backend="eager")
    assert load_module_weights(modules[1], stored(state_of(modules[0]))) == 5
    assert torch.equal(modules[1].inlet.weight, modules[0].inlet.weight)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (Net(width=4), "inlet.bias is float32 [3], the module's float32 [4]"),
        (Net(dtype=torch.float64), "inlet.bias is float32 [3], the module's float64 [3]"),
        (nn.Linear(2, 2), "it has no bias (and 1 more)"),
        (nn.Sequential(), "the module has no inlet.bias (and 4 more)"),
    ],
    ids=["shape", "dtype", "missing", "extra"],
)
def test_a_module_that_does_not_fit_is_refused(module: nn.Module, sentence: str, stored: Callable[..., Path]) -> None:
    folder = stored(state_of(Net()))
    with pytest.raises(CorruptError) as caught:
        load_module_weights(module, folder)
    assert caught.value.message == f"The checkpoint 1-g0 does not fit {type(module).__name__}: {sentence}."


def sharded(folder: Path, whole: torch.Tensor, parts: int) -> None:
    """The files of a tensor whose rows lie on several ranks, unevenly, some with none."""
    captures = []
    bounds = [min(len(whole), at * -(-len(whole) // parts)) for at in range(parts + 1)]
    for rank in range(parts):
        taken = Capture(rank)
        start, stop = bounds[rank], bounds[rank + 1]
        piece = TensorSlice(
            file=f"weights-{rank}.safetensors", key="w", offset=(start, 0), shape=(stop - start, whole.shape[1])
        )
        if stop > start:
            taken.files[piece.file] = {"w": whole[start:stop].clone()}
            (folder / piece.file).write_bytes(b"".join(file_chunks(taken.files[piece.file])))
        taken.entries["state_dict/w"] = Entry(
            shape=tuple(whole.shape), dtype="float32", sharded=True, slices=[piece] if stop > start else []
        )
        captures.append(taken.entries)
    (folder / INDEX).write_text(json.dumps(merge(captures).to_json()))


def cut(folder: Path, whole: torch.Tensor, parts: int) -> dict[str, Any]:
    """The same, with an index that says how the tensor is cut."""
    sharded(folder, whole, parts)
    index = json.loads((folder / INDEX).read_text())
    how = {"file": "weights-", "key": "w", "dimension": 0, "parts": parts}
    index["tensors"]["state_dict/w"] |= {"pieces": [], "cut": how}
    (folder / INDEX).write_text(json.dumps(index))
    return index


@pytest.mark.parametrize("write", [sharded, cut])
@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_a_sharded_tensor_is_read_whole_and_in_any_part(
    parts: int, write: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_OPEN", 2)
    whole = torch.arange(20.0).reshape(5, 4)
    write(tmp_path, whole, parts)
    with TensorReader(tmp_path) as reader:
        assert torch.equal(reader.read("state_dict/w"), whole)
        for start in range(5):
            for rows in range(1, 6 - start):
                part = reader.read_part("state_dict/w", (start, 1), (rows, 2))
                assert torch.equal(part, whole[start : start + rows, 1:3])


def lie(index: dict[str, Any], **changes: Any) -> dict[str, Any]:
    entry = index["tensors"]["state_dict/w"]
    return {**index, "tensors": {"state_dict/w": {**entry, **changes}}}


def piece_with(index: dict[str, Any], **changes: Any) -> dict[str, Any]:
    pieces = index["tensors"]["state_dict/w"]["pieces"]
    return lie(index, pieces=[{**pieces[0], **changes}, *pieces[1:]])


CUT_LIES: list[tuple[dict[str, Any], str]] = [
    ({"file": "../weights-"}, "which are not files of a checkpoint"),
    ({"file": "index"}, "which are not files of a checkpoint"),
    ({"file": "weights-1"}, "which are not files of a checkpoint"),
    ({"dimension": 2}, "is cut as no tensor is"),
    ({"dimension": -1}, "is cut as no tensor is"),
    ({"parts": 0}, "is cut as no tensor is"),
    ({"parts": 2**40}, "is cut as no tensor is"),
    ({"parts": 2}, "but the index says"),
    ({"dimension": 1}, "but the index says"),
    ({"key": "v"}, "cannot be read"),
]


@pytest.mark.parametrize(("changes", "said"), CUT_LIES)
def test_a_cut_that_is_not_the_files_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    index = cut(tmp_path, torch.arange(20.0).reshape(5, 4), 3)
    index["tensors"]["state_dict/w"]["cut"] |= changes
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert said in refusal(CorruptError, lambda: dict(read_tensors(tmp_path)))


PIECE = {"file": "weights-0.safetensors", "key": "w", "offset": [0, 0], "shape": [2, 4]}
CUT = {"file": "weights-", "key": "w", "dimension": 0, "parts": 3}
SECOND: list[tuple[dict[str, Any], str]] = [
    ({"shape": [2, 4], "pieces": [PIECE]}, "w in weights-0.safetensors is a part of another tensor"),
    ({"shape": [6, 4], "pieces": [], "cut": CUT}, "has a piece of another tensor"),
    ({"shape": [5, 4], "pieces": [PIECE], "cut": CUT}, "has pieces, and is cut"),
]


@pytest.mark.parametrize(("second", "said"), SECOND)
def test_a_second_tensor_claims_no_bytes_of_a_cut_one(second: dict[str, Any], said: str, tmp_path: Path) -> None:
    index = cut(tmp_path, torch.arange(20.0).reshape(5, 4), 3)
    index["tensors"]["state_dict/x"] = {"dtype": "float32", "sharded": True, **second}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert said in refusal(CorruptError, lambda: dict(read_tensors(tmp_path)))


LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a file elsewhere": (
        lambda i: piece_with(i, file="../weights-0.safetensors"),
        "which is not a file of a checkpoint",
    ),
    "an absolute file": (lambda i: piece_with(i, file="/etc/passwd"), "which is not a file of a checkpoint"),
    "no such file": (lambda i: piece_with(i, file="weights-9.safetensors"), "cannot be read"),
    "no such key": (lambda i: piece_with(i, key="other"), "cannot be read"),
    "larger than it is": (lambda i: lie(i, shape=[6, 4]), "is not made up by its pieces"),
    "a piece outside": (lambda i: piece_with(i, offset=[4, 0]), "has a piece outside of it"),
    "a negative offset": (lambda i: piece_with(i, offset=[-1, 0]), "has a piece outside of it"),
    "other dimensions": (lambda i: piece_with(i, offset=[0], shape=[12]), "another number of dimensions"),
    "overlapping": (lambda i: piece_with(i, offset=[1, 0]), "has pieces that overlap"),
    "one piece many times": (
        lambda i: lie(
            i,
            shape=[3000, 4],
            pieces=[{**i["tensors"]["state_dict/w"]["pieces"][0], "offset": [at, 0]} for at in range(0, 3000, 3)],
        ),
        "tensor state_dict/w has a piece twice",
    ),
    "one piece in two tensors": (
        lambda i: {
            **i,
            "tensors": {
                **i["tensors"],
                "state_dict/x": {
                    **i["tensors"]["state_dict/w"],
                    "shape": [3, 4],
                    "pieces": i["tensors"]["state_dict/w"]["pieces"][:1],
                },
            },
        },
        "tensor state_dict/x has a piece of another tensor",
    ),
    "another shape in the file": (
        lambda i: lie(i, shape=[4, 5], pieces=[{**i["tensors"]["state_dict/w"]["pieces"][0], "shape": [4, 5]}]),
        "but the index says",
    ),
    "another dtype": (lambda i: lie(i, dtype="int32"), "but the index says int32"),
    "no dtype": (lambda i: lie(i, dtype="nn"), "has the unknown dtype nn"),
    "a bomb": (
        lambda i: lie(
            i, shape=[10**9, 10**9], pieces=[{**i["tensors"]["state_dict/w"]["pieces"][0], "shape": [10**9, 10**9]}]
        ),
        "but the index says",
    ),
    "no index": (lambda i: [], "cannot be read"),
    "an unknown field": (lambda i: lie(i, code="x"), "cannot be read"),
}


@pytest.mark.parametrize(("change", "sentence"), LIES.values(), ids=LIES)
def test_an_index_that_lies_is_refused(change: Callable[[dict[str, Any]], Any], sentence: str, tmp_path: Path) -> None:
    sharded(tmp_path, torch.arange(20.0).reshape(5, 4), 2)
    index = json.loads((tmp_path / INDEX).read_text())
    (tmp_path / INDEX).write_text(json.dumps(change(index)))
    with pytest.raises(CorruptError, match=sentence):
        dict(read_tensors(tmp_path))


def test_tied_tensors_are_read_once_and_a_state_has_each_of_its_tensors_once(tmp_path: Path) -> None:
    whole = torch.arange(20.0).reshape(5, 4)
    sharded(tmp_path, whole, 2)
    index = json.loads((tmp_path / INDEX).read_text())
    names = [f"state_dict/w{number}" for number in range(1000)]
    tied = dict.fromkeys(names, index["tensors"]["state_dict/w"])
    (tmp_path / INDEX).write_text(json.dumps({**index, "tensors": tied}))
    (tmp_path / "state.json").write_text(json.dumps({name: {"$": "tensor", "value": name} for name in names}))
    with TensorReader(tmp_path) as reader:
        found = read_state(tmp_path, reader.read)
    assert all(torch.equal(one, whole) for one in found.values())
    assert len({one.data_ptr() for one in found.values()}) == 1
    (tmp_path / "state.json").write_text(json.dumps({"a": [{"$": "tensor", "value": names[0]}] * 2}))
    with TensorReader(tmp_path) as reader, pytest.raises(CorruptError, match="the tensor state_dict/w0 stands twice"):
        read_state(tmp_path, reader.read)


def test_a_file_has_the_bytes_that_the_library_writes() -> None:
    tensors = {f"{dtype}": torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES}
    tensors |= {f"again {dtype}": torch.ones(1).to(dtype) for dtype in DTYPES}
    tensors |= {'a name, "quoted" ü': torch.tensor(0.5), "large": torch.rand(3_000_001)}
    pieces = list(file_chunks(tensors))
    assert len(pieces) > len(tensors)
    assert b"".join(pieces) == in_one_piece(tensors)


def test_a_capture_takes_the_memory_of_the_one_before() -> None:
    staging, weight = Staging(), torch.ones(4)
    first = capture({"w": weight, "n": torch.tensor(1)}, {}, 0, staging=staging)
    weight += 1
    assert first.files["state-0.safetensors"]["w"].tolist() == [1.0] * 4, "training goes on without it"
    second = capture({"w": weight, "n": torch.tensor([1, 2])}, {}, 0, staging=staging)
    [one], [two] = first.files.values(), second.files.values()
    assert one["w"].data_ptr() == two["w"].data_ptr()
    assert (two["w"].tolist(), two["n"].tolist()) == ([2.0] * 4, [1, 2])
    fresh = capture({"w": weight}, {}, 0)
    assert fresh.files["state-0.safetensors"]["w"].data_ptr() != two["w"].data_ptr()
