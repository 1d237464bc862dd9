"""First weights for a module: what fits, what is said of the rest, and what is refused before step 1."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from data_contracts.errors import UsageError
from training.fit.resume import WarmStart


class Net(L.LightningModule):
    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.base = nn.Linear(2, 3, device=device)
        self.adapter = nn.Linear(3, 1, device=device)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))


class AdapterOnly(Net):
    """Saves its adapter alone."""

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {name: tensor for name, tensor in super().state_dict(*args, **kwargs).items() if "adapter" in name}


class ExtraState(Net):
    def get_extra_state(self) -> dict[str, Any]:
        return {"steps": 3}

    def set_extra_state(self, state: Any) -> None:
        raise AssertionError("a training's own state is not for another")


def full(**changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    held = {
        "base.weight": torch.full((3, 2), 1.0),
        "base.bias": torch.full((3,), 2.0),
        "adapter.weight": torch.full((1, 3), 3.0),
        "adapter.bias": torch.full((1,), 4.0),
        "seen": torch.tensor([5]),
    }
    return {name: tensor for name, tensor in {**held, **changes}.items() if tensor is not None}


def begin(
    module: Net, folder: Path, strict: bool, *files: dict[str, torch.Tensor], convert: Any = lambda module: module
) -> WarmStart:
    folder.mkdir(exist_ok=True)
    for number, tensors in enumerate(files):
        save_file(tensors, folder / f"part-{number}.safetensors")
    said: list[str] = []
    warm = WarmStart(folder, strict, said.append)
    warm.install(module, convert)
    module.configure_model()
    assert said == [warm.sentence]
    return warm


def test_weights_of_double_precision_are_not_rounded(tmp_path: Path) -> None:
    module, weights = Net(), {name: value.double() / 3 for name, value in full(seen=None).items()}
    begin(module, tmp_path / "weights", True, {**weights, "seen": torch.tensor([5])}, convert=Net.double)
    assert all(torch.equal(module.state_dict()[name], value) for name, value in weights.items())


def test_all_of_a_module_from_two_files(tmp_path: Path) -> None:
    net, parts = ExtraState(), full()
    second = {"seen": parts.pop("seen")}
    assert begin(net, tmp_path / "w", True, parts, second).sentence == "5 tensors loaded"
    held = [net.base.weight, net.base.bias, net.adapter.weight, net.adapter.bias, net.seen]
    assert [tensor.flatten()[0].item() for tensor in held] == [1, 2, 3, 4, 5]


# what the file has, strict, what is said of it
REFUSED: list[tuple[dict[str, Any], bool, str]] = [
    (full(**{"base.weight": None, "seen": None}), True, "3 tensors loaded, 2 missing (base.weight, seen). With strict: "
     "false, the tensors that fit are loaded."),
    (full(more=torch.ones(1)), True, "5 tensors loaded, 1 unexpected (more). With strict: false, the tensors that fit "
    "are loaded."),
    (full(**{"base.bias": torch.ones(4)}), True, "4 tensors loaded, 1 of another shape or type (base.bias: float32 [4] "
     "for float32 [3]). With strict: false, the tensors that fit are loaded."),
    (full(seen=torch.ones(1)), True, "4 tensors loaded, 1 of another shape or type (seen: float32 [1] for int64 [1]). "
     "With strict: false, the tensors that fit are loaded."),
    ({"x": torch.ones(1)}, False, "0 tensors loaded, 5 missing (adapter.bias, adapter.weight, base.bias and 2 more), "
     "1 unexpected (x). No tensor in it fits; name other weights."),
]  # fmt: skip


@pytest.mark.parametrize(("held", "strict", "sentence"), REFUSED)
def test_what_does_not_fit_is_named_and_nothing_is_loaded(
    held: dict[str, torch.Tensor], strict: bool, sentence: str, tmp_path: Path
) -> None:
    net = Net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(UsageError) as caught:
        begin(net, tmp_path / "w", strict, held)
    assert str(caught.value) == f"train.init_from does not fit Net: {sentence}"
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("compiled", ["module", "file"])
def test_names_of_a_compiled_module_are_those_of_the_plain_one(compiled: str, tmp_path: Path) -> None:
    net: Any = Net()
    net.adapter = torch.compile(net.adapter, backend="eager") if compiled == "module" else net.adapter
    given = full() if compiled == "module" else {f"_orig_mod.{name}": value for name, value in full().items()}
    assert begin(net, tmp_path / "w", True, given).sentence == "5 tensors loaded"
    assert net.adapter.bias.item() == 4


def trainer_that_saves(names: list[str]) -> Any:
    state = {"state_dict": dict.fromkeys(names)}
    return SimpleNamespace(_checkpoint_connector=SimpleNamespace(dump_checkpoint=lambda weights_only: state))


def test_a_module_that_saves_its_adapters_begins_with_adapters_and_not_with_a_base_it_would_lose(
    tmp_path: Path,
) -> None:
    adapters = {name: tensor for name, tensor in full().items() if "adapter" in name}
    net = AdapterOnly()
    warm = begin(net, tmp_path / "adapters", True, adapters)
    assert warm.sentence == "2 tensors loaded"
    warm.on_train_start(trainer_that_saves(list(net.state_dict())), net)
    net = AdapterOnly()
    warm = begin(net, tmp_path / "base", False, full(**{"adapter.weight": None, "adapter.bias": None}))
    with pytest.raises(UsageError, match=r"gives the module 3 tensors \(base\.bias, base\.weight, seen\), which its"):
        warm.on_train_start(trainer_that_saves(list(net.state_dict())), net)


class Holder(L.LightningModule):
    """Holds a library's model; its layers may be adapted as peft does it."""

    def __init__(self, *, adapted: bool, twice: bool = False) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"encoder": nn.Linear(2, 3), "head": nn.Linear(3, 2, bias=False)})
        if twice:
            self.other = nn.ModuleDict({"encoder": nn.Linear(2, 3), "head": nn.Linear(3, 2, bias=False)})
        if adapted:
            parts = {"base_layer": self.model["encoder"], "lora_A": nn.Linear(2, 1, bias=False)}
            self.model["encoder"] = nn.ModuleDict(parts)


