"""MkDocs' hook: a file outside docs/ that a page links to becomes a page of the site, so that the site is whole.

A link to a source file leads to a page with its text, at the line that defines the name in the link. A link that leads
nowhere is a warning, which `mkdocs build --strict` makes an error.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^]]*)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
# What a page would load from another server.
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)")
# MkDocs checks no such address and no anchor in it; `on_page_content` makes it a relative one.
SOURCE = "https://source.invalid/"
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".json": "json", "Makefile": "makefile"}


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each file that a page links to outside docs/, and for what those link to."""
    docs = Path(config.docs_dir)
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    seen: set[Path] = set()
    while waiting:
        page = waiting.pop()
        for _, link, _ in LINK.findall(page.read_text()):
            target = (page.parent / link).resolve()
            if target in seen or not target.is_file() or target.is_relative_to(docs) or target.suffix == ".svg":
                continue
            seen.add(target)
            files.append(File.generated(config, _place(target), content=_page(target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Point the links of a page to those pages."""
    source = page.file.abs_src_path
    if source is None:
        return markdown
    folder = Path(source).parent

    def replace(found: re.Match[str]) -> str:
        text, target = found[1], (folder / found[2]).resolve()
        if target.is_relative_to(config.docs_dir) or not target.is_file():
            return found[0]
        return f"[{text}]({SOURCE}{_place(target)}#{_line(target, text)})"

    return LINK.sub(replace, markdown)


def on_page_content(html: str, page: Any, files: Files, **_: Any) -> str:
    """Make those addresses relative."""

    def replace(found: re.Match[str]) -> str:
        file = files.get_file_from_path(found[1])
        assert file is not None, found[1]
        line = f"#__codelineno-0-{found[2]}" if found[2] else ""
        return f'href="{file.url_relative_to(page.file)}{line}"'

    return re.sub(rf'href="{SOURCE}([^"#]+)#(\d*)"', replace, html)


def on_post_build(config: Any, **_: Any) -> None:
    """Refuse a page that loads something from elsewhere."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        loaded = LOADED.findall(page.read_text())
        if loaded:
            raise PluginError(f"{page.name} loads {', '.join(loaded)}; the site must be whole without a network.")


def _place(target: Path) -> str:
    return f"source/{os.path.relpath(target, ROOT)}.md"


def _page(target: Path) -> str:
    name = os.path.relpath(target, ROOT)
    text = target.read_text()
    language = LANGUAGES.get(target.suffix or target.name, "text")
    fence = "`" * 6
    head = "---\nsearch:\n  exclude: true\n---\n"
    return f"{head}# {name}\n\n{fence}{language}\n{text}{fence}\n"


def _line(target: Path, text: str) -> str:
    """The line that defines what the text of a link names; "" for the top of the file."""
    name = text.strip("`").rpartition(".")[2]
    pattern = re.compile(rf"\s*(?:async )?(?:def|class) {re.escape(name)}\b|{re.escape(name)}\s*[:=]")
    lines = target.read_text().splitlines()
    return next((str(number) for number, line in enumerate(lines, 1) if pattern.match(line)), "")
