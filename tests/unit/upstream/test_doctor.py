"""What the doctor finds on clusters that lack something, and what it proposes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest

from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.errors import ErrorCode
from kshare_upstream.doctor.examination import Examination, examine
from kshare_upstream.doctor.findings import Diagnosis, Severity
from kshare_upstream.port import REQUESTS, AResponse, UpstreamPartitionName
from kshare_upstream.topics import DEFAULT_REPLICAS, Replicas
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.create_topics import CreateTopicsRequest
from kshare_wire.generated.requests.delete_records import DeleteRecordsRequest
from kshare_wire.generated.requests.delete_topics import DeleteTopicsRequest
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest
from kshare_wire.generated.requests.init_producer_id import InitProducerIdRequest
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.messages import Request
from kshare_wire.record_batches import read_header
from support.upstream.memory_upstream import KAFKA_3_9, MemoryLog, MemoryUpstream
from support.upstream.topics_upstream import TopicsUpstream

SAFE = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
BOOTSTRAP = "broker:9092"
NOW_MS = 1_796_000_000_000
OWN_TOPICS = ("__kshare_state", "__kshare_metadata")


def examined(
    upstream: MemoryUpstream,
    *,
    step_ms: float = 1.0,
    has_history: bool = False,
    topics_of_earlier_work: Sequence[str] = (),
    replicas: Replicas = DEFAULT_REPLICAS,
) -> Diagnosis:
    """The diagnosis of a cluster whose every write takes `step_ms`."""
    clock = iter(range(1_000_000))
    examination = Examination(
        bootstrap=BOOTSTRAP,
        prefix="__kshare_",
        suffix="x1",
        now_ms=lambda: next(clock) * step_ms,
        wall_clock_ms=NOW_MS,
        has_history=has_history,
        topics_of_earlier_work=topics_of_earlier_work,
        own_topics=OWN_TOPICS,
        replicas=replicas,
    )
    return asyncio.run(examine(upstream, examination))


def told(diagnosis: Diagnosis, severity: Severity) -> str:
    return "\n".join(finding.text for finding in diagnosis.of(severity))


def test_a_cluster_that_lacks_nothing_but_brokers() -> None:
    upstream = MemoryUpstream(configs=SAFE)
    diagnosis = examined(upstream)
    assert not diagnosis.is_refused
    assert [finding.text.split(":")[0] for finding in diagnosis.of(Severity.WARNING)] == ["the cluster has one broker"]
    fine = told(diagnosis, Severity.OK)
    assert "1 broker with the protocol of Apache Kafka 3.9 or later" in fine
    assert "a write with acks=all to 1 replica takes 1.00 ms" in fine
    assert "stored once" in fine and "DeleteRecords removes" in fine
    assert upstream.logs == {}, "the trial's topic is deleted"


class TimedUpstream(MemoryUpstream):
    """Refuses records that are older than a day (log.message.timestamp.before.max.ms)."""

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        if isinstance(request, ProduceRequest):
            records = request.topic_data[0].partition_data[0].records
            assert records is not None
            if read_header(memoryview(bytes(records))).max_timestamp_ms < NOW_MS - 86_400_000:
                self.flaws.errors.setdefault(ProduceRequest, []).append(ErrorCode.INVALID_TIMESTAMP)
        return await super().ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)


def test_a_cluster_that_refuses_old_timestamps() -> None:
    diagnosis = examined(TimedUpstream(configs=SAFE))
    assert not diagnosis.is_refused and "stored once" in told(diagnosis, Severity.OK)


@pytest.mark.parametrize(
    ("existing", "is_tried"),
    [((), True), (("__kshare_state",), True), (("__kshare_state", "__kshare_metadata"), False)],
    ids=["never used", "a topic is missing", "used before"],
)
def test_a_cluster_in_which_kshare_has_worked_is_not_tried_again(existing: Sequence[str], *, is_tried: bool) -> None:
    upstream = MemoryUpstream(configs={**SAFE, "unclean.leader.election.enable": "true"})
    for name in existing:
        upstream.logs[UpstreamPartitionName(name, 0)] = MemoryLog()
    diagnosis = examined(upstream, topics_of_earlier_work=["__kshare_state", "__kshare_metadata"])
    assert not diagnosis.is_refused and "unclean" in told(diagnosis, Severity.WARNING)
    assert ("a write with acks=all" in told(diagnosis, Severity.OK)) == is_tried


@pytest.mark.parametrize(
    ("brokers", "replicas", "expected"),
    [
        (1, DEFAULT_REPLICAS, None),
        (2, DEFAULT_REPLICAS, 2),
        (3, DEFAULT_REPLICAS, 3),
        (5, DEFAULT_REPLICAS, 3),
        (5, Replicas(4, is_configured=True), 4),
        (3, Replicas(1, is_configured=True), None),
    ],
)
def test_topics_with_fewer_replicas_than_they_could_have_are_named(
    brokers: int, replicas: Replicas, expected: int | None
) -> None:
    """kshare was first started while one broker was alive."""
    upstream = TopicsUpstream(brokers=1)
    for name, factor in (*dict.fromkeys(OWN_TOPICS, 1).items(), ("__kshare_dead_letters", 1), ("orders", 1)):
        upstream.put(name, 2, replication_factor=factor)
    upstream.brokers = TopicsUpstream(brokers=brokers).brokers
    diagnosis = examined(upstream, topics_of_earlier_work=OWN_TOPICS, replicas=replicas)
    found = [each.text for each in diagnosis.of(Severity.WARNING) if "replication factor" in each.text]
    if expected is None:
        assert found == []
        return
    (text,) = found
    listed = "__kshare_state (1), __kshare_metadata (1), __kshare_dead_letters (1)"
    assert text.startswith(f"topics of kshare have a replication factor below {expected}: {listed}. ")
    assert text.endswith(f"min.insync.replicas to {expected - 1}")
    for name in (*OWN_TOPICS, "__kshare_dead_letters"):
        upstream.put(name, 2, replication_factor=expected)
    assert "replication factor" not in told(
        examined(upstream, topics_of_earlier_work=OWN_TOPICS, replicas=replicas), Severity.WARNING
    )


@pytest.mark.parametrize("topics_exist", [False, True])
def test_a_configured_replication_factor_above_the_brokers_is_refused_before_the_first_start(
    *, topics_exist: bool
) -> None:
    upstream = MemoryUpstream(configs=SAFE)
    for name in OWN_TOPICS if topics_exist else ():
        upstream.logs[UpstreamPartitionName(name, 0)] = MemoryLog()
    diagnosis = examined(upstream, replicas=Replicas(3, is_configured=True))
    assert diagnosis.is_refused is not topics_exist
    if not topics_exist:
        assert "INVALID_REPLICATION_FACTOR" in told(diagnosis, Severity.REFUSAL)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({**KAFKA_3_9, ApiKey.FETCH: 10}, "Fetch is needed in version 11 or later: its highest version is 10"),
        ({key: high for key, high in KAFKA_3_9.items() if key != ApiKey.DELETE_RECORDS}, "DeleteRecords is needed"),
        ({ApiKey.METADATA: 5}, "Metadata is needed in version 7 or later"),
    ],
    ids=["old", "without DeleteRecords", "nothing"],
)
def test_a_cluster_that_is_too_old_is_refused_without_a_trial(versions: Mapping[int, int], expected: str) -> None:
    upstream = MemoryUpstream(versions=versions)
    diagnosis = examined(upstream)
    assert diagnosis.is_refused and expected in told(diagnosis, Severity.REFUSAL)
    assert "acks=all" not in told(diagnosis, Severity.OK)


def test_without_topic_ids_there_is_a_warning() -> None:
    diagnosis = examined(MemoryUpstream(configs=SAFE, versions={**KAFKA_3_9, ApiKey.METADATA: 9}))
    assert not diagnosis.is_refused and "no topic ids" in told(diagnosis, Severity.WARNING)


def test_unclean_elections_are_named_with_the_command_that_ends_them() -> None:
    diagnosis = examined(MemoryUpstream(configs={**SAFE, "unclean.leader.election.enable": "true"}))
    (finding,) = [each for each in diagnosis.of(Severity.WARNING) if "election" in each.text]
    assert finding.text.startswith("unclean.leader.election.enable is true on broker 1:")
    assert finding.command == (
        "kafka-configs.sh --bootstrap-server broker:9092 --alter --entity-type brokers --entity-default "
        "--add-config unclean.leader.election.enable=false"
    )


def plant_forgotten_sequences(upstream: MemoryUpstream) -> None:
    upstream.flaws.forgets_sequences = True


def plant_ignored_deletion(upstream: MemoryUpstream) -> None:
    upstream.flaws.ignores_delete_records = True


def plant_refused_deletion(upstream: MemoryUpstream) -> None:
    upstream.flaws.errors[DeleteRecordsRequest] = [ErrorCode.POLICY_VIOLATION]


def plant_refused_creation(upstream: MemoryUpstream) -> None:
    upstream.flaws.errors[CreateTopicsRequest] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def plant_refused_write(upstream: MemoryUpstream) -> None:
    upstream.flaws.errors[ProduceRequest] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def plant_refused_producer(upstream: MemoryUpstream) -> None:
    upstream.flaws.errors[InitProducerIdRequest] = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


RIGHTS = (
    "kafka-acls.sh --bootstrap-server broker:9092 --add --allow-principal User:KSHARE --operation All "
    "--topic __kshare_ --resource-pattern-type prefixed"
)


@pytest.mark.parametrize(
    ("plant", "expected", "command"),
    [
        (plant_forgotten_sequences, "could not tell which of its writes count", ""),
        (plant_ignored_deletion, "DeleteRecords below offset 25 left the log's start at 0", ""),
        (plant_refused_deletion, "DeleteRecords is refused, so the log of share-group state would grow forever", ""),
        (plant_refused_creation, "kshare cannot create its topics: CreateTopics", RIGHTS),
        (plant_refused_write, "a topic of kshare cannot be used: Produce", RIGHTS),
        (plant_refused_producer, "a topic of kshare cannot be used: InitProducerId", RIGHTS),
    ],
)
def test_what_the_trial_finds_is_a_refusal(
    plant: Callable[[MemoryUpstream], None], expected: str, command: str
) -> None:
    upstream = MemoryUpstream(configs=SAFE)
    plant(upstream)
    diagnosis = examined(upstream)
    (finding,) = diagnosis.of(Severity.REFUSAL)
    assert expected in finding.text and finding.command == command
    assert upstream.logs == {}, "the trial's topic is deleted"


def test_a_topic_that_cannot_be_deleted_is_named() -> None:
    upstream = MemoryUpstream(configs=SAFE)
    upstream.flaws.errors[DeleteTopicsRequest] = [ErrorCode.TOPIC_DELETION_DISABLED]
    diagnosis = examined(upstream)
    (finding,) = [each for each in diagnosis.of(Severity.WARNING) if "left over" in each.text]
    assert finding.command == "kafka-topics.sh --bootstrap-server broker:9092 --delete --topic __kshare_check_x1"


def test_configs_that_may_not_be_read_are_a_warning() -> None:
    upstream = MemoryUpstream(configs=SAFE)
    upstream.flaws.errors[DescribeConfigsRequest] = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    diagnosis = examined(upstream)
    assert not diagnosis.is_refused
    (finding,) = [each for each in diagnosis.of(Severity.WARNING) if "configs" in each.text]
    assert finding.command.endswith("--operation DescribeConfigs --cluster")


def test_slow_writes_are_a_warning() -> None:
    diagnosis = examined(MemoryUpstream(configs=SAFE), step_ms=25.0)
    assert "takes 25.00 ms" in told(diagnosis, Severity.WARNING)


HISTORY_RIGHTS = (
    "kafka-acls.sh --bootstrap-server broker:9092 --add --allow-principal User:KSHARE --operation Create "
    f"--operation Describe --operation DescribeConfigs --operation Write --topic {HISTORY_TOPIC}"
)


def plant_hidden_history(upstream: MemoryUpstream) -> None:
    upstream.flaws.errors[MetadataRequest] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def plant_forbidden_history(upstream: MemoryUpstream) -> None:
    upstream.flaws.errors[CreateTopicsRequest] = [ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def plant_read_only_history(upstream: MemoryUpstream) -> None:
    upstream.logs[UpstreamPartitionName(HISTORY_TOPIC, 0)] = MemoryLog()
    upstream.authorized_operations = 1 << 3 | 1 << 8 | 1 << 10  # READ, DESCRIBE, DESCRIBE_CONFIGS


@pytest.mark.parametrize(
    ("plant", "lacking"),
    [(plant_hidden_history, "Describe"), (plant_forbidden_history, "Create"), (plant_read_only_history, "Write")],
)
def test_rights_that_the_history_lacks_are_a_warning(plant: Callable[[MemoryUpstream], None], lacking: str) -> None:
    upstream = MemoryUpstream(configs=SAFE)
    plant(upstream)
    diagnosis = examined(upstream, has_history=True)
    assert not diagnosis.is_refused
    (finding,) = [each for each in diagnosis.of(Severity.WARNING) if "history" in each.text]
    assert f"the user lacks {lacking} on topic {HISTORY_TOPIC}" in finding.text
    assert finding.command == HISTORY_RIGHTS


def test_the_history_is_examined_where_it_is_written_and_leaves_nothing_behind() -> None:
    upstream = MemoryUpstream(configs=SAFE)
    assert "history" not in told(examined(upstream), Severity.OK)
    assert "can be written" in told(examined(upstream, has_history=True), Severity.OK)
    assert upstream.logs == {}
    upstream.logs[UpstreamPartitionName(HISTORY_TOPIC, 0)] = MemoryLog()
    assert "can be written" in told(examined(upstream, has_history=True), Severity.OK), "operations are not told"
