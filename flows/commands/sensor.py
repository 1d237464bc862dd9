"""`sensor`: look whether data has arrived, or set the cursor of a pipeline's sensor."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from data_contracts.load import load_spec
from flows.commands.guard import Answer
from tasks.run.run import open_spec_store
from tasks.schedules.sensors import sensor_of


def sensor(arguments: argparse.Namespace) -> Answer:
    """The `sensor` command: says what a look sees, and starts nothing; with `--reset`, sets the cursor."""
    path = Path(arguments.spec).resolve()
    spec = load_spec(path, arguments.set)
    watched = sensor_of(spec, path.parent, open_spec_store(spec, path.parent, arguments.store))
    if arguments.reset is not None:
        said = watched.reset(arguments.reset)
        return Answer(said, {"reset": arguments.reset, "sentence": said})
    look = watched.look()
    return Answer(look.sentence, asdict(look))
