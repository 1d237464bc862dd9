"""The lines of a page: three, whatever the columns are called and hold."""

from __future__ import annotations

import ast
import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.messages.commands import Exported, TensorFacts
from tasks.export import lines_for, quoted
from training.formats.schema import tensor_field


def exported(*facts: TensorFacts) -> Exported:
    return Exported(files=[], tensors=0, parameters=0, inputs=list(facts))


def fact(name: str, dtype: str, column: str) -> TensorFacts:
    return TensorFacts(name=name, dtype=dtype, shape=["rows"], column=column)


@pytest.mark.parametrize("kind", ["torch", "onnx", "mlflow"])
@pytest.mark.parametrize(
    "name", ["a", "sepal length (cm)", "it's", 'a "b"', "a\nb", "`", "{name}", "{value}", "ü", "🙂", "\\", "```\n"]
)
def test_three_lines_of_python_for_any_name(kind: str, name: str) -> None:
    lines = lines_for(kind, exported(fact(name, "float64", "float64"), fact("b", "int64", "int64")))
    assert len(lines) == 3
    assert all(line.isascii() and "`" not in line and line.isprintable() for line in lines)
    assert name in [node.value for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.Constant)]
    assert ast.literal_eval(quoted(name)) == name


def test_each_type_of_column_is_read_as_the_graph_takes_it(tmp_path: Path) -> None:
    """The middle of the lines runs on a real file; only the model is replaced."""
    day = datetime.date(1970, 1, 3)
    columns: dict[str, tuple[pa.Field, list[Any], str, str, Any]] = {
        "number": (pa.field("number", pa.float64()), [1.5, None], "float64", "float64", [1.5, float("nan")]),
        "whole": (pa.field("whole", pa.uint8()), [1, 2], "uint8", "uint8", [1, 2]),
        "flag": (pa.field("flag", pa.bool_()), [True, False], "bool", "bool", [True, False]),
        "day": (pa.field("day", pa.date32()), [day, day], "int32", "date32", [2, 2]),
        "time": (pa.field("time", pa.timestamp("us")), [0, 7], "int64", "timestamp[us]", [0, 7]),
        "price": (pa.field("price", pa.decimal128(9, 2)), [Decimal("1.25"), Decimal(2)], "float64", "decimal(9,2)",
                  [1.25, 2.0]),
        "image": (tensor_field("image", "uint8", (2, 2)), [b"\1\2\3\4", b"\5\6\7\x08"], "uint8", "tensor<uint8>[2,2]",
                  [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
    }  # fmt: skip
    schema = pa.schema([field for field, *_ in columns.values()])
    rows = {name: values for name, (_, values, *_) in columns.items()}
    pq.write_table(pa.table(rows, schema=schema), tmp_path / "rows.parquet")
    lines = lines_for("onnx", exported(*(fact(name, one[2], one[3]) for name, one in columns.items())))
    call = lines[2].partition("run(None, ")[2].removesuffix(")")
    found: dict[str, Any] = {}
    code = lines[0].replace("onnxruntime, ", "").replace(", onnxruntime", "") + "\n" + lines[1] + f"\nfound = {call}"
    exec(code.replace("rows.parquet", str(tmp_path / "rows.parquet")), found)
    for name, (_, _, dtype, _, wanted) in columns.items():
        value = found["found"][name]
        assert value.dtype == np.dtype(dtype), name
        np.testing.assert_array_equal(value, wanted)


def test_inputs_that_are_not_columns_are_read_from_an_archive() -> None:
    assert lines_for("torch", exported(fact("input_0", "float32", ""))) == [
        "import numpy, torch",
        'rows = numpy.load("inputs.npz")',
        'with torch.no_grad(): outputs = torch.export.load("model.pt2").module()'
        "({'input_0': torch.tensor(rows['input_0'])})",
    ]
