"""OpenTelemetry spans, sent to a collector by OTLP over gRPC; implements kshare_core.tracing.

Nothing is loaded or recorded unless a process has an endpoint (`--trace-endpoint`). Of traces that begin here, the
share `--trace-ratio` is recorded, sampled by trace id, so that every role and every other service samples the same
ones. A trace that begins elsewhere is recorded if its `traceparent` is sampled. The SDK's own thread sends the spans;
at most 2,048 wait in memory for the collector. Further spans are dropped, and no request ever waits for the collector.

An endpoint that begins with https:// is reached by TLS. OpenTelemetry's own variables say more: the authorities and a
client certificate (OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE, _CLIENT_KEY), headers such as a token
(OTEL_EXPORTER_OTLP_HEADERS), and OTEL_EXPORTER_OTLP_COMPRESSION.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kshare_core.tracing import Attributes, is_sampled

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span, SpanContext

SCOPE = "kshare"
TLS_SCHEME = "https://"
LINKS_LIMIT = 128
"""The maximum of links per span; the SDK's own default."""


class RecordedSpan:
    """A kshare_core.tracing.Span."""

    def __init__(self, span: Span) -> None:
        self._span = span
        context = span.get_span_context()
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def add(self, attributes: Attributes) -> None:
        self._span.set_attributes(dict(attributes))

    def link(self, traceparents: Sequence[str]) -> None:
        for traceparent in traceparents:
            self._span.add_link(_context_of(traceparent))

    def end(self, problem: str = "") -> None:
        from opentelemetry.trace import Status, StatusCode

        if problem:
            self._span.set_status(Status(StatusCode.ERROR, problem))
        self._span.end()


class OpenTelemetryTracer:
    """A kshare_core.tracing.Tracer over spans that `processor` takes."""

    def __init__(self, *, role: str, node_id: int, ratio: float, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        resource = Resource.create(
            {"service.namespace": "kshare", "service.name": f"kshare-{role}", "service.instance.id": str(node_id)}
        )
        self._provider = TracerProvider(
            resource=resource,
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            span_limits=SpanLimits(max_links=LINKS_LIMIT),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(SCOPE)

    def begin(
        self, name: str, attributes: Attributes, *, parent: str = "", links: Sequence[str] = ()
    ) -> RecordedSpan | None:
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, set_span_in_context

        context = Context()
        if is_sampled(parent):
            context = set_span_in_context(NonRecordingSpan(_context_of(parent)), context)
        span = self._tracer.start_span(
            name,
            context=context,
            kind=SpanKind.SERVER,
            attributes=dict(attributes),
            links=[Link(_context_of(link)) for link in links if is_sampled(link)],
        )
        return RecordedSpan(span) if span.is_recording() else None

    def shutdown(self) -> None:
        """Sends the waiting spans; takes no longer than the exporter's time limit."""
        self._provider.shutdown()


def _context_of(traceparent: str) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))


def collector_tracer(*, role: str, node_id: int, endpoint: str, ratio: float) -> OpenTelemetryTracer:
    """A tracer that sends its spans to the OTLP receiver at "host:port", or by TLS at "https://host:port"."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith(TLS_SCHEME), timeout=5)
    processor = BatchSpanProcessor(exporter, max_queue_size=2_048, schedule_delay_millis=1_000)
    return OpenTelemetryTracer(role=role, node_id=node_id, ratio=ratio, processor=processor)
