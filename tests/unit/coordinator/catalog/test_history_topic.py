"""`__share_delivery_history` in the catalog: a role makes it, and clients do not change it."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands
from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver

Creatable = pb.CreateTopicsRequest.CreatableTopic


def creatable(name: str = HISTORY_TOPIC, *, internal: bool = True) -> Creatable:
    return Creatable(name=name, num_partitions=2, replication_factor=-1, internal=internal)


def with_topic() -> tuple[CoordinatorDriver, bytes]:
    driver = CoordinatorDriver()
    (result,) = driver.create(creatable())
    assert result.error_code == 0
    return driver, result.topic_id


def test_a_role_makes_it_and_all_see_that_it_is_internal() -> None:
    driver, topic_id = with_topic()
    driver.restart()
    topic = driver.state.topics[topic_id]
    assert (topic.name, topic.internal, len(topic.placements)) == (HISTORY_TOPIC, True, 2)
    (again,) = driver.create(creatable())
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    "topic",
    [
        creatable(internal=False),
        creatable("__consumer_offsets"),
        creatable("__consumer_offsets", internal=False),
        creatable("orders"),
    ],
    ids=["a client makes it", "of nobody", "of nobody, by a client", "an ordinary one as internal"],
)
def test_what_is_refused(topic: Creatable) -> None:
    driver = CoordinatorDriver()
    (result,) = driver.create(topic)
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert not driver.state.topics


def test_it_is_not_deleted_by_name_nor_by_id_and_does_not_grow() -> None:
    driver, topic_id = with_topic()
    Reference = pb.DeleteTopicsRequest.TopicReference
    for reference in (Reference(name=HISTORY_TOPIC), Reference(topic_id=topic_id)):
        request = pb.DeleteTopicsRequest(topics=[reference])
        (result,) = driver.run(commands.DeleteTopics(request=request)).results
        assert result.error_code == ErrorCode.INVALID_REQUEST
    growing = pb.CreatePartitionsRequest(topics=[pb.CreatePartitionsRequest.Topic(name=HISTORY_TOPIC, count=9)])
    (grown,) = driver.run(commands.CreatePartitions(request=growing)).results
    assert grown.error_code == ErrorCode.INVALID_REQUEST
    assert len(driver.state.topics[topic_id].placements) == 2
