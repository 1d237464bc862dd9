"""Spans for an OpenTelemetry collector, by its own SDK, and what the operator asks for in the environment.

The endpoint and the protocol are checked before the SDK reads them: it would ignore what is wrong. A span is made when
it has ended, from times that are known then, so nothing is open while ranks train. The SDK's provider is not made the
process's: other libraries in it, such as Prefect, would send what they know of parameters.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from data_contracts.errors import UsageError
from infra.files import locked, replace_private
from infra.settings import state_folder
from infra.telemetry import Context, new_context

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext


log = logging.getLogger("trainwright")
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_OTLP = "OTEL_EXPORTER_OTLP_"
PROTOCOL = "http/protobuf"
# A port such as `9400`, or a range such as `9400-9409` of which the first free one is taken.
METRICS_PORT = "TRAINWRIGHT_METRICS_PORT"
# The address that the port is opened on; by default loopback.
METRICS_ADDRESS = "TRAINWRIGHT_METRICS_ADDRESS"
# The file with the secret that a scrape must show; by default `metrics-token` in the state folder, made if absent.
METRICS_TOKEN_FILE = "TRAINWRIGHT_METRICS_TOKEN_FILE"
# The URL of a Pushgateway.
METRICS_PUSH = "TRAINWRIGHT_METRICS_PUSH"
LOOPBACK = "127.0.0.1"
_LEAST_TOKEN = 16
# The end of a run waits so long for the last spans to be sent.
CLOSE_S = 5.0
SERVICE = "trainwright"
_LAST_S = 1.8e10
Attributes = Mapping[str, str | int | float]


def traces_asked(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether spans are to be sent: there is an endpoint, and nothing switches them off."""
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    none = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"
    return bool(_of(environ, "ENDPOINT")) and not off and not none


def check_otlp(environ: Mapping[str, str] = os.environ) -> None:
    """UsageError that names the variable that is malformed; its value may hold a secret and is not repeated."""
    if not traces_asked(environ):
        return
    if not is_url(_of(environ, "ENDPOINT")):
        raise UsageError(f"{ENDPOINT} is not a URL such as http://collector:4318.")
    if (_of(environ, "PROTOCOL") or PROTOCOL) != PROTOCOL:
        raise UsageError(f"{_OTLP}PROTOCOL is not {PROTOCOL}, which is all that Trainwright sends.")


def _of(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(f"{_OTLP}TRACES_{name}") or environ.get(f"{_OTLP}{name}") or "").strip()


def is_url(text: str) -> bool:
    """Whether a text is an address of HTTP with a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


@dataclass(frozen=True)
class MetricsSettings:
    """Where a process's metrics go.

    Attributes:
        ports: to try in order; empty: they are not pulled.
        push: URL of a Pushgateway; "": they are not pushed.
    """

    ports: tuple[int, ...] = ()
    address: str = LOOPBACK
    push: str = ""

    @property
    def is_wanted(self) -> bool:
        """Whether anybody wants them."""
        return bool(self.ports or self.push)


def metrics_settings(environ: Mapping[str, str] = os.environ) -> MetricsSettings:
    """The settings in the environment; UsageError that names the variable that is wrong."""
    ports = _ports(environ.get(METRICS_PORT, "").strip())
    push = environ.get(METRICS_PUSH, "").strip().rstrip("/")
    if push and not is_url(push):
        raise UsageError(f"{METRICS_PUSH} is not a URL such as http://gateway:9091.")
    if "@" in urlsplit(push).netloc or urlsplit(push).query:
        raise UsageError(
            f"{METRICS_PUSH} holds a password or a query, which logs would show.",
            remedy=f"Leave it out: the secret in {METRICS_TOKEN_FILE} is sent as a bearer token.",
        )
    return MetricsSettings(ports, environ.get(METRICS_ADDRESS, "").strip() or LOOPBACK, push)


def metrics_token(environ: Mapping[str, str] = os.environ) -> str:
    """The secret of this user's metrics, made if there is none; UsageError if others may have read it."""
    named = environ.get(METRICS_TOKEN_FILE)
    path = Path(named) if named else state_folder() / "metrics-token"
    if not named:
        with locked(path.parent):  # of two processes at once, both have the same secret
            if not path.exists():
                replace_private(path, f"{secrets.token_urlsafe(32)}\n")
    try:
        with path.open() as file:
            mode, token = stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"The secret of the metrics cannot be read from {path}.", remedy=f"Correct {METRICS_TOKEN_FILE}."
        ) from error
    if mode & 0o077:
        raise UsageError(
            f"Other users of this machine may have read the secret of the metrics in {path} (its mode is {mode:04o}).",
            remedy="Write a new secret into it, with mode 0600, and give it to Prometheus.",
        )
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"The secret of the metrics in {path} is not one word of at least {_LEAST_TOKEN} ASCII characters.",
            remedy="Delete the file and a secret is made, or write one of random characters into it.",
        )
    return token


