"""A client that forges requests to share groups: epochs and member ids that are not its own, and acknowledgements of
records that it was never given.

Each must get Kafka's error, and change nothing. The first is judged here; the second by the rules: a record that a
forged acknowledgement ended is skipped by its group, one that it released gets a second holder, and success is only
allowed for a record below the start offset (`rules.acknowledgements`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.share_acknowledge.v2 import request as acknowledge_request
from kio.schema.share_acknowledge.v2 import response as acknowledge_response
from kio.schema.share_fetch.v2 import request as fetch_request
from kio.schema.share_fetch.v2 import response as fetch_response
from kio.schema.share_group_heartbeat.v1 import request as heartbeat_request
from kio.schema.share_group_heartbeat.v1 import response as heartbeat_response

from kshare_core.errors import ErrorCode
from kshare_core.states import AcknowledgeType
from support.simulation.connections import ConnectionLost
from support.simulation.history import Acquired, Delivered, ForgeryAnswered, Run
from support.simulation.kafka_clients.member import ShareMember
from support.simulation.kafka_clients.protocol import milliseconds
from support.simulation.kafka_clients.session import ClusterClient, TopicMetadata

FORGED_EPOCH = 1_000_000
FORGER = "a-member-that-never-was"
WITHOUT_SESSION = "a-member-without-a-session"
UNKNOWN_TYPE = 7
FAR_AHEAD = 1_000_000
RECENT_EVENTS = 400

NOT_READY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NETWORK_EXCEPTION,
)
"""Any request may be answered so while a role is not there."""


class Forger:
    """See the module's text."""

    def __init__(self, client: ClusterClient, topic: str, metadata: TopicMetadata, partitions: int) -> None:
        self._client = client
        self._topic = topic
        self._topic_id = metadata.topic_id
        self._partitions = partitions
        self.answered = 0
        """Forgeries with an answer."""

    async def forge_at_random(self, members: Mapping[str, Sequence[ShareMember]]) -> None:
        """Until it is cancelled."""
        draw = self._client.random
        while True:
            await asyncio.sleep(0.2 + 2 * draw.random())
            group = draw.choice(list(members))
            member = draw.choice(members[group])
            forge = draw.choice((self._heartbeat, self._use_session, self._acknowledge, self._acknowledge))
            try:
                await forge(group, member)
            except ConnectionLost as problem:
                self._client.note(f"forgery: {problem}")

    def _judge(self, what: str, code: int, *allowed: ErrorCode) -> None:
        self.answered += 1
        if code not in (*allowed, *NOT_READY):
            self._client.bug(f"{what} was answered with {ErrorCode(code).name}")

    async def _heartbeat(self, group: str, member: ShareMember) -> None:
        """Of a member that never was, which wants to go on or to leave; or of one in an epoch that has not come."""
        request_type: Any = heartbeat_request.ShareGroupHeartbeatRequest
        member_id, epoch, allowed = self._client.random.choice(
            (
                (FORGER, 1, (ErrorCode.UNKNOWN_MEMBER_ID,)),
                (FORGER, -1, (ErrorCode.UNKNOWN_MEMBER_ID,)),
                (member.member_id, FORGED_EPOCH, (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)),
            )
        )
        request = request_type(group_id=group, member_id=member_id, member_epoch=epoch, subscribed_topic_names=None)
        answer = await self._client.call_any(request, heartbeat_response.ShareGroupHeartbeatResponse)
        # A group that no member has joined yet is not there.
        self._judge(f"a heartbeat at epoch {epoch}", answer.error_code, *allowed, ErrorCode.GROUP_ID_NOT_FOUND)

    async def _use_session(self, group: str, member: ShareMember) -> None:
        """A fetch in a session of someone else, in an epoch that is not its next one; or in none at all."""
        draw = self._client.random
        addresses = member.session_addresses()
        if not addresses:
            return
        is_known = draw.random() < 0.5
        request = self._fetch_request(group, member.member_id if is_known else WITHOUT_SESSION, FORGED_EPOCH)
        answer = await self._client.at(draw.choice(addresses)).call(request, fetch_response.ShareFetchResponse)
        allowed = (ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        self._judge("a fetch in a forged session", answer.error_code, *allowed[: 2 if is_known else 1])

    async def _acknowledge(self, group: str, member: ShareMember) -> None:
        """In a session of its own: records of others, records that nobody was given, and nonsense."""
        draw = self._client.random
        partition = draw.randrange(self._partitions)
        run, types, is_malformed = self._draw_batch(group, partition)
        metadata = await self._client.metadata(self._topic)
        if metadata is None or partition not in metadata.leaders:
            return
        at = self._client.at(metadata.leaders[partition])
        opened = await at.call(self._fetch_request(group, FORGER, 0), fetch_response.ShareFetchResponse)
        if opened.error_code:
            self._judge("a session without partitions", opened.error_code, ErrorCode.SHARE_SESSION_LIMIT_REACHED)
            return
        sent_at = self._client.now()
        request = self._acknowledge_request(group, partition, run, types)
        answer = await at.call(request, acknowledge_response.ShareAcknowledgeResponse)
        if answer.error_code:
            self._judge("an acknowledgement", answer.error_code, ErrorCode.SHARE_SESSION_NOT_FOUND)
            return
        code = int(answer.responses[0].partitions[0].error_code)
        if is_malformed:
            self._judge(f"a malformed batch {run} of types {types}", code, ErrorCode.INVALID_REQUEST)
            return
        event = ForgeryAnswered(self._client.now(), sent_at, group, FORGER, partition, run, code)
        self._client.history.add(event)
        allowed = (ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST)
        self._judge("an acknowledgement of records of others", code, ErrorCode.NONE, *allowed)

    def _draw_batch(self, group: str, partition: int) -> tuple[Run, tuple[int, ...], bool]:
        """First and last offset, acknowledge types, and whether Kafka refuses it whatever the records are."""
        draw = self._client.random
        accept = int(AcknowledgeType.ACCEPT)
        known = [
            event.run
            for event in self._client.history.events[-RECENT_EVENTS:]
            if isinstance(event, Delivered | Acquired) and (event.group, event.partition) == (group, partition)
        ]
        first, last = draw.choice(known) if known else (FAR_AHEAD, FAR_AHEAD)
        chance = draw.random()
        if chance < 0.1:
            return (first, last), (UNKNOWN_TYPE,), True
        if chance < 0.2:
            return (last + 1, first), (accept,), True
        if chance < 0.3:
            return (first, last), (accept,) * (last - first + 3), True
        if chance < 0.5:
            return (FAR_AHEAD, FAR_AHEAD + 2), (accept,), False
        return (first, last), (draw.choice([accept, int(AcknowledgeType.RELEASE), int(AcknowledgeType.REJECT)]),), False

    def _acknowledge_request(self, group: str, partition: int, run: Run, types: tuple[int, ...]) -> Any:
        module: Any = acknowledge_request
        batch = module.AcknowledgementBatch(first_offset=run[0], last_offset=run[1], acknowledge_types=types)
        part = module.AcknowledgePartition(partition_index=partition, acknowledgement_batches=(batch,))
        return module.ShareAcknowledgeRequest(
            group_id=group,
            member_id=FORGER,
            share_session_epoch=1,
            is_renew_ack=False,
            topics=(module.AcknowledgeTopic(topic_id=self._topic_id, partitions=(part,)),),
        )

    def _fetch_request(self, group: str, member_id: str, epoch: int) -> Any:
        module: Any = fetch_request
        return module.ShareFetchRequest(
            group_id=group,
            member_id=member_id,
            share_session_epoch=epoch,
            max_wait=milliseconds(0),
            min_bytes=0,
            max_bytes=1 << 20,
            max_records=1,
            batch_size=1,
            topics=(),
            forgotten_topics_data=(),
            share_acquire_mode=0,
            is_renew_ack=False,
        )
