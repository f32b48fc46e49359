"""A member of a share group that joins, has its partitions initialized by a fetch, and leaves: for administrators.

It asks again until it is answered, with the same member id, so that no member of its is ever left behind.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.share_fetch.v2 import request as fetch_request
from kio.schema.share_fetch.v2 import response as fetch_response
from kio.schema.share_group_heartbeat.v1 import request as heartbeat_request
from kio.schema.share_group_heartbeat.v1 import response as heartbeat_response

from kshare_core.errors import ErrorCode
from support.simulation.connections import ConnectionLost
from support.simulation.kafka_clients.protocol import milliseconds
from support.simulation.kafka_clients.session import ClusterClient

RETRY_S = 0.3
LAST_EPOCH = -1


class ShortLivedMember:
    """See the module's text."""

    def __init__(self, client: ClusterClient, group: str, topic: str, topic_id: Any) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._topic_id = topic_id
        self._member_id = f"member-of-{group}"
        self._epoch = 0
        self.heard_of_at = -1.0
        """When the newest heartbeat that was answered was sent."""

    async def heartbeat(self) -> None:
        """Joins, or goes on."""
        while True:
            sent_at = self._client.now()
            answer = await self._heartbeat(self._epoch, (self._topic,) if self._epoch == 0 else None)
            if answer is not None and answer.error_code == 0:
                self._epoch, self.heard_of_at = answer.member_epoch, sent_at
                return
            if answer is not None and answer.error_code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ):
                self._epoch = 0
            await asyncio.sleep(RETRY_S)

    async def leave(self) -> None:
        while True:
            answer = await self._heartbeat(LAST_EPOCH, None)
            gone = (0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
            if answer is not None and answer.error_code in gone:
                return
            await asyncio.sleep(RETRY_S)

    async def _heartbeat(self, epoch: int, names: Any) -> Any:
        request_type: Any = heartbeat_request.ShareGroupHeartbeatRequest
        request = request_type(
            group_id=self._group, member_id=self._member_id, member_epoch=epoch, subscribed_topic_names=names
        )
        try:
            return await self._client.call_any(request, heartbeat_response.ShareGroupHeartbeatResponse)
        except ConnectionLost:
            return None

    async def fetch_once(self, partition: int) -> None:
        """Opens a share session, fetches, and closes it, which releases what it got; whatever comes of it."""
        try:
            metadata = await self._client.metadata(self._topic)
            if metadata is not None and partition in metadata.leaders:
                at = self._client.at(metadata.leaders[partition])
                for epoch in (0, LAST_EPOCH):
                    await at.call(self._fetch_request(partition, epoch), fetch_response.ShareFetchResponse)
        except ConnectionLost as problem:
            self._client.note(f"fetch of {self._group}: {problem}")

    def _fetch_request(self, partition: int, epoch: int) -> Any:
        module: Any = fetch_request
        named = (module.FetchPartition(partition_index=partition, acknowledgement_batches=()),)
        return module.ShareFetchRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=epoch,
            max_wait=milliseconds(200 if epoch == 0 else 0),
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=1,
            batch_size=1,
            topics=(module.FetchTopic(topic_id=self._topic_id, partitions=named),) if epoch == 0 else (),
            forgotten_topics_data=(),
            share_acquire_mode=0,
            is_renew_ack=False,
        )
