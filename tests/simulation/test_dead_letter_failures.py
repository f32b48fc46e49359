"""Dead letters that may not be written, or cannot be for a while: nothing stalls without a word, nothing is lost.

What configs forbid is archived at once, as in Kafka (ShareConsumerDLQTest.testDlqNotTriggeredWhenGatedOff); what could
still be stored is tried again until it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kshare_core.states import AcknowledgeType
from kshare_rpc.generated.methods import APPEND_DEAD_LETTERS
from kshare_runtime.store_mending import CHECK_INTERVAL_S
from support.simulation.cluster import Cluster, Shape
from support.simulation.history import StateLoaded, StateWritten
from support.simulation.kafka_clients.admin import Admin
from support.simulation.loop import VirtualLoop
from support.simulation.scripted import ScriptedConsumer, produce

GROUP, TOPIC, DEAD_LETTERS = "G1", "orders", "dlq.orders"
SOURCE_LEADER, LETTERS_LEADER = "leader-1", "leader-2"
AUTO_CREATE = {"errors.deadletterqueue.auto.create.topics.enable": "true"}
TOPIC_NAME = "errors.deadletterqueue.topic.name"
GROUP_ENABLE = "errors.deadletterqueue.group.enable"
COPY = {"errors.deadletterqueue.copy.record.enable": "true"}


class Scene:
    """A cluster with one topic and a member that rejects what it gets; `sent` is when AppendDeadLetters arrived."""

    def __init__(self, caplog: pytest.LogCaptureFixture, configs: dict[str, str], *, leaders: int = 2) -> None:
        self.loop = VirtualLoop(time_limit=600)
        self.cluster = Cluster(self.loop, "dead letter failures", Shape(leaders=leaders, configs=configs))
        self.client = self.cluster.client("client")
        self.admin = Admin(self.client)
        self.sent: list[float] = []
        self._caplog = caplog
        self._rejected = 0
        self.cluster.fabric.taps.append(self._tap)

    def _tap(self, source: str, target: str, method: Any, request: Any, answer: Any, sent_at: float) -> None:
        if method == APPEND_DEAD_LETTERS and answer is None:
            assert (source, target) == (SOURCE_LEADER, LETTERS_LEADER)
            self.sent.append(self.loop.time())

    def run(self, scenario: Callable[[Scene], Awaitable[None]]) -> None:
        async def whole() -> None:
            await self.cluster.start()
            self._metadata = await self.admin.create_topic(TOPIC, 1)
            await scenario(self)

        self.loop.run(whole())
        assert self.cluster.problems() == []

    async def configure(self, configs: dict[str, str]) -> None:
        await self.admin.set_group_configs(GROUP, {"share.auto.offset.reset": "earliest", **configs})

    async def reject(self, *values: str) -> None:
        """Produces records and rejects them; returns when that is durable."""
        first = await produce(self.client, TOPIC, self._metadata, values)
        assert first == self._rejected
        if first == 0:
            self._consumer = ScriptedConsumer(self.cluster.client("consumer"), GROUP, "member")
            await self._consumer.join(TOPIC, self._metadata)
        self._rejected += len(values)
        assert await self._consumer.fetch(10) == [(first, self._rejected - 1, 1)]
        assert await self._consumer.acknowledge((first, self._rejected - 1), AcknowledgeType.REJECT) == 0

    async def letters(self) -> list[str]:
        return [record.value for record in await self.admin.read_log(DEAD_LETTERS, 0)]

    def start_offset(self) -> int:
        """The last one that was stored."""
        written = [event for event in self.cluster.history.events if isinstance(event, StateWritten)]
        return max(event.start_offset for event in written)

    def problems(self) -> list[str]:
        node = self.cluster.hosts[SOURCE_LEADER].node
        assert node is not None
        return node.problems()

    def warnings(self, text: str) -> list[str]:
        found = [record.getMessage() for record in self._caplog.records]
        return [message for message in found if text in message]


async def disable(scene: Scene) -> None:
    await scene.admin.set_topic_configs(DEAD_LETTERS, {GROUP_ENABLE: "false"})


async def delete(scene: Scene) -> None:
    await scene.admin.delete_topic(DEAD_LETTERS)


@pytest.mark.parametrize(
    ("make_unfit", "reason"),
    [(disable, "does not have errors.deadletterqueue.group.enable=true"), (delete, "does not exist")],
    ids=["disabled", "deleted"],
)
def test_what_configs_forbid_is_archived_without_dead_letters_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture, make_unfit: Callable[[Scene], Awaitable[None]], reason: str
) -> None:
    """The topic may receive when the group is pointed at it, and not when the first dead letter is due."""

    async def scenario(scene: Scene) -> None:
        await scene.admin.create_topic(DEAD_LETTERS, 1, {GROUP_ENABLE: "true"})
        await scene.configure({TOPIC_NAME: DEAD_LETTERS})
        await make_unfit(scene)
        await scene.reject("v0", "v1", "v2")
        await asyncio.sleep(1)
        assert scene.start_offset() == 3, "at once: nothing is to be waited for"
        assert scene.sent == []
        assert len(scene.warnings("records 0-2 of G1:")) == len(scene.warnings(reason)) == 1
        assert scene.problems() == []
        await scene.reject("v3")
        await asyncio.sleep(1)
        assert scene.start_offset() == 4
        assert len(scene.warnings(reason)) == 1, "not once more for each record"

    Scene(caplog, {}).run(scenario)


def test_while_the_topics_leader_is_away_dead_letters_wait_and_the_health_check_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.configure({TOPIC_NAME: DEAD_LETTERS, **COPY})
        await scene.reject("v0")
        await asyncio.sleep(2)
        assert (scene.start_offset(), len(scene.sent)) == (1, 1)
        letters_leader = scene.cluster.hosts[LETTERS_LEADER]
        letters_leader.crash()
        await scene.reject("v1", "v2")
        await asyncio.sleep(3)
        assert scene.problems() == [], "a short absence is no problem"
        await scene.reject("v3")
        await asyncio.sleep(60)
        assert scene.start_offset() == 1, "nothing is given up"
        (problem,) = scene.problems()
        assert problem.startswith("dead letters of G1:") and "cannot be stored for" in problem
        assert scene.warnings("cannot be stored, trying again")
        letters_leader.start()
        await asyncio.sleep(10)
        assert scene.start_offset() == 4, "as soon as the catalog shows the leader, not after the longest pause"
        assert scene.problems() == []
        assert await scene.letters() == ["v0", "v1", "v2", "v3"]

    Scene(caplog, AUTO_CREATE).run(scenario)


def test_a_group_that_loses_its_dead_letter_topic_meanwhile_has_its_records_archived(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.configure({TOPIC_NAME: DEAD_LETTERS, **COPY})
        await scene.reject("v0")
        await asyncio.sleep(2)
        letters_leader = scene.cluster.hosts[LETTERS_LEADER]
        letters_leader.crash()
        await scene.reject("v1", "v2")
        await asyncio.sleep(20)
        assert scene.start_offset() == 1
        await scene.configure({TOPIC_NAME: ""})
        await asyncio.sleep(2)
        assert scene.start_offset() == 3, "soon after the catalog changed, not after the longest pause"
        assert scene.warnings("records 1-2 of G1:")
        letters_leader.start()
        await asyncio.sleep(10)
        await scene.reject("v3")
        await asyncio.sleep(2)
        assert scene.start_offset() == 4
        assert await scene.letters() == ["v0"]

    Scene(caplog, AUTO_CREATE).run(scenario)


def test_a_disk_that_fails_at_the_topics_leader_delays_dead_letters(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.configure({TOPIC_NAME: DEAD_LETTERS, **COPY})
        await scene.reject("v0")
        await asyncio.sleep(2)
        # The write, and four looks, one each second, whether the disk accepts writes: the store is mended after 4 s
        # to 5 s, after the third try (at most 3.9 s) and before the fourth (at least 5.6 s).
        scene.cluster.hosts[LETTERS_LEADER].disk.fail_next_writes(5)
        await scene.reject("v1")
        await asyncio.sleep(30)
        assert scene.start_offset() == 2
        assert await scene.letters() == ["v0", "v1"]
        pauses = [later - earlier for earlier, later in zip(scene.sent[1:], scene.sent[2:], strict=False)]
        assert len(pauses) == 3
        assert all(0.8 * base <= pause <= 1.3 * base for pause, base in zip(pauses, (1, 2, 4), strict=True)), pauses

    Scene(caplog, AUTO_CREATE).run(scenario)


def test_archiving_is_not_asked_for_while_the_leaders_own_disk_cannot_remember_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.configure({TOPIC_NAME: DEAD_LETTERS, **COPY})
        await scene.reject("v0")
        await asyncio.sleep(70)  # so long that the first time is forgotten
        await produce(scene.client, TOPIC, scene._metadata, ["v1"])
        assert await scene._consumer.fetch(10) == [(1, 1, 1)]
        scene.cluster.hosts[SOURCE_LEADER].disk.fail_next_writes(1)
        code = await scene._consumer.acknowledge((1, 1), AcknowledgeType.REJECT)
        assert code == 56, "KAFKA_STORAGE_ERROR: not confirmed"
        code = await scene._consumer.acknowledge((1, 1), AcknowledgeType.REJECT)
        assert code == 56, "the store takes no writes until it is mended"
        await asyncio.sleep(CHECK_INTERVAL_S)
        assert scene.start_offset() == 1 and len(scene.sent) == 1, "nothing was archived, and no dead letter sent"
        assert await scene._consumer.acknowledge((1, 1), AcknowledgeType.REJECT) == 0
        await asyncio.sleep(2)
        assert scene.start_offset() == 2
        assert await scene.letters() == ["v0", "v1"]

    Scene(caplog, AUTO_CREATE).run(scenario)


def test_only_what_is_unfinished_is_loaded_after_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: Scene) -> None:
        source_leader = scene.cluster.hosts[SOURCE_LEADER]

        async def restart() -> int:
            """How often the leader reads the state of a share-partition afterwards, although nobody fetches."""
            source_leader.crash()
            before = len(scene.cluster.history.events)
            await source_leader.start()
            await asyncio.sleep(20)
            events = scene.cluster.history.events[before:]
            return sum(isinstance(event, StateLoaded) for event in events)

        await scene.configure({TOPIC_NAME: DEAD_LETTERS, **COPY})
        await scene.reject("v0")
        await asyncio.sleep(2)
        assert await restart() == 1, "its dead letters may not have been done"
        assert await restart() == 0, "they were, and nobody uses it"

    Scene(caplog, AUTO_CREATE).run(scenario)


def test_a_share_partition_without_dead_letters_for_long_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.configure({TOPIC_NAME: DEAD_LETTERS, **COPY})
        await scene.reject("v0")
        await asyncio.sleep(70)
        scene.cluster.hosts[SOURCE_LEADER].crash()
        before = len(scene.cluster.history.events)
        await scene.cluster.hosts[SOURCE_LEADER].start()
        await asyncio.sleep(20)
        events = scene.cluster.history.events[before:]
        assert not [event for event in events if isinstance(event, StateLoaded)]

    Scene(caplog, AUTO_CREATE).run(scenario)
