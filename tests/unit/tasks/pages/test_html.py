"""Nothing of a text becomes markup, and the policy that forbids scripts and loading comes before everything else."""

from __future__ import annotations

from tasks.pages.html import HEAD, NOTHING, Markup, chart, escaped, facts, join, page, section, table, tag
from tests.support.pictures import Elements

HOSTILE = "</style></title><script>alert(1)</script><img src=x onerror=alert(1)>\" ' & \x00"


def test_every_text_of_a_page_is_shown_as_it_is() -> None:
    made = page(
        HOSTILE,
        tag("p", HOSTILE, kind=HOSTILE),
        section(
            HOSTILE, table((HOSTILE,), [(HOSTILE,), (tag("b", HOSTILE),)], numbers=(0,)), facts([(HOSTILE, HOSTILE)])
        ),
        join([HOSTILE, tag("i", HOSTILE)], HOSTILE),
        chart(Markup("<svg></svg>"), HOSTILE),
    )
    elements = Elements()
    elements.feed(made)
    assert not {"script", "img", "link", "iframe"} & set(elements.names)
    assert sum("<script>alert(1)</script>" in text for text in elements.texts) == 11
    assert "\x00" not in made


def test_no_text_turns_the_direction_of_what_follows() -> None:
    assert tag("p", "a\u202eb \u2066c", tag("code", "run")) == "<p>a\\u202eb \\u2066c<code>run</code></p>"


def test_the_policy_comes_first() -> None:
    made = page("t", "text")
    assert made.startswith(HEAD)
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in HEAD
    assert made.index("Content-Security-Policy") < made.index("<title>") < made.index("<style>")


def test_what_is_empty_is_left_out() -> None:
    assert section("Title", NOTHING, NOTHING) == table(("a",), []) == facts([("a", "")]) == chart("") == NOTHING
    assert escaped(Markup("<b>")) == "<b>"
