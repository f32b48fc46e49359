"""ShareFetch (key 78), versions 1 and 2; sessions in `sessions`, leaders in `share.fetching`.

The first response of a session (epoch 0) names every partition whose leader looked for records, with empty records if
there are none; some clients wait for them. So does the next response after a partition joined later, or had an error.
Otherwise a response has only partitions with records, errors or acknowledgements (ShareSessionContext of Kafka). It has
every acknowledged partition, because librdkafka treats a missing one as INVALID_RECORD_STATE.

The same topic may be listed several times. The final epoch (-1) processes acknowledgements, then releases the member's
records, then answers. A request with IsRenewAck (version 2) must have maxBytes, minBytes, maxRecords and maxWait 0 and
fetches nothing. If the session table is full, the client gets the error after its maxWait, as in Kafka, to avoid a
tight retry loop. So it does when the leaders have no room for the partitions of a session that opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.security.acls import Operation
from kshare_gateway.gateway import bounded_wait_ms
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_group
from kshare_gateway.served_apis import ResponseSize, serve
from kshare_gateway.share.answers import LeaderAnswer, PartitionAnswer
from kshare_gateway.share.error_back_off import LONGEST_PAUSE_MS
from kshare_gateway.share.fetching import FetchTerms
from kshare_gateway.share.requests import (
    Acknowledgements,
    LeaderHints,
    add_acknowledgements,
    by_topic,
    close_session,
    denied_fetches,
    lock_timeout_ms,
    merged,
    session_key,
    take_denied_acknowledgements,
)
from kshare_gateway.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, ListedPartition, ShareSession, ShareSessionKey
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.share_fetch import ShareFetchRequest
from kshare_wire.generated.responses.share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchResponse,
)

ACQUIRE_MODES = (0, 1)
"""batch_optimized and record_limit (KIP-1206)."""
FIRST_VERSION_WHERE_ACKNOWLEDGED_JOINS = 2
"""Of clients other than Java's; see `sessions`."""
JAVA_CLIENT = "apache-kafka-java"
"""The name that it gives itself in ApiVersions."""


async def handle(context: RequestContext, request: ShareFetchRequest) -> ShareFetchResponse:
    began = asyncio.get_running_loop().time()
    key = session_key(context, request)
    if request.is_renew_ack:
        _check_renewal(request)
    if request.share_acquire_mode not in ACQUIRE_MODES:
        text = f"ShareAcquireMode is {request.share_acquire_mode}; 0 (batch_optimized) and 1 (record_limit) are allowed"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    listed, acknowledgements = _read_topics(context, request)
    sessions = context.gateway.sessions
    denied = take_denied_acknowledgements(context, acknowledgements)
    if request.share_session_epoch == FINAL_EPOCH:
        session = sessions.expect(key, context.connection_id)
        answers = await context.share_fetcher.acknowledge(session, acknowledgements, is_renew_ack=request.is_renew_ack)
        await close_session(context, key)
        return _body(context, key, answers, [*merged(answers), *denied])
    session = await _session(context, request, key, listed, acknowledgements)
    fetched = [] if request.is_renew_ack else session.rotated()
    unreadable = denied_fetches(context, fetched)
    if unreadable:
        denied += unreadable
        refused = {answer.key for answer in unreadable}
        fetched = [key for key in fetched if key not in refused]
    terms = _terms(request, context.gateway.configs.integer("fetch.max.bytes"), context.client_id)
    if any(answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID for answer in unreadable):
        # The client asks again for a topic that this gateway may know in a moment: others' records wait no longer.
        terms.max_wait_ms = min(terms.max_wait_ms, LONGEST_PAUSE_MS)
    first: list[LeaderAnswer] = []
    if fetched and terms.max_bytes > 0:
        room = context.reserve_at_once(terms.max_bytes, expected_bytes=terms.min_bytes)
        if not room:  # acknowledgements do not wait for it: their records' locks are running
            if acknowledgements:
                first = await context.share_fetcher.acknowledge(session, acknowledgements, is_renew_ack=False)
                acknowledgements = {}
            room = await context.reserve_answer(terms.max_bytes, expected_bytes=terms.min_bytes)
        terms.max_bytes = min(terms.max_bytes, room)
    opens = request.share_session_epoch == INITIAL_EPOCH
    answers = [
        *first,
        *await context.share_fetcher.fetch(
            session,
            terms,
            fetched,
            acknowledgements,
            account=context.account,
            is_first=opens,
            is_whole=not unreadable,
        ),
    ]
    found = merged([*answers, LeaderAnswer("", denied)]) if denied else merged(answers)
    if opens and any(answer.has_no_room for answer in answers) and all(entry.error_code for entry in found):
        await close_session(context, key)
        await asyncio.sleep(max(0.0, began + terms.max_wait_ms / 1000 - asyncio.get_running_loop().time()))
        raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, str(found[0].error_message))
    named = _named(session, found, fetched if opens and _may_acquire(request) else ())
    return _body(context, key, answers, named)


