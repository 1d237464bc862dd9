"""The form in which Arrow holds a column changes nothing: not its profile, its hashes, nor what a contract finds."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from data_contracts.arrow_rows import decoded, decoded_column
from data_contracts.profile.profile import Column
from data_contracts.profile.sketches import row_hashes
from tests.support.representations import ALL, IN_FILES, WIDE, columns, in_chunks

# What our readers may hand over.
PROFILED = [*(form for form in IN_FILES if form != "view"), "nulls in a dictionary", "slice of nulls in a dictionary"]
FEW = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("form", ALL)
@FEW
@given(values=columns())
def test_the_form_of_a_column_changes_nothing(form: str, values: pa.Array) -> None:
    held = ALL[form](values)
    assert decoded(held).cast(values.type).equals(values)
    assert decoded_column(in_chunks(ALL[form], values)).cast(values.type).combine_chunks().equals(values)
    assert row_hashes([held]).tolist() == row_hashes([values]).tolist()
    if form in PROFILED:
        assert _profile(held) == _profile(values)


def _profile(values: pa.Array) -> dict[str, object]:
    column = Column("x", values.type, sensitive=False, block=4)
    column.add(values)
    return column.record().model_dump(exclude={"type"})


def test_values_of_a_plain_type_stay_as_they_are() -> None:
    for kind in [*WIDE, *WIDE.values(), pa.null(), pa.list_(pa.int64())]:
        values = pa.nulls(2, kind)
        assert decoded(values) is values
    assert decoded_column(pa.chunked_array([], pa.dictionary(pa.int8(), pa.uuid()))).type == pa.binary(16)
