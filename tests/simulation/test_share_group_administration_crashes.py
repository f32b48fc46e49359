"""Share groups and `kill -9` at each step of what has two stages: initialising, altering and deleting their state.

The steps are the calls between roles: what the client asks of the coordinator, then what the coordinator asks of share
coordinators and leaders; a host dies when a call arrives, before it is handled, or when it is done, before its answer
is sent. Whoever dies, the change ends complete or undone, for all partitions alike, and complete where the client was
told so; afterwards the same request succeeds, and a consumer reads what the group's offsets say.

The member that read before has left the group, but its share session is still open: its leader holds the former state
in memory, and must not serve it after the change.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import Message
from kio.schema.alter_share_group_offsets.v0 import request as alter_request
from kio.schema.alter_share_group_offsets.v0 import response as alter_response
from kio.schema.delete_groups.v2 import request as delete_groups_request
from kio.schema.delete_groups.v2 import response as delete_groups_response
from kio.schema.delete_share_group_offsets.v0 import request as delete_offsets_request
from kio.schema.delete_share_group_offsets.v0 import response as delete_offsets_response
from kio.schema.describe_share_group_offsets.v1 import request as describe_request
from kio.schema.describe_share_group_offsets.v1 import response as describe_response
from kio.schema.share_group_heartbeat.v1 import request as heartbeat_request
from kio.schema.share_group_heartbeat.v1 import response as heartbeat_response

from kshare_core.errors import ErrorCode
from kshare_core.states import AcknowledgeType
from kshare_rpc.generated.methods import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_GROUPS,
    DELETE_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_STATE,
    DROP_SHARE_PARTITIONS,
    INITIALIZE_SHARE_GROUP_STATE,
    SHARE_GROUP_HEARTBEAT,
)
from kshare_rpc.network import Method
from support.simulation.cluster import COORDINATOR, EMBEDDED, ENGINES, KAFKA, Cluster, shape_of
from support.simulation.connections import ConnectionLost
from support.simulation.kafka_clients.admin import Admin
from support.simulation.kafka_clients.session import ClusterClient
from support.simulation.loop import VirtualLoop
from support.simulation.network import in_no_host
from support.simulation.scripted import ScriptedConsumer, ScriptedTopic

GROUP, TOPIC = "G1", "orders"
PARTITIONS = 2
RECORDS = 10
NEW_OFFSET = 4
UNKNOWN = -1
GROUP_CONFIGS = {"share.auto.offset.reset": "earliest"}
DOWN_S = 0.5
SETTLED_S = 40.0
"""After which every change is complete or undone."""
ATTEMPTS = 40

VICTIMS = {
    "coordinator": (COORDINATOR,),
    "share coordinator": ("share-coordinator-1",),
    "both": (COORDINATOR, "share-coordinator-1"),
    "leader": ("leader-1",),
    "coordinator and leader": (COORDINATOR, "leader-1"),
}
RUNS = [(EMBEDDED, victims) for victims in VICTIMS] + [(KAFKA, victims) for victims in ("both", "leader")]
"""Engines and victims. In front of an existing cluster those who write the state die together; no disk is left."""


class Step(NamedTuple):
    """A call that arrives, or that is done."""

    method: Method[Any, Any]
    is_done: bool

    def __str__(self) -> str:
        return f"{self.method.name} {'done' if self.is_done else 'arrives'}"


class Killer:
    """Watches the steps once it is armed, and kills its victims at one of them."""

    def __init__(self, step: Step | None, victims: tuple[str, ...]) -> None:
        self.step = step
        self.victims = victims
        self.cluster: Cluster | None = None
        self.is_armed = False
        self.has_killed = False
        self.seen: list[Step] = []

    def tap(
        self, source: str, target: str, method: Method[Any, Any], request: Any, answer: Message | None, sent_at: float
    ) -> None:
        if not self.is_armed:
            return
        step = Step(method, answer is not None)
        self.seen.append(step)
        if step != self.step or self.has_killed:
            return
        self.has_killed = True
        assert self.cluster is not None
        loop = self.cluster.loop
        for name in self.victims:
            host = self.cluster.hosts[name]
            in_no_host(loop, loop.time(), host.crash)
            in_no_host(loop, loop.time() + DOWN_S, host.start)


class Consumer(ScriptedConsumer):
    """Can leave its group without ending its share session."""

    def __init__(self, client: ClusterClient, group: str, member_id: str) -> None:
        super().__init__(client, group, member_id)
        self._leaving: Any = heartbeat_request.ShareGroupHeartbeatRequest(
            group_id=group,  # type: ignore[arg-type]
            member_id=member_id,
            member_epoch=-1,  # type: ignore[arg-type]
            subscribed_topic_names=None,
        )

    async def leave(self) -> None:
        answer = await self._client.call_any(self._leaving, heartbeat_response.ShareGroupHeartbeatResponse)
        assert answer.error_code == 0, answer


class Scene:
    """One cluster with a topic, and the group that is administered."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.client = cluster.client("admin")
        self._topic = ScriptedTopic(cluster, TOPIC, PARTITIONS)
        self._members = itertools.count(1)

    async def begin(self) -> None:
        await self._cluster.start()
        await self._topic.create()
        await Admin(self.client).set_group_configs(GROUP, GROUP_CONFIGS)
        await self._topic.produce([f"v{offset}" for offset in range(RECORDS)])

    async def first_record(self) -> int:
        """What a new member is given first; it releases what it got, and leaves the group, not its session."""
        consumer, runs = await self._try(self._read)
        for first, last, _ in runs:
            assert await consumer.acknowledge((first, last), AcknowledgeType.RELEASE) == 0
        await consumer.leave()
        return int(runs[0][0])

    async def consume_all(self) -> None:
        """A member accepts every record, and leaves the group, not its session."""
        done = 0
        consumer, runs = await self._try(self._read)
        while done < RECORDS:
            for first, last, _ in runs:
                assert await consumer.acknowledge((first, last), AcknowledgeType.ACCEPT) == 0
                done = max(done, last + 1)
            runs = await consumer.fetch(RECORDS, max_wait_ms=200)
        await consumer.leave()

    async def _read(self) -> tuple[Consumer, list[tuple[int, int, int]]]:
        metadata = await self._topic.create()
        number = next(self._members)
        consumer = Consumer(self._cluster.client(f"consumer-{number}"), GROUP, f"member-{number}")
        await consumer.join(TOPIC, metadata)
        for _ in range(ATTEMPTS):
            runs = await consumer.fetch(RECORDS, max_wait_ms=500)
            if runs:
                return consumer, runs
        raise AssertionError("nothing to read")

    async def _try(self, read: Callable[[], Awaitable[Any]]) -> Any:
        for _ in range(ATTEMPTS):
            try:
                return await read()
            except (ConnectionLost, AssertionError) as problem:
                self.client.note(f"reading: {problem}")
                await asyncio.sleep(1.0)
        raise AssertionError("the group could not be read")

    async def start_offsets(self) -> list[int]:
        """Of all partitions, UNKNOWN where the group has no state.

        The share coordinators and the group must agree on which partitions have state: nothing is half done.
        """
        partitions: Any = tuple(range(PARTITIONS))
        topic: Any = describe_request.DescribeShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=partitions)  # type: ignore[arg-type]
        asked = await self._described((topic,))
        known = await self._described(None)
        assert known == asked or (known == [] and asked == [UNKNOWN] * PARTITIONS), (known, asked)
        return asked

    async def _described(self, topics: Any) -> list[int]:
        """Start offsets of some topics, or (None) of all share-partitions that the group knows as initialized."""
        group: Any = describe_request.DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=topics)  # type: ignore[arg-type]
        request = describe_request.DescribeShareGroupOffsetsRequest(groups=(group,))
        for _ in range(ATTEMPTS):
            try:
                answer = await self.client.call_any(request, describe_response.DescribeShareGroupOffsetsResponse)
            except ConnectionLost:
                continue
            found = [partition for topic in answer.groups[0].topics for partition in topic.partitions]
            if all(partition.error_code == 0 for partition in found):
                return [int(partition.start_offset) for partition in found]
            await asyncio.sleep(0.3)
        raise AssertionError("nobody knows the start offsets")

    # What is administered; each returns the error codes

    async def alter(self) -> list[int]:
        partitions: Any = tuple(
            alter_request.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)  # type: ignore[arg-type]
            for index, offset in enumerate((NEW_OFFSET, 0))
        )
        topic: Any = alter_request.AlterShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=partitions)  # type: ignore[arg-type]
        request = alter_request.AlterShareGroupOffsetsRequest(group_id=GROUP, topics=(topic,))  # type: ignore[arg-type]
        answer = await self.client.call_any(request, alter_response.AlterShareGroupOffsetsResponse)
        found = [int(partition.error_code) for topic in answer.responses for partition in topic.partitions]
        return [int(answer.error_code), *found]

    async def delete_offsets(self) -> list[int]:
        topic: Any = delete_offsets_request.DeleteShareGroupOffsetsRequestTopic(topic_name=TOPIC)  # type: ignore[arg-type]
        request = delete_offsets_request.DeleteShareGroupOffsetsRequest(group_id=GROUP, topics=(topic,))  # type: ignore[arg-type]
        answer = await self.client.call_any(request, delete_offsets_response.DeleteShareGroupOffsetsResponse)
        return [int(answer.error_code), *(int(topic.error_code) for topic in answer.responses)]

    async def delete_group(self) -> list[int]:
        request = delete_groups_request.DeleteGroupsRequest(groups_names=(GROUP,))  # type: ignore[arg-type]
        answer = await self.client.call_any(request, delete_groups_response.DeleteGroupsResponse)
        return [int(result.error_code) for result in answer.results]


