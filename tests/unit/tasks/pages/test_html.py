"""Nothing of a text becomes markup, and the policy that forbids scripts and loading comes before everything else."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from tasks.pages.html import HEAD, badge, code, note, page, part
from tests.support.pictures import elements_of

HOSTILE = "</style></title><script>alert(1)</script><img src=x onerror=alert(1)>\" ' & \x00"


def test_every_text_of_a_page_is_shown_as_it_is() -> None:
    values = {"title": HOSTILE, "month": HOSTILE, "sentence": HOSTILE, "missing": [HOSTILE]}
    rows = [(HOSTILE, badge(HOSTILE, HOSTILE), code(HOSTILE), HOSTILE)]
    whole = page("cost", groups=[(HOSTILE, Markup("<svg></svg>"), (HOSTILE,) * 4, rows)], **values)
    facts = part("run_parts", "data_alone", words=HOSTILE, figures=[(HOSTILE, HOSTILE)])
    made = "".join((whole, note(HOSTILE, HOSTILE), facts))
    elements = elements_of(made)
    assert not {"script", "img", "link", "iframe"} & set(elements.names)
    assert elements.names.count("svg") == 1
    assert sum("<script>alert(1)</script>" in text for text in elements.texts) == 18
    assert "\x00" not in made
    assert code("a\u202eb \u2066c") == "<code>a\\u202eb \\u2066c</code>", "nothing turns the direction of a text"


def test_the_policy_comes_first() -> None:
    made = page("run", title="t", parts=[])
    assert made.startswith(HEAD)
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in HEAD
    assert made.index("Content-Security-Policy") < made.index("<title>") < made.index("<style>")


def test_what_is_empty_is_left_out_and_what_is_forgotten_is_an_error() -> None:
    assert note("Title", "") == part("run_parts", "stages", rows=[]) == ""
    with pytest.raises(UndefinedError):
        page("run", title="t")
