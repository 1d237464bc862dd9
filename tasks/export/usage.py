"""The lines of a page that run an exported model without Trainwright, on a Parquet file with the dataset's columns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from data_contracts.messages.commands import Exported, TensorFacts

_TENSOR = re.compile(r"tensor<(\w+)>\[([\d,]+)\]")
_TIMES = ("timestamp", "duration", "time32", "time64", "date32", "decimal")
# What the file with the rows is called in the lines.
ROWS, ARRAYS = "rows.parquet", "inputs.npz"
# The library that runs each kind of file, and the line that calls it with `{inputs}`.
_CALLS = {
    "torch": ("torch", 'with torch.no_grad(): outputs = torch.export.load("model.pt2").module()({inputs})'),
    "onnx": ("onnxruntime", 'outputs = onnxruntime.InferenceSession("model.onnx").run(None, {inputs})'),
    "mlflow": ("mlflow", 'outputs = mlflow.pyfunc.load_model(".").predict({inputs})'),
}


def lines_for(kind: str, exported: Exported) -> list[str]:
    """The three lines: imports, the rows, the outputs."""
    library, call = _CALLS[kind]
    columns = from_columns(exported)
    source = f'pyarrow.parquet.read_table("{ROWS}")' if columns else f'numpy.load("{ARRAYS}")'
    inputs = _inputs(exported.inputs, "torch.tensor({value})" if kind == "torch" else "{value}")
    used = ["numpy"] if "numpy." in inputs + source else []
    modules = sorted([library, *used, *(["pyarrow.parquet"] if columns else [])])
    return [f"import {', '.join(modules)}", f"rows = {source}", call.replace("{inputs}", inputs)]


def from_columns(exported: Exported) -> bool:
    """Whether the inputs are columns of the dataset, so that a Parquet file can be read for them."""
    return all(one.column for one in exported.inputs)


def _inputs(facts: Sequence[TensorFacts], wrapped: str) -> str:
    """The dictionary of inputs as an expression: one comprehension if all are read alike, else one entry each."""
    forms = [wrapped.replace("{value}", _form(one)) for one in facts]
    if len(set(forms)) == 1 and len(forms) > 1:
        names = ", ".join(quoted(one.name) for one in facts)
        return f"{{name: {forms[0].replace('{name}', 'name')} for name in [{names}]}}"
    pairs = [(quoted(one.name), form) for one, form in zip(facts, forms, strict=True)]
    return f"{{{', '.join(f'{name}: ' + form.replace('{name}', name) for name, form in pairs)}}}"


def _form(one: TensorFacts) -> str:
    """How an input is read from `rows`, with `{name}` where its name stands."""
    tensor = _TENSOR.fullmatch(one.column)
    if tensor is not None:
        return f'numpy.frombuffer(b"".join(rows[{{name}}].to_pylist()), "{tensor[1]}").reshape(-1, {tensor[2]})'
    if one.column.startswith(_TIMES):
        return f'rows[{{name}}].cast("{one.dtype}").to_numpy()'
    return "rows[{name}].to_numpy()" if one.column else "rows[{name}]"


def quoted(name: str) -> str:
    """A name as a literal of Python's, on one line and without a backtick, which could end the page's block."""
    return ascii(name).replace("`", "\\x60")
