"""The pages in Prefect show texts from a store, which its other writers may have forged, as texts."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from data_contracts.errors import TrainwrightError, from_json
from data_contracts.handoffs import Failure
from data_contracts.run_report import Cost, RunReport, StageResult
from infra.gang.ledger import RankStatus
from infra.orchestrator.artifacts import as_text
from tasks.pages.facts import facts_of
from tasks.run.report import latest_report
from tasks.run.run import reopen_run
from tasks.stages.artifacts import gang_page, run_image, run_page, stage_page
from tests.support.pictures import texts_of
from tests.support.reported import NOT_PROMOTED, PROMOTED, reported_store
from tests.support.runs import make_run

FORGED = (
    "![x](https://evil.example/x.png) [sign in](https://evil.example) <img src=x onerror=alert(1)> "
    "<https://evil.example> www.evil.example https://evil.example [r] | cell"
    " HTTPS://evil.example xwww.evil.example _www.evil.example 1www.evil.example éWWW.evil.example it@evil.example,"
    " a|www.evil.example|it@evil.example http://evil.example/`x` "
    "\n\n# heading\n\n[r]: https://evil.example `code` **bold** _it_ &lt;"
)


def error() -> TrainwrightError:
    failure = Failure(
        expectation="e", column=None, severity="critical", rows=1, row_numbers=[1], values=[FORGED], sentence=FORGED
    )
    told = TrainwrightError(FORGED, remedy=FORGED, details={"failures": [failure.model_dump()]})
    told.user_traceback = f"```\n{FORGED}\n````\n{FORGED}"
    return told


ENDED = StageResult(name="train", status="ran", seconds=1, sentence=FORGED, reused_from=FORGED)
RUN = make_run(run_id=FORGED)
RUN.live.results["train"] = ENDED
REPORT = RunReport(
    run_id=FORGED,
    pipeline="p",
    verdict="failed",
    exit_code=1,
    sentence=FORGED,
    stages=[ENDED],
    actor=FORGED,
    cost=Cost(machine=FORGED),
    metrics={FORGED: 1.0},
    budgets=[FORGED],
)
RANK = RankStatus(0, 0, 0, FORGED, FORGED, FORGED, FORGED, 0, 0, FORGED, FORGED)


@pytest.mark.parametrize(
    "page",
    [stage_page(RUN, "train"), stage_page(RUN, "train", error=error()), gang_page([RANK]), run_page(REPORT)],
    ids=["stage", "error", "gang", "run"],
)
def test_a_forged_text_makes_no_link_image_or_element(page: str) -> None:
    shown = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(page)
    found = [tag for tag in ("<a ", "<img", "<h1>heading", "<strong>bold", "<em>", "<code>code") if tag in shown]
    assert found == []
    assert "[sign" in shown
    # The pages make links of bare addresses, too: they look for them in the text as it is shown, but not in code.
    prose = re.sub(r"<code>.*?</code>|<pre>.*?</pre>", "", shown, flags=re.DOTALL)
    assert re.search(r"://|www\.|@", prose, re.IGNORECASE) is None
    for address in ("HTTPS://evil.example", "xwww.evil.example", "it@evil.example,", "http://evil.example/'x'"):
        assert f"<code>{address}</code>" in shown


def test_each_cell_stays_in_its_column() -> None:
    shown = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(run_page(REPORT))
    assert {row.count("<td>") for row in shown.split("<tr>") if "<td>" in row} == {2}


@pytest.mark.parametrize("text", ["step 1,000 on 2 ranks (ddp), 3 % of the time", "train.init_from: s3: my-model 2.0"])
def test_a_plain_sentence_stays_as_it_is(text: str) -> None:
    assert as_text(text) == text


def pictures(lines: list[str]) -> list[list[str]]:
    """The texts of each picture among lines of Markdown; every image is one of ours."""
    found = re.findall(r"!\[(gates|curves)\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", "\n".join(lines))
    assert len(found) == "\n".join(lines).count("![")
    return [texts_of(base64.b64decode(data).decode()) for _, data in found]


@pytest.mark.usefixtures("home")
def test_what_decided_and_the_curves_are_pictures(tmp_path: Path, repository: Path) -> None:
    store = reported_store(repository / "tests/golden/store-v1", tmp_path)
    run = reopen_run(PROMOTED, str(store))
    report = latest_report(run.store, PROMOTED)
    [gates] = pictures(run_image(run, report))
    assert {"value at least 0.8", "gain of at least 0", "0.0339", "met"} <= set(gates)
    facts = facts_of(run)
    [curves] = pictures(stage_page(run, "train", handoff=facts.checkpoint).splitlines())
    assert {"train_loss", "step"} <= set(curves)
    assert pictures(stage_page(run, "promote", handoff=facts.receipt).splitlines()) == [gates]
    refused = reopen_run(NOT_PROMOTED, str(store))
    report = latest_report(refused.store, NOT_PROMOTED)
    page = stage_page(refused, "promote", error=from_json(report.error))
    assert [gates] != pictures(page.splitlines()) == pictures(run_image(refused, report))
    (store / facts.checkpoint.ref.uri / "history.json").unlink()
    assert pictures(stage_page(run, "train", handoff=facts.checkpoint).splitlines()) == []
