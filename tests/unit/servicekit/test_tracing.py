"""Calls that are part of a trace are recorded at every role, under the caller's span; other calls cost nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from kshare_core.tracing import current_traceparent, is_sampled
from kshare_rpc.generated.kshare.v1 import leader_pb2, share_coordinator_pb2
from kshare_rpc.generated.methods import LEADER, SHARE_ACKNOWLEDGE, SHARE_COORDINATOR, WRITE_SHARE_GROUP_STATE
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import CallFailed, Service
from kshare_servicekit import logs
from kshare_servicekit.tracing import OpenTelemetryTracer, collector_tracer
from support.environment.certificates import Authority
from support.servicekit.trace_collector import TraceCollector

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PARENT, True),
        (f"00-{TRACE}-b7ad6b7169203331-00", False),
        (f"00-{TRACE}-b7ad6b7169203331-03", True),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"01-{TRACE}-b7ad6b7169203331-01", False),
        (f"00-{TRACE}-b7ad6b7169203331-0x", False),
        (PARENT.upper(), False),
        (f"00-{TRACE}-B7AD6B7169203331-01", False),
        (f"00-{TRACE}-b7ad6b7169_03331-01", False),
        (f"00-{TRACE}-b7ad6b7169203331-0B", False),
        (PARENT + "\n", False),
        ("", False),
        ("x" * 55, False),
    ],
)
def test_what_counts_as_a_sampled_trace(text: str, expected: bool) -> None:
    assert is_sampled(text) is expected


class Roles:
    """A leader that calls a share coordinator, each with a tracer of its own that keeps its spans."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.exporters = {role: InMemorySpanExporter() for role in ("leader", "share-coordinator")}
        self._tracers = {
            role: OpenTelemetryTracer(role=role, node_id=1, ratio=0.0, processor=SimpleSpanProcessor(exporter))
            for role, exporter in self.exporters.items()
        }
        self._networks = {role: GrpcNetwork(tracer=tracer) for role, tracer in self._tracers.items()}
        self.seen: list[str] = []

    async def acknowledge(self, traceparent: str) -> None:
        """One ShareAcknowledge from a caller in this trace."""

        async def write(
            request: share_coordinator_pb2.WriteShareGroupStateRequest, payload: memoryview
        ) -> share_coordinator_pb2.WriteShareGroupStateResponse:
            if self.fails:
                raise RuntimeError("the disk is gone")
            self.seen.append(current_traceparent.get())
            return share_coordinator_pb2.WriteShareGroupStateResponse()

        share_coordinators = await self._networks["share-coordinator"].serve(
            "127.0.0.1:0", [Service(SHARE_COORDINATOR, {WRITE_SHARE_GROUP_STATE: write})]
        )
        to_share_coordinator = self._networks["leader"].connect(share_coordinators.address)

        async def share_acknowledge(
            request: leader_pb2.ShareAcknowledgeRequest, payload: memoryview
        ) -> leader_pb2.ShareAcknowledgeResponse:
            message = share_coordinator_pb2.WriteShareGroupStateRequest()
            await to_share_coordinator.call(WRITE_SHARE_GROUP_STATE, message, timeout_ms=10_000)
            return leader_pb2.ShareAcknowledgeResponse()

        leaders = await self._networks["leader"].serve(
            "127.0.0.1:0", [Service(LEADER, {SHARE_ACKNOWLEDGE: share_acknowledge})]
        )
        to_leader = GrpcNetwork().connect(leaders.address)
        current_traceparent.set(traceparent)
        try:
            await to_leader.call(SHARE_ACKNOWLEDGE, leader_pb2.ShareAcknowledgeRequest(), timeout_ms=10_000)
        finally:
            current_traceparent.set("")
            for part in (to_leader, to_share_coordinator):
                await part.close()
            for server in (leaders, share_coordinators):
                await server.stop(0)

    def spans(self, role: str) -> list[ReadableSpan]:
        return list(self.exporters[role].get_finished_spans())


