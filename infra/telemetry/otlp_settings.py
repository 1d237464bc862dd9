"""What OpenTelemetry's own variables ask for, checked before the SDK reads them: it would ignore what is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from data_contracts.errors import UsageError

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_OTLP = "OTEL_EXPORTER_OTLP_"
_PAIRS = re.compile(r"\s*(?:[^\s=,;]+\s*=[^,]*(?:,\s*[^\s=,;]+\s*=[^,]*)*,?)?\s*")
_SAMPLERS = ("always_on", "always_off", "traceidratio")


def traces_asked(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether spans are to be sent: there is an endpoint, and nothing switches them off."""
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    none = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"
    return bool(_of(environ, "ENDPOINT")) and not off and not none


def check_otlp(environ: Mapping[str, str] = os.environ) -> None:
    """UsageError that names the variable that is malformed; its value may hold a secret and is not repeated."""
    if not traces_asked(environ):
        return
    for name, fine, wanted in _CHECKS:
        for variable in (f"{_OTLP}{name}", f"{_OTLP}TRACES_{name}") if name[:5] != "OTEL_" else (name,):
            value = environ.get(variable, "").strip()
            if value and not fine(value):
                raise UsageError(f"{variable} is not {wanted}.")


def _of(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(f"{_OTLP}TRACES_{name}") or environ.get(f"{_OTLP}{name}") or "").strip()


def is_url(text: str) -> bool:
    """Whether a text is an address of HTTP with a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def _is_positive(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII) is not None and float(text) > 0


def _is_share(text: str) -> bool:
    return re.fullmatch(r"\d*\.?\d+(e-?\d+)?", text, re.ASCII) is not None and float(text) <= 1


# Name after OTEL_EXPORTER_OTLP_ (and OTEL_EXPORTER_OTLP_TRACES_), or the whole name; whether a value is fine; what it
# has to be.
_CHECKS: tuple[tuple[str, Callable[[str], bool], str], ...] = (
    ("ENDPOINT", is_url, "a URL such as http://collector:4318"),
    ("PROTOCOL", lambda text: text == "http/protobuf", "http/protobuf, which is all that Trainwright sends"),
    ("HEADERS", lambda text: _PAIRS.fullmatch(text) is not None, "a list such as name=value,name=value"),
    ("TIMEOUT", _is_positive, "a number above 0"),
    ("COMPRESSION", lambda text: text in ("none", "gzip", "deflate"), "none, gzip or deflate"),
    ("CERTIFICATE", lambda text: Path(text).is_file(), "a file that is there"),
    ("CLIENT_KEY", lambda text: Path(text).is_file(), "a file that is there"),
    ("CLIENT_CERTIFICATE", lambda text: Path(text).is_file(), "a file that is there"),
    ("OTEL_TRACES_EXPORTER", lambda text: text in ("otlp", "none"), "otlp or none"),
    (
        "OTEL_RESOURCE_ATTRIBUTES",
        lambda text: _PAIRS.fullmatch(text) is not None,
        "a list such as name=value,name=value",
    ),
    (
        "OTEL_TRACES_SAMPLER",
        lambda text: text.removeprefix("parentbased_") in _SAMPLERS,
        "one of OpenTelemetry's samplers, such as parentbased_traceidratio",
    ),
    ("OTEL_TRACES_SAMPLER_ARG", _is_share, "a share between 0 and 1"),
)
