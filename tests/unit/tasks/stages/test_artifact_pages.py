"""The pages in Prefect show texts from a store, which its other writers may have forged, as texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

import pytest
from markdown_it import MarkdownIt

from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import Failure
from data_contracts.run_report import Cost, RunReport, StageResult
from infra.gang.checkpoints.participants import Seat
from infra.orchestrator.artifacts import as_text
from tasks.run.run import Run
from tasks.stages.artifact_pages import gang_page, run_page, stage_page

FORGED = (
    "![x](https://evil.example/x.png) [sign in](https://evil.example) <img src=x onerror=alert(1)> "
    "<https://evil.example> www.evil.example https://evil.example [r] | cell"
    " HTTPS://evil.example xwww.evil.example _www.evil.example 1www.evil.example éWWW.evil.example it@evil.example,"
    " a|www.evil.example|it@evil.example http://evil.example/`x`"
    "\n\n# heading\n\n[r]: https://evil.example `code` **bold** _it_ &lt;"
)


@dataclass
class Shown:
    """In place of a run: what a page reads of one."""

    run_id: str
    results: dict[str, StageResult]


def error() -> TrainwrightError:
    failure = Failure(
        expectation="e", column=None, severity="critical", rows=1, row_numbers=[1], values=[FORGED], sentence=FORGED
    )
    told = TrainwrightError(FORGED, remedy=FORGED, details={"failures": [failure.model_dump()]})
    told.user_traceback = f"```\n{FORGED}\n````\n{FORGED}"
    return told


ENDED = StageResult(name="train", status="ran", seconds=1, sentence=FORGED, reused_from=FORGED)
RUN = cast("Run", Shown(FORGED, {"train": ENDED}))
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
)
SEAT = Seat(0, 0, 0, FORGED, FORGED, FORGED, FORGED, 0, 0, FORGED, FORGED)


@pytest.mark.parametrize(
    "page",
    [stage_page(RUN, "train"), stage_page(RUN, "train", error=error()), gang_page([SEAT]), run_page(REPORT)],
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
