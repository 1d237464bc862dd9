"""What a training logged, as panels of curves: curves of one quantity, such as train_loss and val_loss, share one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.charts.curves import Curve, Mark, curves

# More panels than this are a list, not a picture.
MOST_PANELS = 8
# The run of two that a curve is of, where a page compares them.
SIDES = ("before", "after")
_SIDE = re.compile(rf" \(({'|'.join(SIDES)})\)$")
_PLACE = re.compile(r"^(train|training|val|valid|validation|test)[_/.]|[_/.](train|val|valid|test|step|epoch)$")


def panels(history: Sequence[Mapping[str, Any]], marks: Sequence[Mark] = ()) -> list[tuple[str, str]]:
    """(quantity, picture) of each quantity that was logged, the loss first.

    Args:
        history: records `{"step", "epoch", name: value, …}`, oldest first.
    """
    values: dict[str, tuple[list[float], list[float]]] = {}
    for record in history:
        for name, value in record.items():
            if name not in ("step", "epoch") and isinstance(value, int | float) and not isinstance(value, bool):
                steps, known = values.setdefault(str(name), ([], []))
                steps.append(float(record.get("step", 0)))
                known.append(float(value))
    grouped: dict[str, list[Curve]] = {}
    for name in sorted(values):
        own = _SIDE.sub("", name)
        grouped.setdefault(_PLACE.sub("", own) or own, []).append(Curve(name, *values[name]))
    names = sorted(grouped, key=lambda name: ("loss" not in name, name))
    drawn = [(name, curves(sorted(grouped[name], key=_order), marks)) for name in names[:MOST_PANELS]]
    return [(name, picture) for name, picture in drawn if picture]


def _order(curve: Curve) -> tuple[bool, str, bool]:
    return not curve.name.startswith("train"), _SIDE.sub("", curve.name), curve.name.endswith(f"({SIDES[1]})")