class Change(NamedTuple):
    """What an administrator asks for, and how it shows: start offsets, and the first record of the next member."""

    ask: Callable[[Scene], Awaitable[list[int]]]
    complete: tuple[list[int], int]
    already_done: frozenset[int]
    """Codes that say that nothing was left to do."""


CHANGES = {
    "alter": Change(Scene.alter, ([NEW_OFFSET, 0], NEW_OFFSET), frozenset({ErrorCode.NONE})),
    "delete offsets": Change(
        Scene.delete_offsets,
        ([UNKNOWN, UNKNOWN], 0),
        frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    ),
    "delete group": Change(
        Scene.delete_group,
        ([UNKNOWN, UNKNOWN], 0),
        frozenset({ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}),
    ),
}
UNDONE = [RECORDS, UNKNOWN]
"""Nobody reads the second partition."""

_STEPS: dict[str, tuple[Method[Any, Any], ...]] = {
    "alter": (ALTER_SHARE_GROUP_OFFSETS, INITIALIZE_SHARE_GROUP_STATE, DROP_SHARE_PARTITIONS),
    "delete offsets": (DELETE_SHARE_GROUP_OFFSETS, DELETE_SHARE_GROUP_STATE, DROP_SHARE_PARTITIONS),
    "delete group": (DELETE_GROUPS, DELETE_SHARE_GROUP_STATE, DROP_SHARE_PARTITIONS),
}
STEPS = [
    (name, Step(method, is_done)) for name, methods in _STEPS.items() for method in methods for is_done in (False, True)
]