async def _session(
    context: RequestContext,
    request: ShareFetchRequest,
    key: ShareSessionKey,
    listed: list[ListedPartition],
    acknowledgements: Acknowledgements,
) -> ShareSession:
    sessions = context.gateway.sessions
    if request.share_session_epoch != INITIAL_EPOCH:
        forgotten = [
            TopicPartition(topic.topic_id, partition)
            for topic in request.forgotten_topics_data
            for partition in topic.partitions
        ]
        return sessions.update(key, request.share_session_epoch, listed, forgotten, context.connection_id)
    try:
        session, replaced = sessions.open(
            key, context.connection_id, listed, has_acknowledgements=any(acknowledgements.values())
        )
    except KafkaError as error:
        if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            await asyncio.sleep(bounded_wait_ms(request.max_wait_ms) / 1000)
        raise
    if replaced is not None and replaced.connection_id == context.connection_id:
        context.share_fetcher.inherit(replaced, session)
    elif replaced is not None:
        # Its connection is probably lost; its records must be free before this session acquires under the same name.
        await context.share_fetcher.release(replaced)
    return session


def _read_topics(context: RequestContext, request: ShareFetchRequest) -> tuple[list[ListedPartition], Acknowledgements]:
    listed: list[ListedPartition] = []
    acknowledgements: Acknowledgements = {}
    is_java = context.software.name == JAVA_CLIENT
    for topic in request.topics:
        for entry in topic.partitions:
            key = TopicPartition(topic.topic_id, entry.partition_index)
            batches = entry.acknowledgement_batches
            joins = not batches or context.version >= FIRST_VERSION_WHERE_ACKNOWLEDGED_JOINS or is_java
            listed.append(ListedPartition(key, joins))
            if batches:
                add_acknowledgements(acknowledgements, key, batches)
    return listed, acknowledgements


def _check_renewal(request: ShareFetchRequest) -> None:
    for name in ("max_bytes", "min_bytes", "max_records", "max_wait_ms"):
        if getattr(request, name):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A ShareFetch with IsRenewAck must have {name} 0; it has {getattr(request, name)}",
            )


def _terms(request: ShareFetchRequest, maximum_bytes: int, client_id: str) -> FetchTerms:
    return FetchTerms(
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=min(request.max_bytes, maximum_bytes),
        max_records=request.max_records,
        batch_size=request.batch_size,
        share_acquire_mode=request.share_acquire_mode,
        is_renew_ack=request.is_renew_ack,
        client_id=client_id,
    )


def _may_acquire(request: ShareFetchRequest) -> bool:
    return bool(request.max_records > 0 and request.max_bytes > 0)


def _named(
    session: ShareSession, found: list[PartitionAnswer], opened: Sequence[TopicPartition]
) -> list[PartitionAnswer]:
    """The partitions that the response names; `opened`: the session's first partitions, if this is its first response.

    Partitions whose leader was not asked, because another one had records, are named too.
    """
    unnamed = session.unnamed
    named = []
    for partition in found:
        if partition.says_something or (partition.is_acquirable and (opened or partition.key in unnamed)):
            named.append(partition)
            unnamed.pop(partition.key, None)
        if partition.error_code and not opened and partition.key in session.partitions:
            unnamed[partition.key] = None
    if opened:
        asked = {partition.key for partition in found}
        named.extend(PartitionAnswer(key) for key in opened if key not in asked and key in session.partitions)
    return named


def _body(
    context: RequestContext, key: ShareSessionKey, answers: list[LeaderAnswer], named: list[PartitionAnswer]
) -> ShareFetchResponse:
    hints = LeaderHints(context)
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=lock_timeout_ms(context, key.group_id, answers),
        responses=[
            ShareFetchableTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in by_topic(
                (partition.key.topic_id, _partition(partition, hints)) for partition in named
            )
        ],
        node_endpoints=[
            NodeEndpoint(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in hints.node_endpoints()
        ],
    )


def _partition(answer: PartitionAnswer, hints: LeaderHints) -> PartitionData:
    leader = hints.current_leader(answer.key, answer.error_code, answer.acknowledge_error_code)
    return PartitionData(
        partition_index=answer.key.partition,
        error_code=answer.error_code,
        error_message=answer.error_message,
        acknowledge_error_code=answer.acknowledge_error_code,
        acknowledge_error_message=answer.acknowledge_error_message,
        current_leader=LeaderIdAndEpoch(leader_id=leader.leader_id, leader_epoch=leader.leader_epoch),
        records=answer.records,
        acquired_records=[
            AcquiredRecords(
                first_offset=run.first_offset,
                last_offset=run.last_offset,
                delivery_count=run.delivery_count,
            )
            for run in answer.acquired
        ],
    )


serve(
    ShareFetchRequest,
    ShareFetchResponse,
    VersionRange(1, 2),
    access=on_group(Operation.READ, by_handler="Read on the topics of the session"),
    handle=handle,
    size=ResponseSize.RECORDS,
)
