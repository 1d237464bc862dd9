"""Keeps a suite's JSON Schema from reading anything but itself.

The library that Great Expectations uses fetches the address to which a `$ref` leads.
"""

from __future__ import annotations

from typing import Any

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# As drafts before and since 6 write it. A reference within a part that names itself leads to that name.
_NAMES = ("$id", "id")


class ForeignReference(ValueError):
    """A part of a schema leads, or could lead, out of it; the message names the part."""


def local_schema(schema: Any) -> Any:
    """The schema without the name that it gives itself, so that each of its references is looked up in it alone.

    Raises:
        ForeignReference: a reference does not begin with #, or a part of the schema has a name of its own.
    """
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts.extend(part)
        if not isinstance(part, dict):
            continue
        for key, value in part.items():
            if key in _REFERENCES and not (isinstance(value, dict) or str(value).startswith("#")):
                raise ForeignReference(f"its {key} {value!r} leads out of the schema; write the part under $defs")
            if key in _NAMES and isinstance(value, str) and part is not schema:
                raise ForeignReference(f"a part of it has the {key} {value!r}; leave that out")
            parts.append(value)
    if not isinstance(schema, dict):
        return schema
    return {key: value for key, value in schema.items() if not (key in _NAMES and isinstance(value, str))}
