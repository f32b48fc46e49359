"""One trace of one record, from its producer to the confirmed acknowledgement, through all roles."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.clients.delivery import ACCEPT, Reader, batching_producer, new_group, new_topic
from support.clusters.kshare_cluster import KshareCluster
from support.servicekit.trace_collector import CollectedSpan, TraceCollector

TRACE, PRODUCER_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OTHER_TRACE = "a3ce929d0e0e47364bf92f3577b34da6"
FIRST, OTHER = f"00-{TRACE}-{PRODUCER_SPAN}-01", f"00-{OTHER_TRACE}-{PRODUCER_SPAN}-01"


def produce(bootstrap: str, topic: str, *traceparents: str) -> None:
    producer = batching_producer(bootstrap, topic)
    for traceparent in traceparents:
        headers: list[tuple[str, str | bytes | None]] = [("other", b"1")]
        headers += [("traceparent", traceparent.encode())] if traceparent else []
        producer.produce(topic, b"an order", partition=0, headers=headers)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("single_process", [False, True])
@pytest.mark.timeout(120)
def test_one_record_from_its_producer_to_its_confirmed_acknowledgement(tmp_path: Path, single_process: bool) -> None:
    with TraceCollector() as collector:
        variables = {"KSHARE_TRACE_ENDPOINT": collector.endpoint, "KSHARE_TRACE_RATIO": "1"}
        with KshareCluster(tmp_path, variables=variables, single_process=single_process) as cluster:
            topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
            produce(cluster.bootstrap, topic, FIRST)
            with Reader(cluster.bootstrap, group, topic) as reader:
                (message,) = reader.take()
                assert ("traceparent", FIRST.encode()) in message.headers()
                reader.settle(ACCEPT)
            spans = collector.wait_for(
                lambda found: _roles_of(found, TRACE) >= {"gateway", "leader", "share-coordinator"}
            )
    mine = [span for span in spans if span.trace_id == TRACE]
    (acknowledgement,) = [span for span in mine if span.service == "kshare-gateway"]
    assert acknowledgement.name == f"ack {topic}"
    assert acknowledgement.parent_span_id == PRODUCER_SPAN
    assert acknowledgement.attributes["messaging.system"] == "kafka"
    assert acknowledgement.attributes["messaging.operation.type"] == "settle"
    assert acknowledgement.attributes["messaging.consumer.group.name"] == group
    (at_leader,) = [span for span in mine if span.name == "Leader/ShareAcknowledge"]
    assert at_leader.parent_span_id == acknowledgement.span_id
    (at_share_coordinator,) = [span for span in mine if span.name == "ShareCoordinator/WriteShareGroupState"]
    assert at_share_coordinator.parent_span_id == at_leader.span_id
    polls = [span for span in spans if span.name == f"poll {topic}" and TRACE in span.linked_trace_ids]
    assert len(polls) == 1, "the ShareFetch that gave the record out is linked to its trace"
    assert polls[0].service == "kshare-gateway"


@pytest.mark.timeout(120)
def test_records_of_several_traces_are_linked(tmp_path: Path) -> None:
    with TraceCollector() as collector:
        variables = {"KSHARE_TRACE_ENDPOINT": collector.endpoint, "KSHARE_TRACE_RATIO": "1"}
        with KshareCluster(tmp_path, variables=variables) as cluster:
            topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
            produce(cluster.bootstrap, topic, FIRST, "", OTHER, "no traceparent at all")
            with Reader(cluster.bootstrap, group, topic) as reader:
                reader.accept(4)
            spans = collector.wait_for(lambda found: any(span.name == f"ack {topic}" for span in found))
    (acknowledgement,) = [span for span in spans if span.name == f"ack {topic}"]
    assert acknowledgement.trace_id not in (TRACE, OTHER_TRACE)
    assert sorted(acknowledgement.linked_trace_ids) == sorted([TRACE, OTHER_TRACE])


def _roles_of(spans: list[CollectedSpan], trace_id: str) -> set[str]:
    return {span.service.removeprefix("kshare-") for span in spans if span.trace_id == trace_id}
