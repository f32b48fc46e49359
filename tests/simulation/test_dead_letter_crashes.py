"""Dead letters and `kill -9` of a leader at each step: every record given up is in the dead-letter topic exactly once.

The steps are KIP-1191's: Archiving is asked for and durable, the dead letters are asked for and appended, Archived is
asked for and durable. At each of them the leader of the source or that of the dead-letter topic dies. Where Archiving
is durable, nobody fetches afterwards, so the leader must go on by itself (KAFKA-20672).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.message import Message

from kshare_core.states import AcknowledgeType, RecordState
from kshare_rpc.generated.methods import APPEND_DEAD_LETTERS, WRITE_SHARE_GROUP_STATE
from kshare_rpc.network import Method
from support.simulation.cluster import EMBEDDED, KAFKA, Cluster, Shape
from support.simulation.connections import ConnectionLost
from support.simulation.history import StateWritten
from support.simulation.kafka_clients.admin import Admin
from support.simulation.loop import VirtualLoop
from support.simulation.mutations.mutation import Call, Mutation, WrapCall
from support.simulation.network import in_no_host
from support.simulation.scripted import ScriptedConsumer, produce

GROUP, TOPIC, DEAD_LETTERS = "G1", "orders", "dlq.orders"
GIVEN_UP = (2, 4)
RECORDS = 10
CONFIGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "1000",
    "errors.deadletterqueue.auto.create.topics.enable": "true",
}
GROUP_CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "2",
    "errors.deadletterqueue.topic.name": DEAD_LETTERS,
    "errors.deadletterqueue.copy.record.enable": "true",
}
DOWN_S = 0.5

ARCHIVING_NOT_SENT, ARCHIVING_ASKED, ARCHIVING_DURABLE = "archiving not sent", "archiving asked", "archiving durable"
LETTERS_NOT_SENT, LETTERS_ASKED, LETTERS_APPENDED = "letters not sent", "letters asked", "letters appended"
ARCHIVED_NOT_SENT, ARCHIVED_ASKED, ARCHIVED_DURABLE = "archived not sent", "archived asked", "archived durable"
SEEN_BY_ALL = (
    ARCHIVING_ASKED,
    ARCHIVING_DURABLE,
    LETTERS_ASKED,
    LETTERS_APPENDED,
    ARCHIVED_ASKED,
    ARCHIVED_DURABLE,
)


class Killer:
    """Watches the steps, and kills a leader once, at one of them."""

    def __init__(self, step: str | None, *, kills_destination: bool = False) -> None:
        self.step = step
        self.cluster: Cluster | None = None
        self.steps: list[str] = []
        self.source = self.destination = ""
        self.killed: list[str] = []
        self._kills_destination = kills_destination
        self._archiving_began = False

    def tap(
        self, source: str, target: str, method: Method[Any, Any], request: Any, answer: Message | None, sent_at: float
    ) -> None:
        if method == APPEND_DEAD_LETTERS:
            self.source, self.destination = source, target
            self._reached(LETTERS_ASKED if answer is None else LETTERS_APPENDED)
        elif method == WRITE_SHARE_GROUP_STATE and _is_archiving(request):
            self.source = source
            self._archiving_began = True
            self._reached(ARCHIVING_ASKED if answer is None else ARCHIVING_DURABLE)
        elif method == WRITE_SHARE_GROUP_STATE and LETTERS_APPENDED in self.steps:
            self._reached(ARCHIVED_ASKED if answer is None else ARCHIVED_DURABLE)

    def before_sending(self, call: Call) -> Call:
        """For a cluster with one leader: what it is about to send is a step too."""

        async def watched(method: Any, request: Any, payload: Any = (), *, timeout_ms: int) -> Any:
            step = None
            if method == APPEND_DEAD_LETTERS:
                step = LETTERS_NOT_SENT
            elif _is_archiving(request):
                step = ARCHIVING_NOT_SENT
            elif LETTERS_APPENDED in self.steps:
                step = ARCHIVED_NOT_SENT
            if step is not None and step == self.step and not self.killed:
                self.source = "leader-1"
                self._reached(step)
                await asyncio.sleep(3600)
            return await call(method, request, payload, timeout_ms=timeout_ms)

        return watched

    def _reached(self, step: str) -> None:
        self.steps.append(step)
        if step != self.step or self.killed:
            return
        assert self.cluster is not None
        name = self.destination if self._kills_destination else self.source
        self.killed.append(name)
        loop, host = self.cluster.loop, self.cluster.hosts[name]
        in_no_host(loop, loop.time(), host.crash)
        in_no_host(loop, loop.time() + DOWN_S, host.start)


def _is_archiving(request: Any) -> bool:
    return any(
        batch.delivery_state == RecordState.ARCHIVING
        for partition in request.partitions
        for batch in partition.state_batches
    )


async def act(cluster: Cluster, killer: Killer, *, rejects: bool) -> list[str]:
    """Gives up records 2-4, the others are accepted; returns the values in the dead-letter topic."""
    await cluster.start()
    client, of_logs = cluster.client("client"), cluster.log_client("of-logs")
    admin, logs = Admin(client), Admin(of_logs)
    metadata = await logs.create_topic(TOPIC, 1)
    await admin.set_group_configs(GROUP, GROUP_CONFIGS)
    await produce(of_logs, TOPIC, metadata, [f"v{offset}" for offset in range(RECORDS)])
    member = 0
    while True:
        member += 1
        consumer = ScriptedConsumer(cluster.client(f"consumer-{member}"), GROUP, f"member-{member}")
        try:
            metadata = await admin.create_topic(TOPIC, 1)
            await consumer.join(TOPIC, metadata)
            await give_up(consumer, killer, rejects=rejects)
            break
        except (ConnectionLost, AssertionError):
            if ARCHIVING_DURABLE in killer.steps:
                break
            assert member < 10
            await asyncio.sleep(1.5)  # the former member's locks run out
    await asyncio.sleep(20)
    return [record.value for record in await logs.read_log(DEAD_LETTERS, 0)]


async def give_up(consumer: ScriptedConsumer, killer: Killer, *, rejects: bool) -> None:
    """What is to be given up comes last, and alone: the write that follows it says Archiving.

    Where a leader died before it heard that Archiving is durable, its successor may go on, and nothing comes.
    """
    held: list[tuple[int, int]] = []
    while not held and LETTERS_APPENDED not in killer.steps:
        for first, last, _ in await consumer.fetch(RECORDS, max_wait_ms=500):
            for run in ((first, min(last, 1)), (max(first, 5), last)):
                if run[0] <= run[1]:
                    assert await consumer.acknowledge(run, AcknowledgeType.ACCEPT) == 0
            if first <= GIVEN_UP[1] and last >= GIVEN_UP[0]:
                held.append((max(first, GIVEN_UP[0]), min(last, GIVEN_UP[1])))
    if rejects:
        for run in held:
            assert await consumer.acknowledge(run, AcknowledgeType.REJECT) == 0
        return
    while held:
        for run in held:
            assert await consumer.acknowledge(run, AcknowledgeType.RELEASE) == 0
        held = [(first, last) for first, last, _ in await consumer.fetch(RECORDS, max_wait_ms=500)]


def run(
    killer: Killer, *, leaders: int, rejects: bool, mutation: Mutation | None = None, engine: str = EMBEDDED
) -> Cluster:
    loop = VirtualLoop(time_limit=300)
    name = f"{killer.step} {leaders} {rejects}"
    shape = Shape(engine=engine, brokers=3 if engine == KAFKA else 0, leaders=leaders, configs=CONFIGS)
    cluster = Cluster(loop, name, shape, mutation)
    killer.cluster = cluster
    cluster.fabric.taps.append(killer.tap)
    values = loop.run(act(cluster, killer, rejects=rejects))
    assert values == ["v2", "v3", "v4"], "each exactly once, and nothing else"
    starts = [event.start_offset for event in cluster.history.events if isinstance(event, StateWritten)]
    assert starts[-1] == RECORDS, f"the start offset passed what was given up; it went through {starts}"
    assert cluster.problems() == []
    return cluster


@pytest.mark.parametrize("rejects", [True, False], ids=["rejected", "exhausted"])
@pytest.mark.parametrize("leaders", [1, 2])
def test_without_a_crash(leaders: int, rejects: bool) -> None:
    killer = Killer(None)
    run(killer, leaders=leaders, rejects=rejects)
    assert tuple(dict.fromkeys(killer.steps)) == SEEN_BY_ALL
    assert (killer.source == killer.destination) == (leaders == 1), "two leaders: one has the source, one the letters"


@pytest.mark.parametrize("rejects", [True, False], ids=["rejected", "exhausted"])
@pytest.mark.parametrize("step", SEEN_BY_ALL)
def test_the_only_leader_dies(step: str, rejects: bool) -> None:
    killer = Killer(step)
    run(killer, leaders=1, rejects=rejects)
    assert killer.killed == ["leader-1"]


@pytest.mark.parametrize("step", [ARCHIVING_NOT_SENT, LETTERS_NOT_SENT, ARCHIVED_NOT_SENT])
def test_the_only_leader_dies_before_it_sends(step: str) -> None:
    killer = Killer(step)
    wrapped: dict[Method[Any, Any], WrapCall] = {
        WRITE_SHARE_GROUP_STATE: killer.before_sending,
        APPEND_DEAD_LETTERS: killer.before_sending,
    }
    run(killer, leaders=1, rejects=True, mutation=Mutation(calls={"leader": wrapped}))
    assert killer.killed == ["leader-1"]


@pytest.mark.parametrize("step", SEEN_BY_ALL)
def test_the_sources_leader_dies(step: str) -> None:
    killer = Killer(step)
    run(killer, leaders=2, rejects=True)
    assert killer.killed == [killer.source] != [killer.destination]


@pytest.mark.parametrize("step", [LETTERS_ASKED, LETTERS_APPENDED, ARCHIVED_ASKED])
def test_the_dead_letter_topics_leader_dies(step: str) -> None:
    killer = Killer(step, kills_destination=True)
    run(killer, leaders=2, rejects=True)
    assert killer.killed == [killer.destination] != [killer.source]


@pytest.mark.parametrize("rejects", [True, False], ids=["rejected", "exhausted"])
@pytest.mark.parametrize("step", [None, ARCHIVING_DURABLE])
@pytest.mark.parametrize("leaders", [1, 2])
def test_the_sources_leader_dies_in_front_of_an_existing_cluster(step: str | None, rejects: bool, leaders: int) -> None:
    """The next leader has no disk, and nobody fetches: the stored states tell it what to send.

    The steps between these are those of `tests/model/leader/dead_letters`.
    """
    killer = Killer(step)
    run(killer, leaders=leaders, rejects=rejects, engine=KAFKA)
    assert ARCHIVING_DURABLE in killer.steps and killer.killed == ([] if step is None else [killer.killed[0]])
