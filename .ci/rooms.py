"""Draws docs/rooms.svg: the floors, their rooms, and which room imports which, read from the sources by grimp.

`python .ci/rooms.py` prints the picture. `make docs` writes it, and a test compares it with the sources.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape

import grimp

FLOORS = ("flows", "tasks", "training", "infra", "data_contracts")
# A folder that is divided into rooms of its own is not a room.
DIVIDED = {"infra.gang"}

WIDTH, MARGIN, LEFT = 1080, 16, 188
# Each row of a column stands a little to the right, so that arrows reach every room past the ones above it.
BOX_WIDTH, BOX_HEIGHT, ROW, SHIFT = 140, 30, 46, 24
HEAD, GAP, LINE = 14, 26, 16
LETTERS_A_LINE = 124

STYLE = """
  svg { font-family: Helvetica, Arial, sans-serif; --back: #ffffff; --band: #eef1f5; --box: #ffffff; --line: #5b6b7f;
        --text: #1c2530; --soft: #56616e; --near: #3c6fb4; --far: #9aa7b8; }
  @media (prefers-color-scheme: dark) {
    svg { --back: #14181d; --band: #20262e; --box: #2c343e; --line: #8796a8; --text: #e8edf3; --soft: #a7b2bf;
          --near: #7fb0ee; --far: #66758a; }
  }
  .back { fill: var(--back); } .band { fill: var(--band); }
  .box { fill: var(--box); stroke: var(--line); }
  .room { fill: var(--text); font-size: 14px; text-anchor: middle; }
  .floor { fill: var(--text); font-size: 17px; font-weight: bold; }
  .beside { fill: var(--soft); font-size: 12px; paint-order: stroke; stroke: var(--band); stroke-width: 5px; }
  .near, .far { fill: none; stroke-width: 1.5; } .near { stroke: var(--near); } .far { stroke: var(--far); }
  .near-head { fill: var(--near); } .far-head { fill: var(--far); }
"""

Rooms = dict[str, set[str]]


def rooms_of(graph: grimp.ImportGraph) -> Rooms:
    """Each room (a folder below a floor, or below a divided folder) with the rooms whose modules it imports."""
    folders = {module for module in graph.modules if graph.find_children(module)}
    parents = {*FLOORS, *DIVIDED}
    rooms: Rooms = {folder: set() for folder in folders - DIVIDED if folder.rpartition(".")[0] in parents}
    owner = {module: room for module in graph.modules if (room := _room(module, rooms))}
    for module, room in owner.items():
        used = {owner[name] for name in graph.find_modules_directly_imported_by(module) if name in owner}
        rooms[room] |= used - {room}
    return rooms


def _room(module: str, rooms: Mapping[str, object]) -> str | None:
    while module and module not in rooms:
        module = module.rpartition(".")[0]
    return module or None


def shortest(rooms: Rooms) -> Rooms:
    """The same arrows without those that follow from others: A → C is left out where A → B → C."""
    return {
        room: {one for one in used if not any(one in _reached(rooms, other) for other in used - {one})}
        for room, used in rooms.items()
    }


def _reached(rooms: Rooms, start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = rooms[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def columns(rooms: Rooms, floor: str) -> dict[str, int]:
    """The column of each room of a floor: right of all that import it, and close to what it imports."""
    own = sorted(room for room in rooms if room.split(".")[0] == floor)
    place = dict.fromkeys(own, 0)
    for _ in own:
        for room in own:
            for used in rooms[room] & place.keys():
                place[used] = max(place[used], place[room] + 1)
    imported = set().union(*(rooms[room] for room in own)) if own else set()
    for room in own:
        after = [place[used] for used in rooms[room] & place.keys()]
        if room not in imported and after:
            place[room] = min(after) - 1
    if not any(rooms[room] & place.keys() for room in own):
        return {room: number for number, room in enumerate(own)}
    return place


def beside(graph: grimp.ImportGraph, rooms: Rooms, floor: str) -> list[str]:
    """Lines with the names of the modules of a floor that stand in no room."""
    names = sorted(
        module.removeprefix(f"{floor}.").replace(".", "/")
        for module in graph.modules
        if module.split(".")[0] == floor and not graph.find_children(module) and not _room(module, rooms)
    )
    lines = [""]
    for name in names:
        text = f"{lines[-1]}, {name}" if lines[-1] else name
        if len(text) > LETTERS_A_LINE:
            lines[-1] += ","
            lines.append(name)
        else:
            lines[-1] = text
    return [line for line in lines if line]


def draw(graph: grimp.ImportGraph) -> str:
    """The picture as SVG."""
    rooms = shortest(rooms_of(graph))
    corner: dict[str, tuple[float, float]] = {}
    bands: list[str] = []
    words: list[str] = []
    top = float(MARGIN)
    for floor in FLOORS:
        rows = _lay_out(columns(rooms, floor), top + HEAD, corner)
        lines = beside(graph, rooms, floor)
        height, below = HEAD + rows * ROW + LINE * len(lines), top + HEAD + rows * ROW
        place = f'x="{MARGIN}" y="{top:.0f}" width="{WIDTH - 2 * MARGIN}" height="{height}"'
        bands.append(f'<rect class="band" {place} rx="8"/>')
        words.append(f'<text class="floor" x="{MARGIN + 12}" y="{top + HEAD + 20:.0f}">{floor}</text>')
        words += [
            f'<text class="beside" x="{LEFT}" y="{below + LINE * number:.0f}">{escape(line)}</text>'
            for number, line in enumerate(lines)
        ]
        top += height + GAP
    arrows = [_arrow(corner, room, used) for room in sorted(rooms) for used in sorted(rooms[room])]
    boxes = [_box(corner[room], room) for room in sorted(rooms)]
    return _page(top - GAP + MARGIN, [*bands, *sorted(arrows), *boxes, *words])


def _lay_out(place: Mapping[str, int], top: float, corner: dict[str, tuple[float, float]]) -> int:
    """Note the upper left corner of each room of a floor; how many rows they take."""
    most = max(place.values()) + 1
    stacks = [[room for room in sorted(place) if place[room] == column] for column in range(most)]
    rows = max(map(len, stacks))
    step = (WIDTH - 2 * MARGIN - LEFT - BOX_WIDTH - SHIFT * (rows - 1)) / max(most - 1, 1)
    for column, stack in enumerate(stacks):
        for row, room in enumerate(stack):
            corner[room] = (LEFT + column * step + row * SHIFT, top + row * ROW)
    return rows


def _box(at: tuple[float, float], room: str) -> str:
    x, y = at
    name = room.partition(".")[2].replace(".", "/")
    return (
        f'<rect class="box" x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5"/>'
        f'<text class="room" x="{x + BOX_WIDTH / 2:.0f}" y="{y + 20:.0f}">{name}</text>'
    )


def _arrow(corner: Mapping[str, tuple[float, float]], room: str, used: str) -> str:
    (x1, y1), (x2, y2) = corner[room], corner[used]
    if room.split(".")[0] == used.split(".")[0]:
        kind, x1, y1, y2 = "near", x1 + BOX_WIDTH, y1 + BOX_HEIGHT / 2, y2 + BOX_HEIGHT / 2
        bend = max((x2 - x1) / 2, 12)
        curve = f"C{x1 + bend:.0f} {y1:.0f} {x2 - bend:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
    else:
        kind, x1, y1, x2 = "far", x1 + SHIFT / 2, y1 + BOX_HEIGHT, x2 + BOX_WIDTH - SHIFT / 2
        bend = (y2 - y1) / 2
        curve = f"C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"
    title = f"<title>{room} imports {used}</title>"
    return f'<path class="{kind}" marker-end="url(#{kind})" d="M{x1:.0f} {y1:.0f} {curve}">{title}</path>'


def _page(height: float, parts: list[str]) -> str:
    heads = "".join(
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path class="{kind}-head" d="M0 0L8 4L0 8z"/></marker>'
        for kind in ("near", "far")
    )
    top = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">\n'
        "<title>Floors and rooms of Trainwright, and which room imports which</title>\n"
        f'<style>{STYLE}</style>\n<defs>{heads}</defs>\n<rect class="back" width="{WIDTH}" height="{height:.0f}"/>\n'
    )
    return top + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    sys.stdout.write(draw(grimp.build_graph(*FLOORS, cache_dir=None)))