def test_a_trace_goes_through_all_roles() -> None:
    roles = Roles()
    asyncio.run(roles.acknowledge(PARENT))
    (at_leader,), (at_share_coordinator,) = roles.spans("leader"), roles.spans("share-coordinator")
    assert at_leader.name == "Leader/ShareAcknowledge"
    assert at_share_coordinator.name == "ShareCoordinator/WriteShareGroupState"
    for span in (at_leader, at_share_coordinator):
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == TRACE
    assert at_leader.parent is not None
    assert f"{at_leader.parent.span_id:016x}" == "b7ad6b7169203331"
    assert at_share_coordinator.parent is not None and at_leader.context is not None
    assert at_share_coordinator.parent.span_id == at_leader.context.span_id
    assert at_share_coordinator.resource.attributes["service.name"] == "kshare-share-coordinator"
    assert at_share_coordinator.attributes is not None
    assert at_share_coordinator.attributes["rpc.method"] == "WriteShareGroupState"
    assert roles.seen[0].split("-")[1] == TRACE


def test_a_failed_call_is_an_error_of_its_span() -> None:
    roles = Roles(fails=True)
    with pytest.raises(CallFailed):
        asyncio.run(roles.acknowledge(PARENT))
    (span,) = roles.spans("share-coordinator")
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "RuntimeError: the disk is gone"


@pytest.mark.parametrize("traceparent", ["", f"00-{TRACE}-b7ad6b7169203331-00"])
def test_what_is_not_sampled_is_not_recorded(traceparent: str) -> None:
    roles = Roles()
    asyncio.run(roles.acknowledge(traceparent))
    assert roles.spans("leader") == roles.spans("share-coordinator") == []
    assert roles.seen == [""]


@pytest.mark.parametrize(("ratio", "recorded"), [(0.0, False), (1.0, True)])
def test_traces_that_begin_here_are_sampled(ratio: float, recorded: bool) -> None:
    exporter = InMemorySpanExporter()
    tracer = OpenTelemetryTracer(role="gateway", node_id=1, ratio=ratio, processor=SimpleSpanProcessor(exporter))
    span = tracer.begin("ShareFetch", {"messaging.system": "kafka"}, links=[PARENT, "no traceparent"])
    assert (span is not None) is recorded
    if span is not None:
        assert is_sampled(span.traceparent)
        span.add({"messaging.batch.message_count": 3})
        span.end()
        (found,) = exporter.get_finished_spans()
        assert [f"{link.context.trace_id:032x}" for link in found.links] == [TRACE]
        assert found.attributes is not None
        assert found.attributes["messaging.batch.message_count"] == 3


def test_log_lines_of_traced_work_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:], logging.getLogger().level
    logs.configure(role="leader", node_id=1, log_format="json")
    token = current_traceparent.set(PARENT)
    try:
        logging.getLogger("a library").warning("slow")
        current_traceparent.set("")
        logging.getLogger("a library").warning("quiet")
    finally:
        current_traceparent.reset(token)
        logging.getLogger().handlers[:], level = before
        logging.getLogger().setLevel(level)
    slow, quiet = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (slow["trace_id"], slow["span_id"]) == (TRACE, "b7ad6b7169203331")
    assert "trace_id" not in quiet


@pytest.mark.parametrize("knows_authority", [True, False])
def test_spans_reach_a_receiver_by_tls_with_headers(
    knows_authority: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenTelemetry's own variables name the authorities and headers; a receiver of another authority gets nothing."""
    authority = Authority("collector")
    issued = authority.issue("localhost", names=["localhost"])
    pair = (issued.key_pem().encode(), issued.certificate_pem.encode())
    (authority if knows_authority else Authority("another")).write(tmp_path / "ca.pem")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token,tenant=orders")
    with TraceCollector(grpc.ssl_server_credentials([pair])) as collector:
        assert collector.endpoint.startswith("https://localhost:")
        tracer = collector_tracer(role="leader", node_id=1, endpoint=collector.endpoint, ratio=1.0)
        span = tracer.begin("Leader/ShareFetch", {"group": "workers"}, parent=PARENT)
        assert span is not None
        span.end()
        tracer.shutdown()
        if not knows_authority:
            assert collector.headers == []
            return
        (found,) = collector.wait_for(lambda spans: len(spans) == 1)
        assert (found.service, found.trace_id) == ("kshare-leader", TRACE)
        (headers,) = collector.headers
        assert headers["authorization"] == "Bearer token" and headers["tenant"] == "orders"
