"""IncrementalAlterConfigs: operations, errors, bounds, and that a resource is changed as a whole or not at all."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands, records
from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from support.coordinator.driver import CoordinatorDriver, creatable

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, GROUP = 2, 4, 32
LOCK = "share.record.lock.duration.ms"
RATIO = "min.cleanable.dirty.ratio"

Change = tuple[str, int, str | None]


def resource(kind: int, name: str, *changes: Change) -> pb.IncrementalAlterConfigsRequest.Resource:
    return pb.IncrementalAlterConfigsRequest.Resource(
        resource_type=kind,
        resource_name=name,
        configs=[
            pb.IncrementalAlterConfigsRequest.AlterableConfig(
                name=config, config_operation=operation, value=value or "", value_is_null=value is None
            )
            for config, operation, value in changes
        ],
    )


def alter(
    driver: CoordinatorDriver, *resources: pb.IncrementalAlterConfigsRequest.Resource, validate_only: bool = False
) -> list[E]:
    request = pb.IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
    answer = driver.run(commands.IncrementalAlterConfigs(request=request))
    for result in answer.results:
        assert bool(result.error_code) == bool(result.error_message)
    return [E(result.error_code) for result in answer.results]


def topic_configs(driver: CoordinatorDriver, name: str = "t") -> dict[str, str]:
    return {entry.name: entry.value for entry in driver.state.topics[driver.state.topic_ids[name]].configs}


@pytest.fixture
def driver() -> CoordinatorDriver:
    made = CoordinatorDriver()
    made.create_topic("t", 1)
    return made


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (resource(TOPIC, "missing", ("retention.ms", SET, "1")), E.UNKNOWN_TOPIC_OR_PARTITION),
        (resource(TOPIC, "t", ("no.such.config", SET, "1")), E.INVALID_CONFIG),
        (resource(TOPIC, "missing", ("retention.ms", SET, "soon")), E.INVALID_CONFIG),
        (resource(TOPIC, "", ("retention.ms", SET, "1")), E.INVALID_REQUEST),
        (resource(TOPIC, "bad name", ("retention.ms", SET, "1")), E.INVALID_TOPIC_EXCEPTION),
        (resource(TOPIC, "__consumer_offsets", ("retention.ms", SET, "1")), E.INVALID_REQUEST),
        (resource(TOPIC, "t", ("retention.ms", SET, "soon")), E.INVALID_CONFIG),
        (resource(TOPIC, "t", (RATIO, SET, "NaN")), E.INVALID_CONFIG),
        (resource(TOPIC, "t", ("segment.bytes", SET, "1_048_576")), E.INVALID_CONFIG),
        (resource(TOPIC, "t", ("remote.storage.enable", SET, "true")), E.INVALID_CONFIG),
        (resource(TOPIC, "t", ("retention.ms", SET, None)), E.INVALID_REQUEST),
        (resource(TOPIC, "t", ("retention.ms", APPEND, "1")), E.INVALID_CONFIG),
        (resource(TOPIC, "t", ("retention.ms", 7, "1")), E.INVALID_REQUEST),
        (resource(TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None)), E.INVALID_REQUEST),
        (resource(TOPIC, "t", ("cleanup.policy", APPEND, "nonsense")), E.INVALID_CONFIG),
        (resource(GROUP, "", (LOCK, SET, "20000")), E.INVALID_REQUEST),
        (resource(GROUP, "g", ("no.such.config", SET, "1")), E.INVALID_CONFIG),
        (resource(GROUP, "g", (LOCK, SET, "14999")), E.INVALID_CONFIG),
        (resource(GROUP, "g", (LOCK, SET, "60001")), E.INVALID_CONFIG),
        (resource(GROUP, "g", ("share.auto.offset.reset", SET, "sometime")), E.INVALID_CONFIG),
        (resource(GROUP, "g", ("share.isolation.level", SET, "read_half")), E.INVALID_CONFIG),
        (resource(BROKER, "1", ("num.partitions", SET, "2")), E.INVALID_REQUEST),
        (resource(BROKER, "", ("num.partitions", SET, "2")), E.INVALID_REQUEST),
        (resource(BROKER, "", ("kshare.max.groups", SET, "2")), E.INVALID_REQUEST),
        (resource(BROKER, "1", ("kshare.max.gruops", SET, "2")), E.INVALID_REQUEST),
        (resource(BROKER, "one", ("max.connections", SET, "2")), E.INVALID_REQUEST),
        (resource(BROKER, "-1", ("max.connections", SET, "2")), E.INVALID_REQUEST),
        (resource(BROKER, "", ("max.connections", SET, "many")), E.INVALID_REQUEST),
        (resource(BROKER, "", ("log.cleaner.min.cleanable.ratio", SET, "nan")), E.INVALID_REQUEST),
        (resource(BROKER, "1", ("leader.replication.throttled.rate", SET, "abc")), E.INVALID_REQUEST),
        (resource(BROKER, "", ("max.connections", SET, None)), E.INVALID_REQUEST),
        (resource(BROKER, "", ("max.connections", APPEND, "2")), E.INVALID_CONFIG),
        (resource(BROKER, "", ("no.such.config", APPEND, "2")), E.INVALID_CONFIG),
        (resource(BROKER, "", ("listeners", SET, "PLAINTEXT://:1")), E.INVALID_REQUEST),
        (resource(BROKER, "1", ("ssl.keystore.type", SET, "JKS")), E.INVALID_REQUEST),
        (resource(BROKER, "", ("listener.name.x.ssl.keystore.type", SET, "JKS")), E.INVALID_REQUEST),
        (resource(BROKER, "", ("num.io.threads", SET, "17")), E.INVALID_REQUEST),
        (resource(BROKER, "", ("group.share.assignment.interval.ms", SET, "15001")), E.INVALID_REQUEST),
        (resource(77, "x", ("num.partitions", SET, "2")), E.INVALID_REQUEST),
    ],
)
def test_refused_changes(
    driver: CoordinatorDriver, change: pb.IncrementalAlterConfigsRequest.Resource, code: E
) -> None:
    rows = dict(driver.rows)
    assert alter(driver, change) == [code]
    assert driver.rows == rows


def test_set_append_subtract_and_delete(driver: CoordinatorDriver) -> None:
    assert alter(
        driver, resource(TOPIC, "t", ("retention.ms", SET, "5000"), ("cleanup.policy", APPEND, "compact"))
    ) == [E.NONE]
    assert topic_configs(driver) == {"retention.ms": "5000", "cleanup.policy": "delete,compact"}
    assert alter(driver, resource(TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"))) == [E.NONE]
    assert topic_configs(driver) == {"retention.ms": "5000", "cleanup.policy": "compact"}
    assert alter(driver, resource(TOPIC, "t", ("retention.ms", DELETE, None), ("segment.ms", DELETE, None))) == [E.NONE]
    assert topic_configs(driver) == {"cleanup.policy": "compact"}
    assert driver.load().state == driver.state


def test_a_list_that_a_topic_does_not_have_begins_with_kafkas_default() -> None:
    """Not with that of the broker: KafkaConfigSchema.getDefault of Kafka 4.3.1."""
    driver = CoordinatorDriver({"log.cleanup.policy": "compact"})
    driver.create_topic("t")
    assert alter(driver, resource(TOPIC, "t", ("cleanup.policy", APPEND, "compact"))) == [E.NONE]
    assert topic_configs(driver) == {"cleanup.policy": "delete,compact"}


def test_each_resource_stands_for_itself(driver: CoordinatorDriver) -> None:
    codes = alter(
        driver,
        resource(TOPIC, "t", ("retention.ms", SET, "5000"), ("segment.ms", SET, "never")),
        resource(GROUP, "g", (LOCK, SET, "20000")),
        resource(GROUP, "twice", (LOCK, SET, "20000")),
        resource(GROUP, "twice", (LOCK, SET, "30000")),
    )
    assert codes == [E.INVALID_CONFIG, E.NONE, E.INVALID_REQUEST, E.INVALID_REQUEST]
    assert topic_configs(driver) == {}
    assert driver.state.group_configs == {"g": {LOCK: "20000"}}


def test_a_value_that_an_older_version_stored_can_be_deleted(driver: CoordinatorDriver) -> None:
    stored = records_pb.TopicRecord()
    stored.CopyFrom(driver.state.topics[driver.state.topic_ids["t"]])
    stored.configs.add(name=RATIO, value="NaN")
    write = records.write_of(records.topic(stored))
    assert write.value is not None
    driver.rows[write.key] = write.value
    driver.restart()
    assert topic_configs(driver) == {RATIO: "NaN"}
    assert alter(driver, resource(TOPIC, "t", ("retention.ms", SET, "5"))) == [E.INVALID_CONFIG]
    assert alter(driver, resource(TOPIC, "t", ("retention.ms", SET, "5"), (RATIO, DELETE, None))) == [E.NONE]
    assert topic_configs(driver) == {"retention.ms": "5"}


def test_validate_only(driver: CoordinatorDriver) -> None:
    rows = dict(driver.rows)
    good, bad = resource(GROUP, "g", (LOCK, SET, "20000")), resource(GROUP, "h", (LOCK, SET, "1"))
    assert alter(driver, good, bad, validate_only=True) == [E.NONE, E.INVALID_CONFIG]
    assert driver.rows == rows


def test_a_group_without_configs_is_forgotten(driver: CoordinatorDriver) -> None:
    alter(driver, resource(GROUP, "g", (LOCK, SET, "20000")))
    rows = len(driver.rows)
    alter(driver, resource(GROUP, "g", (LOCK, DELETE, None)))
    assert (len(driver.rows), driver.state.group_configs) == (rows - 1, {})


def test_intervals_of_a_group_follow_its_configs(driver: CoordinatorDriver) -> None:
    driver.heartbeat("m", 0, ["t"], "g")
    driver.initialize_all("g")
    alter(
        driver,
        resource(GROUP, "g", ("share.session.timeout.ms", SET, "60000"), ("share.heartbeat.interval.ms", SET, "9000")),
    )
    answer = driver.heartbeat("m", 2, None, "g")
    assert answer.heartbeat_interval_ms == 9000
    assert driver.effects == [commands.SessionRenewed(group_id="g", member_id="m", session_timeout_ms=60000)]
    alter(driver, resource(GROUP, "g", ("share.session.timeout.ms", DELETE, None)))
    driver.heartbeat("m", 3, None, "g")
    assert driver.effects == [commands.SessionRenewed(group_id="g", member_id="m", session_timeout_ms=45000)]


DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("dlq.enabled", None),
        ("", None),
        ("dlq.missing", "the topic does not exist; create it with errors.deadletterqueue.group.enable=true first"),
        ("dlq.plain", "does not allow dead letters; set its errors.deadletterqueue.group.enable=true first"),
        ("enabled", "it must start with 'dlq.' (errors.deadletterqueue.topic.name.prefix of the brokers)"),
        ("__internal", "must not start with __"),
        ("__share_group_state", "must not start with __"),
        ("with space", "with space"),
        ("..", "'..'"),
        ("x" * 250, "249"),
    ],
)
def test_a_group_is_refused_a_dead_letter_topic_that_could_not_receive(
    driver: CoordinatorDriver, name: str, problem: str | None
) -> None:
    enabled = {"errors.deadletterqueue.group.enable": "true"}
    driver.create(creatable("dlq.enabled", 1, configs=enabled), creatable("enabled", 1, configs=enabled))
    driver.create_topic("dlq.plain", 1)
    change = resource(GROUP, "g", (DEAD_LETTER_TOPIC, SET, name))
    request = pb.IncrementalAlterConfigsRequest(resources=[change])
    [result] = driver.run(commands.IncrementalAlterConfigs(request=request)).results
    assert result.error_code == (E.NONE if problem is None else E.INVALID_CONFIG)
    assert (problem or "") in result.error_message
    assert driver.state.group_configs.get("g", {}) == ({DEAD_LETTER_TOPIC: name} if problem is None else {})


def test_a_dead_letter_topic_that_may_be_created_need_not_exist() -> None:
    driver = CoordinatorDriver(configs={"errors.deadletterqueue.auto.create.topics.enable": "true"})
    assert alter(driver, resource(GROUP, "g", (DEAD_LETTER_TOPIC, SET, "dlq.later"))) == [E.NONE]


def test_other_configs_of_a_group_change_though_its_dead_letter_topic_is_gone(driver: CoordinatorDriver) -> None:
    driver.create(creatable("dlq.x", 1, configs={"errors.deadletterqueue.group.enable": "true"}))
    assert alter(driver, resource(GROUP, "g", (DEAD_LETTER_TOPIC, SET, "dlq.x"))) == [E.NONE]
    driver.delete("dlq.x")
    assert alter(driver, resource(GROUP, "g", ("share.auto.offset.reset", SET, "earliest"))) == [E.NONE]
