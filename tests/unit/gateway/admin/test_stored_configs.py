"""DescribeConfigs and CreateTopics with configs in the catalog that this version would not accept."""

from __future__ import annotations

from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import TOPIC_ID, GatewayClient, GatewayHarness, run, topic

TOPIC, BROKER, GROUP = 2, 4, 32
RATIO, BROKER_RATIO = "min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio"
BROKER_RATE = "log.cleaner.io.max.bytes.per.second"
LOCK = "share.record.lock.duration.ms"

Described = dict[str, str | None]


async def described(client: GatewayClient, *resources: tuple[int, str]) -> list[tuple[int, Described]]:
    """The error code and the values of each resource."""
    wanted = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in resources]
    answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=wanted)
    return [
        (int(result.error_code), {entry.name: entry.value for entry in result.configs}) for result in answer.results
    ]


def test_numbers_that_an_older_version_accepted_are_shown() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        odd = {RATIO: "NaN", "segment.bytes": "1_048_576"}
        harness.catalog.topics["orders"] = topic("orders", TOPIC_ID, [1], **odd)
        harness.catalog.group_configs = {"workers": {LOCK: "20_000"}}
        harness.catalog.change()
        await harness.settle()
        answers = await described(harness.client(), (TOPIC, "mixed"), (TOPIC, "orders"), (GROUP, "workers"))
        assert [code for code, _ in answers] == [0, 0, 0]
        (_, mixed), (_, orders), (_, workers) = answers
        assert (mixed[RATIO], orders[RATIO]) == ("0.5", "NaN")
        assert (orders["segment.bytes"], workers[LOCK]) == ("1048576", "20000")

    run(scenario)


@pytest.mark.parametrize("broker_id", ["", "7"], ids=["all", "one"])
def test_a_brokers_doubles_that_an_older_version_accepted_are_shown(broker_id: str) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def create(request: Any, payload: memoryview) -> Any:
            harness.catalog.topics["new"] = topic("new", bytes([9] * 16), [1])
            answer = pb.CreateTopicsResponse(version=harness.catalog.change())
            answer.topics.add(name="new", topic_id=bytes([9] * 16), num_partitions=1)
            return answer

        harness.catalog.answers["CreateTopics"] = create
        harness.catalog.broker_configs = {broker_id: {BROKER_RATIO: "nan", BROKER_RATE: "Infinity"}}
        harness.catalog.change()
        await harness.settle()
        client = harness.client()
        answers = await described(client, *dict.fromkeys([(BROKER, "7"), (BROKER, broker_id)]), (TOPIC, "mixed"))
        assert {code for code, _ in answers} == {0}
        for _, broker in answers[:-1]:
            assert (broker[BROKER_RATIO], broker[BROKER_RATE]) == ("NaN", "Infinity")
        assert answers[-1][1][RATIO] == "NaN"
        wanted = [{"name": "new", "num_partitions": 1, "replication_factor": 1}]
        created = await client.ask(ApiKey.CREATE_TOPICS, 7, topics=wanted, timeout=5000)
        assert int(created.topics[0].error_code) == 0
        assert {entry.name: entry.value for entry in created.topics[0].configs}[RATIO] == "NaN"

    run(scenario)


def test_a_value_of_a_newer_version_is_an_error_of_its_own_topic(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        newer = {"compression.type": "brotli"}
        names = [f"newer-{number}" for number in range(100)]
        for number, name in enumerate(names):
            harness.catalog.topics[name] = topic(name, bytes([200, number] * 8), [1], **newer)
        harness.catalog.change()
        await harness.settle()
        answers = await described(harness.client(), *((TOPIC, name) for name in names), (TOPIC, "orders"))
        assert [code for code, _ in answers] == [*[ErrorCode.UNKNOWN_SERVER_ERROR] * 100, 0]
        assert answers[-1][1]["compression.type"] == "producer"
        lines = [record for record in caplog.records if "'newer-" in record.getMessage()]
        assert "brotli" in caplog.text and lines[0].levelname == "ERROR"
        assert [record.exc_info is not None for record in lines] == [True, *[False] * (len(lines) - 1)]
        assert len(lines) < 30

    run(scenario)
