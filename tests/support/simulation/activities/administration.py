"""The administrator of a history: share groups of its own, with all that can be done to them, and topics.

It says at once where an answer and what it finds do not fit. Each group lives a life: its configs are set, a member
joins and leaves, its offsets are altered, and they or the whole group are deleted. A request with an unknown outcome
ends the life, because it may still take effect later. After the faults `check` looks at each group and topic again
whose newest change was confirmed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from kshare_core.errors import ErrorCode
from support.simulation.cluster import KAFKA, Cluster
from support.simulation.evidence import Violation
from support.simulation.history import LateHeartbeat
from support.simulation.kafka_clients.admin import EARLIEST, LATEST, Admin
from support.simulation.kafka_clients.session import TopicMetadata
from support.simulation.kafka_clients.share_group_admin import ABSENT, ShareGroupAdmin
from support.simulation.kafka_clients.short_lived_member import ShortLivedMember

RETRY_S = 0.5
CONFIG_IS_KNOWN_S = 30.0
"""A gateway describes configs from its copy of the catalog, as a broker of Kafka does from its metadata: one that
cannot hear of the coordinator learns of a change after the call that waits for news has failed, more than once with
two faults.
"""
MEMBER_IS_GONE_S = 120.0
"""More than two session timeouts of a history: a member that was not heard of for so long is not there."""
MEMBER_IS_KNOWN_S = 5.0
"""Less than any session timeout of a history: a member that was heard of so recently is there."""
HIGHEST_OFFSET = 100
RESET = "share.auto.offset.reset"
LOCK_DURATION = "share.record.lock.duration.ms"
LOCK_DURATIONS_MS = (20_000, 45_000, 60_000)
"""Longer than those of the histories, which the rules of holders know."""

Offsets = Sequence[int]
Found = TypeVar("Found")


class OutcomeUnknown(Exception):
    """The group must be left alone from now on."""


class Passed(NamedTuple):
    """A new share-partition started above the log start: nothing that the group may read lies between."""

    group: str
    partition: int
    first_offset: int
    """The log start, asked after the start offset was."""
    start_offset: int


class Administrator:
    """See the module's text."""

    def __init__(
        self, cluster: Cluster, topic: str, partitions: int, group_configs: Mapping[str, str], seed: object
    ) -> None:
        self._client = cluster.client("administrator")
        self._admin = Admin(self._client)
        self._is_kafka = is_kafka = cluster.shape.engine == KAFKA
        self._logs = Admin(cluster.log_client("administrator of logs" if is_kafka else "administrator"))
        self._shares = ShareGroupAdmin(self._client, topic)
        self._topic = topic
        self._partitions = partitions
        self._group_configs = group_configs
        self._random = random.Random(f"{seed}/administration")
        self._confirmed: dict[str, Offsets | None] = {}
        """The start offsets of each group; None where a change may still take effect."""
        self._passed: list[Passed] = []
        self._topics: dict[str, bool | None] = {}
        """Whether each topic exists; None: it may."""
        self._configs: dict[tuple[str, str], str] = {}
        """By group and name: the values that were seen after they were set. They outlive the group, as in Kafka."""
        self.lives = 0
        """Of groups that came to their planned end."""

    async def administer(self, metadata: TopicMetadata) -> None:
        """Until it is cancelled."""
        number = 0
        while True:
            number += 1
            await asyncio.sleep(3 * self._random.random())
            await self._change_topic(f"made-{number}")
            try:
                await self._live(f"administered-{number}", metadata)
                self.lives += 1
            except OutcomeUnknown as reason:
                self._client.note(f"administered-{number} is left alone: {reason}")

    # One life of a group

    async def _live(self, group: str, metadata: TopicMetadata) -> None:
        member = ShortLivedMember(self._client, group, self._topic, metadata.topic_id)
        reset = self._random.choice(("earliest", "latest"))
        changed = {RESET: reset, LOCK_DURATION: str(self._random.choice(LOCK_DURATIONS_MS))}
        await self._admin.set_group_configs(group, {**self._group_configs, **changed})
        for name, value in changed.items():
            await self._expect_config(group, name, value)
        try:
            await member.heartbeat()
            await self._initialize(group, member, reset)
            await self._be_refused(group, member)
        finally:
            await member.leave()
        for _ in range(self._random.choice((1, 2))):
            offsets = {index: self._random.randrange(HIGHEST_OFFSET) for index in range(self._partitions)}
            await self._change(group, list(offsets.values()), lambda: self._shares.alter(group, offsets))  # noqa: B023
        end = self._random.choice((self._shares.delete_offsets, self._shares.delete_group))
        await self._change(group, [ABSENT] * self._partitions, lambda: end(group))

    async def _expect_config(self, group: str, name: str, value: str) -> None:
        known_at = self._client.now() + CONFIG_IS_KNOWN_S
        while (found := await self._persistently(lambda: self._shares.group_config(group, name))) != value:
            if self._client.now() > known_at:
                self._client.bug(f"{name} of {group} was set to {value}, and after {CONFIG_IS_KNOWN_S} s it is {found}")
                return
            await asyncio.sleep(RETRY_S)
        self._configs[group, name] = value

    async def _initialize(self, group: str, member: ShortLivedMember, reset: str) -> None:
        """A new share-partition starts where share.auto.offset.reset says.

        A first fetch moves the start offset over markers and aborted records: `check` looks at what lay there.
        """
        partition = self._random.randrange(self._partitions)
        timestamp = EARLIEST if reset == "earliest" else LATEST
        lowest = await self._logs.offset(self._topic, partition, timestamp)
        found = ABSENT
        while found == ABSENT:
            await asyncio.sleep(RETRY_S)
            await member.heartbeat()
            await member.fetch_once(partition)
            offsets = await self._persistently(lambda: self._shares.start_offsets(group, self._partitions))
            found = offsets[partition]
        highest = await self._logs.offset(self._topic, partition, timestamp)
        if lowest <= found <= highest:
            return
        if reset == "earliest" and found > highest:
            self._passed.append(Passed(group, partition, highest, found))
            return
        self._client.bug(f"{group}/{partition} starts at {found} with {RESET}={reset}; that was {lowest} to {highest}")

    async def _be_refused(self, group: str, member: ShortLivedMember) -> None:
        """Nothing of this is allowed while the group has a member."""
        requests: list[Callable[[], Awaitable[int | None]]] = [
            lambda: self._shares.alter(group, {0: 0}),
            lambda: self._shares.delete_offsets(group),
            lambda: self._shares.delete_group(group),
        ]
        await member.heartbeat()
        code = await self._random.choice(requests)()
        if code is None or self._client.now() > member.heard_of_at + MEMBER_IS_KNOWN_S:
            raise OutcomeUnknown("its member may have been removed meanwhile")
        if code != ErrorCode.NON_EMPTY_GROUP:
            self._client.bug(f"a request about {group}, which has a member, was answered with {ErrorCode(code).name}")

    async def _change(self, group: str, expected: Offsets, ask: Callable[[], Awaitable[int | None]]) -> None:
        """A change that must succeed; then it is there."""
        self._confirmed[group] = None
        code = await self._once_empty(group, ask)
        if code is None:
            raise OutcomeUnknown("a request was not answered")
        if code:
            self._client.bug(f"a change of {group} was refused with {ErrorCode(code).name}")
            raise OutcomeUnknown("a request was refused")
        self._confirmed[group] = expected
        found = await self._persistently(lambda: self._shares.start_offsets(group, self._partitions))
        if list(found) != list(expected):
            self._client.bug(f"the start offsets of {group} became {expected}, and {found} are there")

    async def _once_empty(self, group: str, ask: Callable[[], Awaitable[int | None]]) -> int | None:
        """A heartbeat that arrives after its member left makes it join again, until it times out."""
        gone_at = self._client.now() + MEMBER_IS_GONE_S
        while (code := await ask()) == ErrorCode.NON_EMPTY_GROUP and self._client.now() < gone_at:
            if not self._had_late_heartbeat(group):
                break
            await asyncio.sleep(RETRY_S)
        return code

    def _had_late_heartbeat(self, group: str) -> bool:
        return any(isinstance(event, LateHeartbeat) and event.group == group for event in self._client.history.events)

    async def _persistently(self, ask: Callable[[], Awaitable[Found | None]]) -> Found:
        while (found := await ask()) is None:
            await asyncio.sleep(RETRY_S)
        return found

    # Topics

    async def _change_topic(self, name: str) -> None:
        self._topics[name] = None
        code = await self._shares.create_topic(name, self._random.choice((1, 3)))
        if code is None:
            return
        if code == ErrorCode.INVALID_REPLICATION_FACTOR and self._is_kafka:  # all brokers are fenced at this moment
            self._topics[name] = False
            return
        if code:
            self._client.bug(f"topic {name} was refused with {ErrorCode(code).name}")
            return
        self._topics[name] = True
        if self._random.random() < 0.5:
            self._topics[name] = None
            code = await self._shares.delete_topic(name)
            if code is not None:
                self._topics[name] = bool(code)
            if code:
                self._client.bug(f"the deletion of topic {name} was refused with {ErrorCode(code).name}")

    # After the faults

    async def check(self) -> list[Violation]:
        """What is not as it was confirmed."""
        found: list[Violation] = []
        for group, expected in self._confirmed.items():
            if expected is None:
                continue
            offsets = await self._persistently(lambda: self._shares.start_offsets(group, self._partitions))  # noqa: B023
            if list(offsets) != list(expected):
                text = f"the start offsets of {group} were confirmed as {expected}, and are {offsets}"
                found.append(Violation("administration was lost", text))
        for (group, name), value in self._configs.items():
            config = await self._persistently(lambda: self._shares.group_config(group, name))  # noqa: B023
            if config != value:
                text = f"{name} of {group} was set to {value}, and is {config}"
                found.append(Violation("administration was lost", text))
        for passed in self._passed:
            records = await self._logs.read_log(self._topic, passed.partition)
            if any(
                record.committed and passed.first_offset <= record.offset < passed.start_offset for record in records
            ):
                found.append(Violation("a new share group passed records", str(passed)))
        for name, exists in self._topics.items():
            if exists is not None and not await self._admin.shows(name, exists=exists):
                text = f"topic {name} {'is not' if exists else 'is'} there, other than was confirmed"
                found.append(Violation("administration was lost", text))
        return found
