"""What of a module's arguments leaves with an export."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.export import without_private


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ({"width": 8, "act": "relu", "sizes": [1, 2], "num_tokens": 5, "path": "weights.pt", "none": None}, []),
        ({"weights": "/home/ada/w.pt"}, ["weights"]),
        ({"weights": "~/w.pt"}, ["weights"]),
        ({"weights": "C:\\w.pt"}, ["weights"]),
        ({"weights": "file:///w.pt"}, ["weights"]),
        ({"url": "https://ada:pass@example.org/w"}, ["url"]),
        ({"hub_token": "hf_x"}, ["hub_token"]),
        ({"password": 1234}, ["password"]),
        ({"key": "-----BEGIN PRIVATE KEY-----"}, ["key"]),
        ({"weights": " /home/ada/w.pt"}, ["weights"]),
        ({"share": {"/home/ada/w.pt": 0.5}}, ["share"]),
        ({"hub": "hf_" + "x" * 34}, ["hub"]),
        ({"log": {"to": "AKIA" + "WIDE" * 4}}, ["log.to"]),
        ({"encoder": {"init_args": {"layers": [1, "/data/x"]}}}, ["encoder.init_args.layers.1"]),
    ],
)
def test_credentials_and_places_of_this_machine_stay(arguments: dict[str, Any], left: list[str]) -> None:
    shown, names = without_private(arguments)
    assert names == left
    assert (shown == arguments) is not left or shown != arguments
    for text in ("ada", "hf_x", "1234", "BEGIN", "/data", "w.pt", "AKIA"):
        assert not left or text not in str(shown)
