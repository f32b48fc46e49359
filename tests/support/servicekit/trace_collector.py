"""An OpenTelemetry collector for tests: takes spans by OTLP over gRPC on 127.0.0.1, and keeps them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """Ids in hexadecimal."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_span_id: str
    linked_trace_ids: tuple[str, ...]
    attributes: dict[str, str]


class TraceCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """A context manager; `endpoint` is "host:port", or "https://host:port" with `credentials`."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self.headers: list[dict[str, str]] = []
        """The metadata of each call."""
        self._arrived = threading.Condition()
        self._spans: list[CollectedSpan] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        if credentials is None:
            self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        else:
            self.endpoint = f"https://localhost:{self._server.add_secure_port('127.0.0.1:0', credentials)}"

    def __enter__(self) -> TraceCollector:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(0).wait()

    def Export(self, request: Any, context: Any) -> Any:
        found: list[CollectedSpan] = []
        for resource_spans in request.resource_spans:
            service = _texts(resource_spans.resource.attributes)["service.name"]
            for scope_spans in resource_spans.scope_spans:
                found.extend(_span(service, span) for span in scope_spans.spans)
        with self._arrived:
            self.headers.append({key: str(value) for key, value in context.invocation_metadata()})
            self._spans.extend(found)
            self._arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self) -> list[CollectedSpan]:
        """Those that arrived until now."""
        with self._arrived:
            return list(self._spans)

    def wait_for(self, wanted: Callable[[list[CollectedSpan]], bool]) -> list[CollectedSpan]:
        """All spans, once they are what is wanted; AssertionError after the time."""
        deadline = time.monotonic() + TIMEOUT_S
        with self._arrived:
            while not wanted(self._spans):
                remaining = deadline - time.monotonic()
                assert remaining > 0, [(span.service, span.name, span.trace_id) for span in self._spans]
                self._arrived.wait(remaining)
            return list(self._spans)


def _span(service: str, span: Any) -> CollectedSpan:
    return CollectedSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        linked_trace_ids=tuple(link.trace_id.hex() for link in span.links),
        attributes=_texts(span.attributes),
    )


def _texts(attributes: Any) -> dict[str, str]:
    return {entry.key: entry.value.string_value or str(entry.value.int_value) for entry in attributes}