OF_A_LIBRARY = {
    "encoder.weight": torch.full((3, 2), 1.0),
    "encoder.bias": torch.full((3,), 2.0),
    "head.weight": torch.full((2, 3), 3.0),
}


def test_a_librarys_model_is_an_attribute_of_the_module(tmp_path: Path) -> None:
    module: Any = Holder(adapted=False)
    assert begin(module, tmp_path / "w", True, OF_A_LIBRARY).sentence == "3 tensors loaded"
    assert [one.flatten()[0].item() for one in module.parameters()] == [1, 2, 3]


def test_layers_that_peft_adapts_get_the_weights_of_the_layers_themselves(tmp_path: Path) -> None:
    module: Any = Holder(adapted=True)
    first = module.model["encoder"]["lora_A"].weight.clone()
    sentence = "3 tensors loaded, 1 missing (model.encoder.lora_A.weight)"
    assert begin(module, tmp_path / "w", False, OF_A_LIBRARY).sentence == sentence
    base = module.model["encoder"]["base_layer"]
    held = [base.weight, base.bias, module.model["head"].weight]
    assert [tensor.flatten()[0].item() for tensor in held] == [1, 2, 3]
    assert module.model["encoder"]["lora_A"].weight.equal(first)


def test_a_parameter_with_two_names_is_given_under_one(tmp_path: Path) -> None:
    module: Any = Holder(adapted=False)
    module.model["head"].weight = module.model["encoder"].weight = nn.Parameter(torch.zeros(3, 2))
    given = {name: tensor for name, tensor in OF_A_LIBRARY.items() if "head" not in name}
    assert begin(module, tmp_path / "w", True, given).sentence == "2 tensors loaded"
    assert module.model["head"].weight[0, 0].item() == 1


@pytest.mark.parametrize(
    ("module", "strict", "files", "sentence"),
    [
        (Net("meta"), True, [full()], r"base\.weight|adapter\.bias: given to a module on the meta device"),
        (Net(), True, [full(), {"seen": torch.ones(1)}], r"seen is in part-1\.safetensors and in another file"),
        # One of two models that fit equally well is not chosen.
        (Holder(adapted=False, twice=True), False, [OF_A_LIBRARY], "0 tensors loaded"),
    ],
    ids=["on the meta device", "one name in two files", "two models"],
)
def test_what_gives_no_weights_or_two_is_refused(
    module: Any, strict: bool, files: list[dict[str, torch.Tensor]], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=sentence):
        begin(module, tmp_path / "w", strict, *files)
