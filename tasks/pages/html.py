"""HTML in which nothing of a text becomes markup: texts are escaped, and only `Markup` is written as it is.

A page loads nothing and runs nothing: its content security policy, which comes before all else in it, forbids both. It
looks light or dark, and fits a screen, a telephone and paper. No font and no picture is loaded.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from data_contracts.quoting import one_line

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
)
# Tables of so many columns are too wide for a telephone.
LISTED_COLUMNS = 4


class Markup(str):
    """Markup, all texts in which are escaped."""

    __slots__ = ()


NOTHING = Markup("")


def escaped(text: str) -> Markup:
    """A text as markup that shows it; markup stays as it is."""
    return text if isinstance(text, Markup) else Markup(html.escape(one_line(text)))


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Parts one after the other."""
    return Markup(escaped(between).join(escaped(part) for part in parts))


def tag(name: str, *children: str, **attributes: str) -> Markup:
    """An element; `kind` is its class, and an attribute that is "" is left out."""
    written = "".join(
        f' {"class" if key == "kind" else key}="{html.escape(one_line(value))}"'
        for key, value in attributes.items()
        if value
    )
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def chart(picture: str, caption: str = "") -> Markup:
    """A picture of `tasks.charts` with a caption; nothing for an empty picture."""
    if not picture:
        return NOTHING
    words = tag("figcaption", caption) if caption else NOTHING
    return tag("figure", words, tag("div", Markup(picture), kind="chart"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> Markup:
    """A table; nothing if it has no rows. On a telephone, each row of a table of many columns becomes a list.

    Args:
        numbers: columns of figures, which are set flush right.
    """
    kinds = ["number" if at in numbers else "" for at in range(len(head))]
    listed = len(head) >= LISTED_COLUMNS
    made = [
        tag("tr", *(_cell(cell, kinds[at], head[at] if listed else "") for at, cell in enumerate(row))) for row in rows
    ]
    if not made:
        return NOTHING
    titles = tag("tr", *(tag("th", one, kind=kinds[at]) for at, one in enumerate(head)))
    return tag("div", tag("table", tag("thead", titles), tag("tbody", *made)), kind="wide listed" if listed else "wide")


def _cell(text: str, kind: str, head: str) -> Markup:
    """A cell of a table; `head` stands before it where rows become lists."""
    return tag("td", text, **{"kind": kind, "data-head": head})


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Names with their values; those without a value are left out."""
    known = [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value]
    return tag("dl", *known) if known else NOTHING


def section(title: str, *parts: str) -> Markup:
    """A part of the page under its title; nothing if it is empty."""
    shown = [part for part in parts if part]
    return tag("section", tag("h2", title), *shown) if shown else NOTHING


def page(title: str, *parts: str) -> str:
    """A whole page."""
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" '
    head = f'{HEAD}{view}content="light dark">\n{tag("title", title)}\n<style>{STYLE}</style>\n</head>\n'
    return f"{head}<body>\n{tag('main', join(parts))}\n</body>\n</html>\n"


STYLE = """
:root{--ink:#1d2733;--soft:#5d6b7a;--grid:#d8dee6;--panel:#f1f4f8;--paper:#fff;--good:#1a7a45;--bad:#c23322;
--warn:#8f5600;--blue:#2f6fd0;--orange:#d9681d;--violet:#8454cc;--pink:#c43d7d;--teal:#127f8b;--page:#f7f9fb}
@media (prefers-color-scheme:dark){:root{--ink:#e6ebf1;--soft:#9aa8b7;--grid:#333f4c;--panel:#232d38;--paper:#19212a;
--good:#4cc38a;--bad:#ff7a66;--warn:#f0b14a;--blue:#6ea8fe;--orange:#ff9f5a;--violet:#b794f6;--pink:#f28ab2;
--teal:#4fc3cf;--page:#10161d}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"DejaVu Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:1.5rem 1.25rem 3rem}
header,section{background:var(--paper);border:1px solid var(--grid);border-radius:12px;padding:1.25rem 1.5rem;
margin:0 0 1.1rem}
header{border-left:8px solid var(--tone,var(--soft))}
.good{--tone:var(--good)}.bad{--tone:var(--bad)}.warn{--tone:var(--warn)}.calm{--tone:var(--blue)}
.eyebrow{color:var(--soft);font-size:.85rem;margin:0 0 .2rem;overflow-wrap:anywhere}
h1{font-size:2rem;line-height:1.2;margin:0 0 .5rem;color:var(--tone,var(--ink));letter-spacing:-.01em}
h2{font-size:1.2rem;margin:0 0 .8rem}
h3{font-size:1rem;margin:1.2rem 0 .4rem}
p{margin:.4rem 0;max-width:75ch;overflow-wrap:anywhere}
.why{font-size:1.08rem}
.soft,figcaption,.next{color:var(--soft)}
ul{margin:.4rem 0;padding-left:1.2rem;max-width:85ch}
summary{cursor:pointer;color:var(--soft);padding:.3rem 0}
li{overflow-wrap:anywhere}
code{font:.88em/1.4 ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
pre{overflow-x:auto;background:var(--panel);border-radius:8px;padding:.8rem;font-size:.85rem}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.7rem 1.2rem;margin:.9rem 0 0}
dt{color:var(--soft);font-size:.8rem}
dd{margin:0;font-weight:600;overflow-wrap:anywhere}
.wide,.chart{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;vertical-align:top;padding:.4rem .7rem .4rem 0;border-bottom:1px solid var(--grid);
min-width:4.5rem}
th{color:var(--soft);font-weight:600;font-size:.82rem;white-space:nowrap}
tbody tr:last-child td{border-bottom:0}
td.number,th.number{text-align:right;padding-right:1.4rem;font-variant-numeric:tabular-nums;white-space:nowrap}
figure{margin:.4rem 0}
figcaption{font-size:.88rem;margin:0 0 .4rem}
svg{display:block;max-width:100%;height:auto}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,27rem),1fr));gap:1rem 1.5rem}
.panels>*{min-width:0}
.tag{display:inline-block;border-radius:99px;padding:0 .6rem;font-size:.8rem;font-weight:600;white-space:nowrap;
color:var(--tone,var(--soft));border:1px solid currentColor}
footer{color:var(--soft);font-size:.82rem;padding:0 .3rem}footer p{max-width:none}
@media screen and (max-width:700px){main{padding:.7rem .6rem 2rem}header,section{padding:1rem;border-radius:10px}
h1{font-size:1.6rem}.chart svg{max-width:none}
th,th.number{white-space:normal}th,td{min-width:4.7rem;overflow-wrap:anywhere}
.listed thead{display:none}.listed table,.listed tbody,.listed tr,.listed td{display:block}
.listed tr{border-bottom:1px solid var(--grid);padding:.5rem 0}.listed tr:last-child{border-bottom:0}
.listed td,.listed td.number{display:flow-root;border:0;padding:.1rem 0 .1rem 7.5rem;text-align:left;white-space:normal}
.listed td::before{content:attr(data-head);float:left;width:7rem;margin-left:-7.5rem;color:var(--soft);
font-size:.82rem;font-weight:400;line-height:1.8}
.listed td:first-child{font-weight:600}.listed td:empty{display:none}}
@media print{:root{--ink:#000;--soft:#444;--grid:#bbb;--panel:#f2f2f2;--paper:#fff;--page:#fff;--good:#17713f;
--bad:#b3301e;--warn:#8f5600;--blue:#245bb0;--orange:#b3530f;--violet:#6a3db3;--pink:#a02c63;--teal:#0d6a74}
@page{margin:14mm}
body{font-size:11pt}main{max-width:none;padding:0}
header,section{border-radius:0;border-width:0 0 1px;padding:.6rem 0}header{border-left-width:6px;padding-left:1rem}
figure,tr{break-inside:avoid}h2,h3{break-after:avoid}.wide,.chart{overflow:visible}
table{font-size:.8rem}th,td,td.number,th.number{min-width:0;overflow-wrap:anywhere;padding-right:.6rem}
th,th.number{white-space:normal;font-size:.74rem}
details::details-content{content-visibility:visible;display:contents}summary{list-style:none}
svg rect,svg path,svg circle,svg polygon{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
""".replace("\n", "")
