"""An ordinary consumer of a topic: it fetches the log of every partition from the start on, while the faults last.

It belongs to no group and remembers where it is. What each Fetch returned is in the history (`LogRead`), and
`rules.log_reads` compares it with the logs at the end. After a Fetch that is out of range, the reader goes on at the
start of the log, which has to be above where it was.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from kio.schema.fetch.v12 import response as fetch_response

from kshare_core.errors import ErrorCode
from support.simulation.connections import ConnectionLost
from support.simulation.history import LogRead
from support.simulation.kafka_clients.admin import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    Admin,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from support.simulation.kafka_clients.forger import NOT_READY
from support.simulation.kafka_clients.protocol import milliseconds, read_part
from support.simulation.kafka_clients.session import ClusterClient

READ_UNCOMMITTED = 0
DAMAGING = ("flipped-bits", "misdirected-reads")
"""Faults after whose begin a Fetch may be answered with CORRUPT_MESSAGE."""
LONGEST_PAUSE_S = 1.0
RETRY_S = 0.3
BYTES = (300, 3_000, 30_000)
"""partition_max_bytes of a Fetch: less than a batch, some batches, and all that there is."""
WAIT_MS = (0, 100, 500)


class LogReader:
    """See the module's text."""

    def __init__(
        self, client: ClusterClient, topic: str, partitions: int, isolation_level: int, draw: random.Random
    ) -> None:
        self._client = client
        self._admin = Admin(client)
        self._topic = topic
        self._isolation_level = isolation_level
        self._draw = draw
        self.positions: dict[int, int | None] = dict.fromkeys(range(partitions))
        """Where it goes on; None: at the start of the log."""

    async def read_at_random(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(LONGEST_PAUSE_S * self._draw.random())
            await self._read(self._draw.choice(list(self.positions)))

    async def catch_up(self, seconds: float) -> str:
        """Reads to the end of each log, as it is now; says which one it did not reach within `seconds`."""
        deadline = self._client.now() + seconds
        for partition in self.positions:
            end = await self._admin.offset(self._topic, partition, LATEST)
            while (position := self.positions[partition]) is None or position < end:
                if self._client.now() >= deadline:
                    return f"{self._client.host} is at {position} of {end} of partition {partition}"
                if not await self._read(partition):
                    await asyncio.sleep(RETRY_S)
        return ""

    async def _read(self, partition: int) -> bool:
        """One Fetch; whether it returned records."""
        client, position = self._client, self.positions[partition]
        if position is None:
            position = self.positions[partition] = await self._admin.offset(self._topic, partition, EARLIEST)
        found = await self._fetch(partition, position)
        if found is None:
            return False
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start = self.positions[partition] = await self._admin.offset(self._topic, partition, EARLIEST)
            if start <= position:
                client.bug(f"a Fetch at {partition}@{position} was out of range, and the log starts at {start}")
            return False
        if found.error_code:
            is_damaged = found.error_code == ErrorCode.CORRUPT_MESSAGE and self._may_be_damaged()
            if found.error_code not in NOT_READY and not is_damaged:
                client.bug(f"a correct Fetch was answered with {ErrorCode(found.error_code).name}")
            return False
        aborted = [(entry.producer_id, entry.first_offset) for entry in found.aborted_transactions or ()]
        part = read_part(bytes(found.records or b""), aborted)
        if part.next_offset <= position:
            return False
        records = tuple((one.offset, one.value, one.committed) for one in part.records if one.offset >= position)
        markers = tuple(offset for offset in part.markers if offset >= position)
        is_committed = self._isolation_level == READ_COMMITTED
        end = self.positions[partition] = part.next_offset
        client.history.add(
            LogRead(client.now(), client.host, is_committed, partition, (position, end - 1), records, markers)
        )
        return True

    def _may_be_damaged(self) -> bool:
        """Whether a disk may have returned wrong bytes to a leader, which it tells the client."""
        return any(name in self._client.history.fault_names for name in DAMAGING)

    async def _fetch(self, partition: int, offset: int) -> Any:
        """The answer for the partition; None where there is none."""
        draw = self._draw
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=draw.choice(BYTES))
        request = FetchRequest(
            max_wait=milliseconds(draw.choice(WAIT_MS)),
            min_bytes=1,
            isolation_level=self._isolation_level,
            topics=(FetchTopic(topic=self._topic, partitions=(wanted,)),),
            forgotten_topics_data=(),
        )
        try:
            metadata = await self._client.metadata(self._topic)
            if metadata is None or partition not in metadata.leaders:
                return None
            at = self._client.at(metadata.leaders[partition])
            answer = await at.call(request, fetch_response.FetchResponse)
        except ConnectionLost:
            return None
        return answer.responses[0].partitions[0] if answer.responses else None
