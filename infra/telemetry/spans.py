"""Sends spans to an OpenTelemetry collector, by its own SDK as `OTEL_*` configures it.

A span is made when it has ended, from times that are known then, so nothing is open while ranks train. The SDK's
provider is not made the process's: other libraries in it, such as Prefect, would send what they know of parameters.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from infra.telemetry.trace_context import Context, new_context

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

# The end of a run waits so long for the last spans to be sent.
CLOSE_S = 5.0
SERVICE = "trainwright"
_LAST_S = 1.8e10
log = logging.getLogger("trainwright")
Attributes = Mapping[str, str | int | float]


class Spans:
    """Sends one process's spans, in a thread of the SDK's.

    Args:
        exporter: sends them; None: OTLP over HTTP, as the environment says.
    """

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        # The SDK logs each attempt; a collector that is away is told once, by us.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(_warning_once(exporter))

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


def _warning_once(exporter: SpanExporter | None) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExporter as Base
    from opentelemetry.sdk.trace.export import SpanExportResult

    sends = exporter or OTLPSpanExporter()

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
