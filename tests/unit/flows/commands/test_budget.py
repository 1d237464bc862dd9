"""`budget`, `policy`: what people set and see, and one sentence for each mistake."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError, SpecError, UsageError
from data_contracts.executions import ExecutionUsage
from data_contracts.load import load_spec
from data_contracts.resolved import Price
from data_contracts.rules import RULES_TYPE, Budgets, Policy, RulesVersion
from flows.commands.deploy import _refuse_by_policy_of_store as refuse_at_deploy
from flows.commands.deploy import _store_address as deployed_store
from infra.budgets import POLICY, Executed, apply_rules, current_budgets, newest_rules, read_rules, refuse_by_policy
from infra.processes.environment import SIGNING_KEY
from infra.signing.keys import make_key_pair, signed_record
from infra.signing.signatures import configured_key
from infra.store import Store, layout, open_store
from tasks.budgets import BudgetPeriod, balances_of_spec
from tasks.run.spec_check import read_spec
from tests.support.commands import output_of
from tests.support.tiny import write_project
from tests.unit.tasks.budgets.test_spending import this_month

MONEY = "{per: month, limit: {amount: 500, currency: USD}, where: {team: tests}}"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (SIGNING_KEY, POLICY, "TRAINWRIGHT_MACHINES"):
        monkeypatch.delenv(variable, raising=False)


def written(tmp_path: Path, *budgets: str, name: str = "budgets.yaml") -> str:
    path = tmp_path / name
    path.write_text("\n".join(["version: 1", "budgets:", *(f"  {one}" for one in budgets)]) + "\n")
    return str(path)


def used(store: Store, run_id: str, hours: float, per_hour: float | None = 20.0) -> None:
    """A run of the team `tests` that used a node for 20 USD an hour, this month: up to one, which any moment allows."""
    began = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
    one = ExecutionUsage(
        run_id=run_id,
        execution="1-a",
        pipeline="tiny",
        model="tiny",
        tags={"team": "tests"},
        prices={"here": Price(machine="m", per_hour=per_hour, price_date="2026-01-01")},
        began=began,
        ended=began + 3600 * hours,
    )
    for what in ("began", "ended"):
        store.create_once(layout.usage(run_id, "1-a", what), one.to_json())


def test_nothing_is_set(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No budget is set" in output_of(capsys, "budget", "--store", store.uri)
    assert "No policy is set" in output_of(capsys, "policy", "--store", store.uri)


def test_budgets_are_applied_shown_and_raised(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    used(store, "20261101-000000-abcdef", 0.75)
    file = written(tmp_path, f"sales: {MONEY}", "each: {per: run, limit: {gpu_hours: 40}}")
    assert f"version 0 of the budgets, applied by ada at {this_month()}" in output_of(
        capsys, "budget", "apply", file, "--store", store.uri
    )
    lines = output_of(capsys, "budget", "--store", store.uri).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["sales", "each"]
    sales = next(line for line in lines if line.startswith("sales"))
    assert sales.split() == ["sales", "team=tests", this_month(), "15.00", "0.00", "485.00", "500.00", "USD", "stop"]
    budget = read_rules(Path(file), Budgets).budgets["sales"]
    BudgetPeriod("sales", budget, this_month()).ledger(store).reserve(Executed("r", "1-b"), 5, 5, 500)
    written(tmp_path, f"sales: {MONEY.replace('500', '600')}")
    output_of(capsys, "budget", "apply", file, "--store", store.uri)
    value = json.loads(output_of(capsys, "budget", "--store", store.uri, "--json"))["stores"][0]
    assert (value["version"]["n"], value["version"]["by"]) == (1, "ada")
    assert value["edition"] == value["version"], "the key of earlier releases"
    [sales_now] = value["budgets"]
    # Nobody carries out the run that reserved, so it is settled, with what it held.
    assert (sales_now["spent"], sales_now["reserved"], sales_now["left"]) == (25.0, 0.0, 575.0)


@pytest.mark.parametrize(
    ("budgets", "sentence"),
    [
        (["a: {per: month, limit: {amount: .nan, currency: USD}}"], "budgets.a.limit.amount: must be a finite number"),
        (["a: {per: month, limit: {hours: -1}}"], "budgets.a.limit.hours: must be more than 0"),
        (["a: {per: month, limit: {hours: 1, gpu_hours: 1}}"], "a limit is one of amount, hours and gpu_hours"),
        (["a: {per: month, limit: {}}"], "has none of them"),
        (["a: {per: month, limit: {amount: 1}}"], "budgets.a.limit.currency: an amount needs its currency"),
        (["a: {per: month, limit: {amount: 1, currency: XYZ}}"], "no price of the price book is in XYZ"),
        (["a: {per: day, limit: {hours: 1}}"], "budgets.a.per: "),
        (["a: {per: run, limit: {hours: 1}, warn_at: [1.5]}"], "budgets.a.warn_at.0: must be at most 1"),
        (["a: {per: run, limit: {hours: 1}, warn_at: [0]}"], "budgets.a.warn_at.0: must be more than 0"),
        (["a: {per: run, limit: {hours: 1}, most: 3}"], "budgets.a.most: "),
        (["a: {per: run, limit: {hours: 1}}", "a: {per: run, limit: {hours: 2}}"], "stands twice"),
        (["A: {per: run, limit: {hours: 1}}"], "cannot be a name"),
        ([f"sales: {MONEY.replace('500', '14')}"], "14.00 USD is below the 15.00 USD that are spent in"),
    ],
)
def test_a_wrong_file_is_one_sentence_and_nothing_is_applied(
    budgets: list[str], sentence: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used(store, "20261101-000000-abcdef", 0.75)
    assert sentence in output_of(capsys, "budget", "apply", written(tmp_path, *budgets), "--store", store.uri, code=2)
    assert newest_rules(store, "budgets") is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["budget", "--month", "2999-01"], "--month: 2999-01 lies in the future"),
        (["budget", "--month", "2026"], "'2026' is not a month"),
        (["budget", "--month", "0000-01"], "'0000-01' is not a month"),
        (["budget", "apply"], "budget apply: no file is named"),
        (["policy", "apply", "/nowhere.yaml"], "/nowhere.yaml"),
    ],
)
def test_a_wrong_command_is_one_sentence(
    words: list[str], sentence: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in output_of(capsys, *words, "--store", store.uri, code=2)


def test_what_earlier_runs_used_at_an_unknown_price_is_unknown_and_not_0(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = f"{this_month().replace('-', '')}01-000000-abcde"
    used(store, first + "0", 0.75)
    for number in (1, 2):
        used(store, f"{first}{number}", 0.5, per_hour=None)
    file = written(tmp_path, f"sales: {MONEY}", "hours: {per: month, limit: {hours: 40}}")
    answer = output_of(capsys, "budget", "apply", file, "--store", store.uri).splitlines()
    sentence = f"The budget sales ({this_month()}) counts 2 earlier runs only in part: what 1.00 of their node-hours "
    assert answer[1:] == [f"{sentence}come to in USD is unknown."]
    value = json.loads(output_of(capsys, "budget", "apply", file, "--store", store.uri, "--json"))
    assert value["unknown"] == answer[1:]


def test_of_a_budget_for_each_run_the_newest_are_shown(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [f"{this_month().replace('-', '')}01-00000{number}-abcdef" for number in range(8)]
    for run_id in runs:
        used(store, run_id, 0.01)
    file = written(tmp_path, "each: {per: run, limit: {hours: 4}}")
    output_of(capsys, "budget", "apply", file, "--store", store.uri)
    lines = output_of(capsys, "budget", "--store", store.uri).splitlines()
    assert [line.split()[3] for line in lines if line.startswith("each ")] == runs[:2:-1]
    assert lines[-1] == "each: … and 3 earlier runs (all of them with --json)"
    assert len(json.loads(output_of(capsys, "budget", "--store", store.uri, "--json"))["stores"][0]["budgets"]) == 8


def test_what_is_left_for_a_spec(store: Store, tmp_path: Path) -> None:
    spec = load_spec(write_project(tmp_path / "tiny"))
    assert balances_of_spec(store, spec) == []
    content = {
        "version": 1,
        "budgets": {
            "mine": {"per": "month", "limit": {"hours": 4.0}, "where": {"team": "tests"}},
            "other": {"per": "month", "limit": {"hours": 4.0}, "where": {"team": "vision"}},
            "each": {"per": "run", "limit": {"hours": 2.0}},
        },
    }
    apply_rules(store, "budgets", content)
    budget = Budgets.model_validate(content).budgets["mine"]
    BudgetPeriod("mine", budget, this_month()).ledger(store).settle({Executed("r", "1-a"): 1.0})
    assert [one.sentence for one in balances_of_spec(store, spec)] == [
        f"mine: 3.00 of 4.00 node-hours left ({this_month()})",
        "each: 2.00 of 2.00 node-hours left (each run)",
    ]


def limited_to(hours: float) -> dict[str, Any]:
    return {"version": 1, "budgets": {"a": {"per": "run", "limit": {"hours": hours}}}}


@pytest.fixture
def release_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with which this process signs."""
    monkeypatch.setenv(SIGNING_KEY, str(make_key_pair(tmp_path / "keys")[0]))