def _ports(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text, re.ASCII)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last <= 65_535:
        raise UsageError(f"{METRICS_PORT} is not a port such as 9400, nor a range such as 9400-9409.")
    return tuple(range(first, last + 1))


class Spans:
    """Sends one process's spans, in a thread of the SDK's, by OTLP over HTTP, as the environment says."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        # The SDK logs each attempt; a collector that is away is told once, by us.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(_warning_once())

    def root(self, name: str, parent: Context | None) -> Context:
        """The context of a process's first span, below `parent`; the sampler decides for all spans below it."""
        from opentelemetry import trace

        begun = new_context()
        context = begun if parent is None else Context(parent.trace, begun.span)
        above = None if parent is None else trace.set_span_in_context(trace.NonRecordingSpan(_span_context(parent)))
        sampling = self._provider.sampler.should_sample(above, int(context.trace, 16), name)
        return Context(context.trace, context.span, sampling.decision.is_sampled())

    def ended(
        self,
        name: str,
        context: Context,
        parent: Context | None,
        times: tuple[float, float],
        attributes: Attributes,
        *,
        error: str = "",
        server: bool = False,
    ) -> None:
        """Send a span that has ended, if its trace is sampled.

        Args:
            times: its start and end, in seconds since the epoch.
            error: the cause of its failure; "" if it did not fail.
            server: whether it is the first of a request to this process, as a pipeline's run is.
        """
        if not context.sampled:
            return
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanKind, Status, StatusCode

        # A message of a node may have any number; OTLP's nanoseconds end in the year 2554.
        began, ended = (round(min(max(at, 0.0), _LAST_S) * 1e9) for at in times)
        span = ReadableSpan(
            name,
            context=_span_context(context),
            parent=None if parent is None else _span_context(parent),
            resource=self._provider.resource,
            attributes={**attributes, **({"error.type": error} if error else {})},
            kind=SpanKind.SERVER if server else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR) if error else Status(),
            start_time=began,
            end_time=max(ended, began),
            instrumentation_scope=InstrumentationScope(SERVICE),
        )
        self._processor.on_end(span)

    def close(self) -> None:
        """Send what is left, within CLOSE_S."""
        thread = threading.Thread(target=self._processor.shutdown, name="spans", daemon=True)
        thread.start()
        thread.join(CLOSE_S)


def _resource() -> Any:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    found = Resource.create()  # with OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME
    unnamed = str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return found.merge(Resource({SERVICE_NAME: SERVICE})) if unnamed else found


def _span_context(context: Context) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(int(context.trace, 16), int(context.span, 16), is_remote=False, trace_flags=flags)


def _warning_once() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExporter as Base
    from opentelemetry.sdk.trace.export import SpanExportResult

    sends = OTLPSpanExporter()

    class _Once(Base):
        warned = False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = sends.export(spans)
            if result is not SpanExportResult.SUCCESS and not self.warned:
                self.warned = True
                log.warning("The collector of OTEL_EXPORTER_OTLP_ENDPOINT takes no spans; the run continues without.")
            return result

        def shutdown(self) -> None:
            sends.shutdown()

    return _Once()
