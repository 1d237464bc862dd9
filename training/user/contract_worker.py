"""Check rows against a suite that names expectations of the user's own, in a child that may import their code.

Run as `python -m training.user.contract_worker REQUEST ANSWER`. Torch-free.
"""

from __future__ import annotations

from pathlib import Path

from data_contracts.contract.great_expectations_engine import (
    Classes,
    base_class,
    catalogue_kept,
    load_great_expectations,
    why_unusable,
)
from data_contracts.contract.suites import own_classes
from data_contracts.errors import SpecError, TrainwrightError, UsageError
from data_contracts.messages.raw_data import OWN_CONTRACT, ContractOutcome, ContractRequest
from infra.contract import contract_worker
from infra.processes.child_main import Report, child_main
from training.user.imports import add_project, load_class, raised_in_project, user_code


def main(request: ContractRequest, report: Report) -> ContractOutcome:
    """The outcome of a check; see `infra.contract.contract_worker.main`.

    Raises:
        SpecError: a class does not exist, is not an Expectation, or refuses its arguments.
        UserCodeError: the user's code raised where Great Expectations does not catch it.
    """
    assert request.project is not None
    load_great_expectations()
    root = add_project(request.project)
    classes = _classes(request, root)
    try:
        return contract_worker.main(request, report, lambda: classes)
    except Exception as error:
        if isinstance(error, TrainwrightError) or not raised_in_project(error, root):
            raise
        with user_code("contract.suite", root):
            raise


def _classes(request: ContractRequest, root: Path) -> Classes:
    found = {}
    named: dict[str, str] = {}
    for index, path in own_classes(request.suite).items():
        named.setdefault(path, f"contract.suite: expectations.{index}.class_path")
    with catalogue_kept():
        for path, field in named.items():
            try:
                found[path] = load_class(path, base_class(), field, root)
            except UsageError as error:
                raise SpecError(error.message, remedy=error.remedy) from error
    for path, kind in found.items():
        if why := why_unusable(kind):
            raise SpecError(f"{named[path]}: {path} {why}.", remedy="Correct the class.")
    return found


if __name__ == "__main__":
    child_main(OWN_CONTRACT, main)