def test_versions_are_signed_with_a_release_key_and_no_other_counts(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content: dict[str, Any] = {"version": 1, "budgets": {}}
    apply_rules(store, "budgets", content)
    monkeypatch.setenv(SIGNING_KEY, str(make_key_pair(tmp_path / "ours")[0]))
    with pytest.raises(CorruptError, match="it is not signed"):
        current_budgets(store)
    made = apply_rules(store, "budgets", content)
    assert (made.n, made.signature is not None) == (1, True)
    assert current_budgets(store) is not None
    forged = made.model_copy(update={"n": 2, "content": {"version": 1, "budgets": {}}})
    store.create_once(layout.rules_version("budgets", 2), forged.to_json())
    with pytest.raises(CorruptError, match="it is not what was signed"):
        current_budgets(store)
    monkeypatch.delenv(SIGNING_KEY)
    with pytest.raises(UsageError, match=r"are signed \(editions/budgets/1\.json\), and no key is configured"):
        apply_rules(store, "budgets", content)


@pytest.mark.parametrize("numbers", [[999], [2, 3], [3], [10**200]])
@pytest.mark.parametrize("signs", [True, False])
def test_a_planted_version_keeps_nobody_from_changing_budgets(
    numbers: list[int], signs: bool, store: Store, release_key: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not signs:
        monkeypatch.delenv(SIGNING_KEY)
    apply_rules(store, "budgets", {"version": 1, "budgets": {}})
    for number in numbers:
        (Path(store.uri) / f"editions/budgets/{number}.json").write_text("{}")
    assert current_budgets(store) == Budgets(version=1, budgets={})
    for hours in (1, 2, 3):
        apply_rules(store, "budgets", limited_to(hours))
        assert current_budgets(store).budgets["a"].limit.hours == hours


def test_a_version_that_was_lost_at_the_start_is_told_and_mended_by_the_next(store: Store) -> None:
    for hours in (1, 2):
        apply_rules(store, "budgets", limited_to(hours))
    store.forget(layout.rules_version("budgets", 0))
    with pytest.raises(CorruptError, match=r"A version before editions/budgets/1\.json is missing"):
        current_budgets(store)
    assert apply_rules(store, "budgets", limited_to(3)).n == 2
    assert current_budgets(store).budgets["a"].limit.hours == 3


def test_a_signed_version_of_another_store_does_not_count(store: Store, release_key: None, tmp_path: Path) -> None:
    other = open_store(str(tmp_path / "other"))
    theirs = apply_rules(other, "budgets", limited_to(1000))
    assert theirs.store == other.uri
    store.create_once(layout.rules_version("budgets", 0), theirs.to_json())
    with pytest.raises(CorruptError, match=rf"it is for the store {other.uri}, and this is {store.uri}"):
        current_budgets(store)
    assert apply_rules(store, "budgets", limited_to(1)).n == 1
    assert current_budgets(store) is not None


def test_what_an_earlier_version_signed_without_a_store_counts_until_one_is_signed_with_it(
    store: Store, release_key: None
) -> None:
    def signed_before(n: int) -> RulesVersion:
        made = RulesVersion(kind="budgets", n=n, content=limited_to(n + 1), by="ada", at="2026-11-25")
        return signed_record(made, RULES_TYPE, configured_key())  # type: ignore[arg-type]

    path = layout.rules_version
    store.create_once(path("budgets", 0), signed_before(0).to_json())
    assert current_budgets(store) is not None
    assert "store" not in signed_before(0).to_json()
    apply_rules(store, "budgets", limited_to(1))
    store.create_once(path("budgets", 2), signed_before(2).to_json())
    with pytest.raises(CorruptError, match="it names no store, and an earlier version does"):
        current_budgets(store)


TAGS: dict[str, Any] = {"team": ["tests", "sales"], "cost-centre": "any"}


@pytest.mark.parametrize(
    ("tags", "fault"),
    [
        ({"team": "tests", "cost-centre": "7"}, None),
        ({"team": "tests", "cost-centre": "7", "other": "x"}, None),
        (
            {"team": "slaes", "cost-centre": "7"},
            ("team", "'slaes' is not allowed by the policy, which has tests, sales"),
        ),
        ({"cost-centre": "7"}, ("team", "is missing, and the policy demands it, with one of tests, sales")),
        ({"team": "sales"}, ("cost-centre", "is missing, and the policy demands it, with any value")),
    ],
)
def test_a_policy(tags: dict[str, str], fault: tuple[str, str] | None) -> None:
    assert Policy.model_validate({"version": 1, "tags": TAGS}).fault(tags) == fault


def test_the_store_s_policy_and_the_environment_s_are_both_met(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_project(tmp_path / "tiny")
    spec = load_spec(path)
    refuse_by_policy(spec, path, store)
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\ntags: {team: [sales]}\n")
    output_of(capsys, "policy", "apply", str(file), "--store", store.uri)
    assert "sales" in output_of(capsys, "policy", "--store", store.uri)
    with pytest.raises(SpecError, match=r"pipeline.yaml: tags.team: 'tests' is not allowed by the policy"):
        refuse_by_policy(spec, path, store)
    with pytest.raises(SpecError, match=r"tags\.team"):
        refuse_at_deploy(read_spec(path), deployed_store(read_spec(path), store.uri))
    refuse_at_deploy(read_spec(path), deployed_store(read_spec(path), str(tmp_path / "none yet")))
    assert not (tmp_path / "none yet").exists()
    refuse_by_policy(spec, path)
    monkeypatch.setenv(POLICY, str(file))
    error = output_of(capsys, "plan", str(path), code=2)
    assert f"{path}: tags.team: 'tests' is not allowed by the policy, which has sales." in error
    assert "TRAINWRIGHT_POLICY" in error


@pytest.mark.parametrize("signature", [{"a": 1}, {"signatures": []}, {"signatures": [{"keyid": "k"}]}])
def test_a_planted_version_is_one_sentence_and_not_said_to_be_signed(
    signature: dict[str, object], store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = RulesVersion(kind="budgets", n=0, content=limited_to(1), by="eve", at="2026-11-25", signature=signature)
    store.create_once(layout.rules_version("budgets", 0), planted.to_json())
    (Path(store.uri) / "editions/budgets/007.json").write_text("{}")
    if signature.get("signatures"):
        assert "with a signature that is not checked here" in output_of(capsys, "budget", "--store", store.uri)
    else:
        assert "editions/budgets/0.json" in output_of(capsys, "budget", "--store", store.uri, code=6)
    assert apply_rules(store, "budgets", limited_to(2)).n == 1, "it keeps nobody from applying"


@pytest.mark.parametrize(
    ("tags", "sentence"),
    [
        ("{team: []}", "tags.team: allows no value, so it would refuse every spec; name values, or write any"),
        ('{team: [sales, "\\u200b"]}', "tags.team.1: is empty, and a tag needs a value that can be seen"),
    ],
)
def test_a_policy_that_no_spec_could_meet_is_refused(
    tags: str, sentence: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.yaml").write_text(f"version: 1\ntags: {tags}\n")
    assert sentence in output_of(capsys, "policy", "apply", str(tmp_path / "policy.yaml"), "--store", store.uri, code=2)
    assert newest_rules(store, "policy") is None
