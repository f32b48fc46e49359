"""The consumer groups of a history: one of each protocol, beside the share groups, on the same topic.

Members die, vanish from the network, leave and join, and impostors commit under epochs and member ids that are not
theirs. In some histories members commit some offsets in transactions. After the faults every partition of every group
gets a confirmed commit within `GOES_ON_WITHIN_S`.
"""

from __future__ import annotations

import asyncio
import random

from kshare_core.errors import ErrorCode
from support.simulation.cluster import Cluster
from support.simulation.evidence import Violation
from support.simulation.kafka_clients.consumer import PROTOCOLS, TRANSIENT, CommittedOffsets, ConsumerMember
from support.simulation.kafka_clients.offset_transactions import OffsetTransactions
from support.simulation.kafka_clients.session import TopicMetadata

MEMBERS = 2
GOES_ON_WITHIN_S = 60.0
FORGED_OFFSET = 1_000_000
FORGED_PROBABILITY = 0.4
FORGED_CODES = {
    "classic": (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION),
    "new": (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH),
}
"""Kafka's answers to an unknown member, and to an epoch that is not the member's."""


class ConsumerGroups:
    """See the module's text."""

    def __init__(
        self, cluster: Cluster, topic: str, partitions: int, seed: object, *, with_transactions: bool = False
    ) -> None:
        self._seed = seed
        self._with_transactions = with_transactions
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._random = random.Random(f"{seed}/consumer groups")
        self._metadata: TopicMetadata | None = None
        self._members: dict[str, list[ConsumerMember]] = {protocol: [] for protocol in PROTOCOLS}
        self._gone: list[ConsumerMember] = []
        self._count = 0
        self._commit_counter = [0]

    def start(self, metadata: TopicMetadata) -> None:
        self._metadata = metadata
        for protocol in PROTOCOLS:
            for _ in range(MEMBERS):
                self._add(protocol)

    def _add(self, protocol: str) -> None:
        assert self._metadata is not None
        self._count += 1
        member = PROTOCOLS[protocol](
            self._cluster.client(f"consumer-{self._count}"),
            group=f"consumers-{protocol}",
            topic=self._topic,
            partitions=self._partitions,
            topic_id=self._metadata.topic_id,
            counter=self._commit_counter,
        )
        if self._with_transactions:
            member.transactions = OffsetTransactions(
                self._cluster.client(f"consumer-{self._count}"),
                group=member.group,
                topic=self._topic,
                counter=self._commit_counter,
                draw=random.Random(f"{self._seed}/transactions of consumer-{self._count}"),
                check_running=member.check_running,
            )
        self._members[protocol].append(member)
        member.start()

    async def disturb(self) -> None:
        """Until it is cancelled."""
        draw = self._random
        while True:
            await asyncio.sleep(1 + 6 * draw.random())
            protocol = draw.choice(list(PROTOCOLS))
            if draw.random() < FORGED_PROBABILITY:
                await self._forge(protocol)
                continue
            member = draw.choice(self._members[protocol])
            self._members[protocol].remove(member)
            self._gone.append(member)
            self._add(protocol)
            end = draw.choice(("crash", "vanish", "leave"))
            if end == "leave":
                await member.leave()
            else:
                getattr(member, end)()

    async def _forge(self, protocol: str) -> None:
        """A commit of a member that never was, or that was there in another epoch."""
        client = self._cluster.client("forger of commits")
        offsets = CommittedOffsets(client, f"consumers-{protocol}", self._topic, self._commit_counter)
        known = [member.member_id for member in self._members[protocol] if member.member_id]
        if self._random.random() < 0.5 and known:
            member_id, epoch = self._random.choice(known), 1_000_000
        else:
            member_id, epoch = "a-member-that-never-was", 1
        partition = self._random.randrange(self._partitions)
        codes = await offsets.commit(member_id, epoch, {partition: FORGED_OFFSET}, is_forged=True)
        code = codes[partition]
        allowed = (*FORGED_CODES[protocol], *TRANSIENT, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.GROUP_ID_NOT_FOUND)
        if code is not None and code not in allowed:
            client.bug(f"a forged commit of {member_id} at {epoch} in a group {protocol} was answered with {code!r}")

    async def go_on(self) -> list[Violation]:
        """Waits until each partition of each group has a new confirmed commit; what has none in time is late."""
        start, loop = self._cluster.loop.time(), self._cluster.loop
        while stalled := [
            f"consumers-{protocol}/{partition}"
            for protocol, members in self._members.items()
            for partition in range(self._partitions)
            if not any(member.confirmed_at.get(partition, -1.0) >= start for member in members)
        ]:
            if loop.time() >= start + GOES_ON_WITHIN_S:
                text = f"no commit of {', '.join(stalled)} was confirmed in {GOES_ON_WITHIN_S:.0f} s without faults"
                return [Violation("a consumer group stalled", text)]
            await asyncio.sleep(1.0)
        return []

    async def finish(self) -> None:
        """All members leave; then what is committed is read once more."""
        for members in self._members.values():
            for member in members:
                await member.leave()
        client = self._cluster.client("reader of commits")
        for protocol in PROTOCOLS:
            offsets = CommittedOffsets(client, f"consumers-{protocol}", self._topic, self._commit_counter)
            while not isinstance(await offsets.read(range(self._partitions)), dict):
                await asyncio.sleep(1.0)
