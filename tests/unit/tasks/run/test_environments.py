"""What a user's environment needs beside a rank's packages; tests/integration/test_environment.py builds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import SpecError
from infra.environments.packages import Packages
from tasks.run.spec_check import refuse_without_expectations


def test_expectations_of_ones_own_need_great_expectations_and_duckdb() -> None:
    both = Packages((), ("duckdb==2.0.0", "great-expectations==1.24.1"))
    refuse_without_expectations(both, Path("pipeline.yaml"))
    with pytest.raises(SpecError) as caught:
        refuse_without_expectations(Packages((), ("duckdb==2.0.0",)), Path("pipeline.yaml"))
    assert caught.value.message == (
        "pipeline.yaml: contract: a class_path runs in the spec's environment, which lacks great-expectations."
    )