def run(
    main: Callable[[Scene, Killer], Awaitable[None]], step: Step | None, victims: tuple[str, ...], engine: str
) -> Killer:
    loop = VirtualLoop(time_limit=600)
    cluster = Cluster(loop, f"{step} {victims}", shape_of(engine))
    killer = Killer(step, victims)
    killer.cluster = cluster
    cluster.fabric.taps.append(killer.tap)

    async def whole() -> None:
        await main(Scene(cluster), killer)

    loop.run(whole())
    assert cluster.problems() == []
    return killer


async def change_and_look(change: Change, scene: Scene, killer: Killer) -> None:
    await scene.begin()
    await scene.consume_all()
    assert await scene.start_offsets() == UNDONE
    killer.is_armed = True
    try:
        codes = await change.ask(scene)
    except ConnectionLost:
        codes = [ErrorCode.REQUEST_TIMED_OUT]
    if not any(codes):
        assert await scene.start_offsets() == change.complete[0], "the client was told that it is done"
    await asyncio.sleep(SETTLED_S)
    killer.is_armed = False
    assert await scene.start_offsets() in (change.complete[0], UNDONE), "complete or undone, all partitions alike"
    again = await change.ask(scene)
    assert set(again) <= change.already_done, again
    assert await scene.start_offsets() == change.complete[0]
    assert await scene.first_record() == change.complete[1], "the leader does not serve the former state"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CHANGES)
def test_without_a_crash(name: str, engine: str) -> None:
    async def main(scene: Scene, killer: Killer) -> None:
        await change_and_look(CHANGES[name], scene, killer)

    killer = run(main, None, (), engine)
    expected = {step for at, step in STEPS if at == name}
    assert expected <= set(killer.seen), "every step of the table is taken"


@pytest.mark.parametrize(("engine", "victims"), RUNS)
@pytest.mark.parametrize(("name", "step"), STEPS, ids=str)
def test_a_change_is_complete_or_undone(name: str, step: Step, engine: str, victims: str) -> None:
    async def main(scene: Scene, killer: Killer) -> None:
        await change_and_look(CHANGES[name], scene, killer)

    assert run(main, step, VICTIMS[victims], engine).has_killed


@pytest.mark.parametrize(("engine", "victims"), RUNS)
@pytest.mark.parametrize(
    "step",
    [
        Step(SHARE_GROUP_HEARTBEAT, False),
        Step(SHARE_GROUP_HEARTBEAT, True),
        Step(INITIALIZE_SHARE_GROUP_STATE, False),
        Step(INITIALIZE_SHARE_GROUP_STATE, True),
    ],
    ids=str,
)
def test_a_group_is_initialized_whichever_role_crashes(step: Step, engine: str, victims: str) -> None:
    async def main(scene: Scene, killer: Killer) -> None:
        await scene.begin()
        killer.is_armed = True
        assert await scene.first_record() == 0
        await scene.consume_all()
        assert await scene.start_offsets() == UNDONE

    assert run(main, step, VICTIMS[victims], engine).has_killed
