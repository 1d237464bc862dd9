"""Writes the files of an export: tensors, a torch.export program or an ONNX model.

None holds a row of the data, a path of this machine or a line of the user's source.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from data_contracts.errors import UserCodeError
from data_contracts.messages.commands import Exported
from data_contracts.quoting import describe
from infra.records.handoffs import plain_name
from training.export.portable import Course
from training.export.tracing import Untraceable

SAFETENSORS, TORCH, ONNX = "model.safetensors", "model.pt2", "model.onnx"
# A protobuf message may have 2 GiB; the graph needs some of it.
_INSIDE_BYTES = 2**30
# Metadata of nodes that quote the user's source and its path on this machine.
_QUOTES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")


def write_tensors(module: nn.Module, folder: Path) -> tuple[int, int, list[str]]:
    """Write the parameters and buffers; returns their number, that of their values, and the names of tied tensors."""
    from safetensors.torch import save_file  # an environment of the user's may have none

    tensors: dict[str, Tensor] = {}
    seen: set[tuple[Any, ...]] = set()
    tied = []
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            continue
        place = (value.data_ptr(), value.storage_offset(), value.shape)
        if value.numel() and place in seen:
            tied.append(plain_name(name))
        seen.add(place)
        # A copy each: safetensors refuses tensors that share their memory.
        tensors[plain_name(name)] = value.detach().cpu().clone().contiguous()
    save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})
    return len(tensors), sum(tensor.numel() for tensor in tensors.values()), tied


def pretrained_in(module: nn.Module) -> Any:
    """The library's model that a module holds, if it has a `save_pretrained` and all tensors of the module; else None.

    The models of transformers, diffusers and timm have one, and those that peft wraps.
    """
    model = next((part for part in module.modules() if hasattr(part, "save_pretrained")), None)
    own = {id(value) for value in (*model.parameters(), *model.buffers())} if model is not None else set()
    return model if all(id(value) in own for value in (*module.parameters(), *module.buffers())) else None


def write_pretrained(model: Any, folder: Path) -> Exported:
    """Write what the model's own `from_pretrained` loads; adapters of peft are merged into the weights first.

    Raises: UserCodeError if `from_pretrained` makes other tensors of the folder.
    """
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    model.save_pretrained(folder)
    loaded, state = type(model).from_pretrained(folder).state_dict(), model.state_dict()
    other = [name for name, value in state.items() if name not in loaded or not torch.equal(loaded[name].cpu(), value)]
    if other or len(loaded) != len(state):
        name = other[0] if other else next(name for name in loaded if name not in state)
        raise UserCodeError(
            f"{type(model).__name__}.from_pretrained makes another {name} of what its save_pretrained wrote.",
            remedy="Use versions of the library in which it does not, or `--to safetensors`.",
        )
    return Exported(
        files=sorted(path.name for path in folder.iterdir()),
        tensors=len(state),
        parameters=sum(value.numel() for value in state.values()),
        pretrained=f"{type(model).__module__.partition('.')[0]}.{type(model).__name__}",
    )


def write_torch(program: ExportedProgram, folder: Path) -> None:
    """Write `model.pt2`, without the inputs of the trace."""
    for node in program.graph.nodes:
        for quoted in _QUOTES:
            node.meta.pop(quoted, None)
    program.example_inputs = None
    torch.export.save(program, folder / TORCH)


def write_onnx(
    program: ExportedProgram,
    example: dict[str, Tensor],
    course: Course,
    folder: Path,
    num_bytes: int,
) -> None:
    """Write `model.onnx`, and `model.onnx.data` beside it if the tensors have more than 1 GiB.

    Args:
        course: of the trace: it has the names of the outputs.
        num_bytes: of the module's tensors.

    Raises: Untraceable if ONNX has no form of an operation.
    """
    import onnx  # an environment of the user's may have none

    try:
        made: Any = torch.onnx.export(
            program,
            (example,),
            dynamo=True,
            input_names=list(example),
            output_names=course.names,
            verbose=False,
            optimize=True,
        )
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        raise _unconverted(error, course.places) from error
    for graph in (made.model.graph, *(function.graph for function in made.model.functions.values())):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
    path = folder / ONNX
    made.save(path, external_data=num_bytes > _INSIDE_BYTES)
    onnx.checker.check_model(str(path))


def _unconverted(error: Exception, places: Mapping[str, str]) -> UserCodeError:
    print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)
    # Searched, never shown.
    text = "".join(traceback.format_exception_only(error))
    operation = re.search(r"OpOverload\(op='([\w.]+)'", text) or re.search(r"torch\.ops\.([\w.]+)", text)
    if operation is None:
        return Untraceable(f"The ONNX exporter failed: {describe(error)}.", remedy="Export it with --to torch.")
    name = operation[1]
    # A decomposition's name begins with an underscore; torch.linalg.svd is aten.linalg_svd.
    bare = name.rpartition(".")[2].lstrip("_")
    place = next((place for called, place in places.items() if called.replace(".", "_").endswith(bare)), "")
    return Untraceable(f"ONNX has no form of the operation {name}{place}.", remedy="Export it with --to torch.")
