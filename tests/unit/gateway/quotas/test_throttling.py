"""Which quota counts for a client, who shares it, and what each kind of request is charged with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_core.errors import ErrorCode
from kshare_core.security.addresses import address_text
from kshare_gateway.quotas.entities import Entity, QuotaTable
from kshare_gateway.quotas.throttling import Throttling, Timed, with_short_client_id
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.kshare.v1.security_pb2 import (
    ClientQuotas,
    QuotaEntity,
    SecurityEntry,
    SecurityKey,
    SecurityValue,
)
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import GatewayHarness, run

PRODUCE, CONSUME = "producer_byte_rate", "consumer_byte_rate"


def rows_of(*quotas: tuple[dict[str, str], dict[str, float]]) -> Mapping[bytes, SecurityEntry]:
    found = {}
    for entity, values in quotas:
        key = SecurityKey(quota_entity=QuotaEntity(**entity))
        value = SecurityValue(client_quotas=ClientQuotas(values=values))
        found[key.SerializeToString(deterministic=True)] = SecurityEntry(key=key, value=value)
    return found


LEVELS: list[dict[str, str]] = [
    {"user": "u", "client_id": "c"},
    {"user": "u", "client_id": ""},
    {"user": "u"},
    {"user": "", "client_id": "c"},
    {"user": "", "client_id": ""},
    {"user": ""},
    {"client_id": "c"},
    {"client_id": ""},
]
"""From the most specific to the least."""


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_the_most_specific_entity_counts(level: int) -> None:
    quotas = [(entity, {PRODUCE: float(number + 1)}) for number, entity in enumerate(LEVELS)]
    table = QuotaTable(rows_of(*reversed(quotas[level:])))
    quota = table.of_client(PRODUCE, "u", "c")
    assert quota is not None and quota.bound == level + 1
    entity = LEVELS[level]
    assert quota.shared_by == Entity("u" if "user" in entity else None, "c" if "client_id" in entity else None)
    assert table.of_client(CONSUME, "u", "c") is None


def test_an_entity_without_the_quota_is_passed_over() -> None:
    table = QuotaTable(rows_of(({"user": "u"}, {CONSUME: 1.0}), ({"client_id": ""}, {PRODUCE: 2.0})))
    quota = table.of_client(PRODUCE, "u", "c")
    assert quota is not None and quota.bound == 2.0


class Driver:
    def __init__(self, *quotas: tuple[dict[str, str], dict[str, float]]) -> None:
        self.now_ms = 0
        self.rows = rows_of(*quotas)
        self.throttling = Throttling(Configs(PROCESS_CONFIGS), lambda: self.rows, lambda: self.now_ms)

    def charge(self, api: ApiKey, user: str = "u", client: str = "c", **sizes: Any) -> int:
        assert self.throttling.is_active
        values = {"request_bytes": 0, "response_bytes": 0, "busy_s": 0.0, **sizes}
        return self.throttling.charge(api, user, client, **values)


@pytest.mark.parametrize(
    ("quota", "api", "size", "is_charged"),
    [
        (PRODUCE, ApiKey.PRODUCE, "request_bytes", True),
        (PRODUCE, ApiKey.FETCH, "request_bytes", False),
        (CONSUME, ApiKey.FETCH, "response_bytes", True),
        (CONSUME, ApiKey.SHARE_FETCH, "response_bytes", True),
        (CONSUME, ApiKey.METADATA, "response_bytes", False),
        (CONSUME, ApiKey.PRODUCE, "response_bytes", False),
        ("request_percentage", ApiKey.METADATA, "busy_s", True),
        ("request_percentage", ApiKey.API_VERSIONS, "busy_s", False),
    ],
)
def test_what_a_request_is_charged_with(quota: str, api: ApiKey, size: str, is_charged: bool) -> None:
    driver = Driver(({"user": "u"}, {quota: 100.0}))
    sizes: dict[str, Any] = {size: 2000}
    throttle_ms = driver.charge(api, **sizes)
    assert bool(throttle_ms) is is_charged
    assert (quota in driver.throttling.throttled_ms) is is_charged
    assert driver.charge(api, user="other", **sizes) == 0


def test_time_throttles_for_one_window_at_most() -> None:
    driver = Driver(({"user": "u"}, {"request_percentage": 1.0}))
    assert driver.charge(ApiKey.METADATA, busy_s=100.0) == 1000


def test_clients_of_a_user_share_its_quota_and_those_of_any_user_do_not() -> None:
    driver = Driver(({"user": "u"}, {PRODUCE: 1000.0}), ({"user": ""}, {PRODUCE: 1000.0}))
    assert driver.charge(ApiKey.PRODUCE, client="one", request_bytes=10_000) == 0
    assert driver.charge(ApiKey.PRODUCE, client="two", request_bytes=10_000) == 10_000
    assert driver.charge(ApiKey.PRODUCE, user="v", client="one", request_bytes=10_000) == 0
    assert driver.charge(ApiKey.PRODUCE, user="w", client="one", request_bytes=10_000) == 0


def test_client_ids_of_any_length_have_short_keys() -> None:
    long_ids = [Entity("u", "x" * 32_000 + end) for end in ("", "y")]
    keys = {with_short_client_id(entity) for entity in long_ids}
    assert len(keys) == 2 and all(len(key.client_id or "") < 100 for key in keys)
    for entity in (Entity("u", "x" * 200), Entity("u", None), Entity(None, "")):
        assert with_short_client_id(entity) == entity


def test_beyond_the_limit_of_buckets_the_newest_debts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kshare_gateway.quotas.throttling.BUCKETS_LIMIT", 10)
    driver = Driver(({"client_id": ""}, {PRODUCE: 1000.0}))
    for number in range(12):
        assert driver.charge(ApiKey.PRODUCE, client=f"{number}" * 1000, request_bytes=20_000) == 10_000
    for number in range(4, 12):
        assert driver.charge(ApiKey.PRODUCE, client=f"{number}" * 1000, request_bytes=1000) == 11_000, number
    assert driver.charge(ApiKey.PRODUCE, client="0" * 1000, request_bytes=20_000) == 10_000, "the oldest is forgotten"


def test_a_changed_quota_counts_at_once_and_without_quotas_nothing_is_active() -> None:
    driver = Driver()
    assert not driver.throttling.is_active and not driver.throttling.measures_time
    driver.rows = rows_of(({"client_id": ""}, {PRODUCE: 10.0}))
    assert driver.charge(ApiKey.PRODUCE, request_bytes=1000) == 90_000
    driver.rows = rows_of(({"client_id": ""}, {PRODUCE: 1_000_000.0}))
    assert driver.charge(ApiKey.PRODUCE, request_bytes=1000) == 2
    driver.rows = rows_of()
    assert not driver.throttling.is_active


def test_mutations_are_refused_or_throttled() -> None:
    driver = Driver(({"user": "u"}, {"controller_mutation_rate": 1.0}))
    take = driver.throttling.take_mutations
    assert take("u", "c", 20, is_strict=True) == 0, "the bucket of eleven lends one request"
    assert take("u", "c", 1, is_strict=True) == 9000
    assert take("v", "c", 1, is_strict=True) == 0
    assert take("u", "c", 1, is_strict=False) == 10_000, "older clients are charged and throttled"
    driver.now_ms = 10_000
    assert take("u", "c", 1, is_strict=True) == 0


def test_connections_by_address() -> None:
    driver = Driver(
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 1.0}), ({"ip": ""}, {"connection_creation_rate": 5.0})
    )
    created = driver.throttling.connection_created
    assert [created("10.0.0.1") for _ in range(10)] == [0] * 10
    assert created("10.0.0.1") == created("10.0.0.1") == 1000, "a connection that is refused does not count"
    assert [created("10.0.0.2") for _ in range(50)] == [0] * 50 and created("10.0.0.2") > 0


@pytest.mark.parametrize("written", ["fd00::7", "fd00:0:0:0:0:0:0:7", "FD00:0::7", "fd00::7%eth0"])
def test_an_address_has_its_quota_however_it_is_written(written: str) -> None:
    rate = "connection_creation_rate"
    table = QuotaTable(
        rows_of(({"ip": written}, {rate: 1.0}), ({"ip": "fd00::8"}, {rate: 2.0}), ({"ip": ""}, {rate: 3.0}))
    )
    assert table.of_address(address_text("fd00::7")) == 1.0
    assert table.of_address(address_text("fd00::8")) == 2.0
    assert table.of_address(address_text("fd00::9")) == 3.0


def test_the_lowest_of_several_quotas_of_an_address_counts() -> None:
    rate = "connection_creation_rate"
    for first, second in ((1.0, 2.0), (2.0, 1.0)):
        table = QuotaTable(rows_of(({"ip": "::1"}, {rate: first}), ({"ip": "0:0:0:0:0:0:0:1"}, {rate: second})))
        assert table.of_address(address_text("::1")) == 1.0


def test_time_is_that_of_the_steps_on_the_event_loop() -> None:
    now_s = 0.0
    spent: list[float] = []

    async def work() -> str:
        nonlocal now_s
        now_s += 2
        await asyncio.sleep(0)
        now_s += 3
        try:
            await asyncio.wait_for(asyncio.get_running_loop().create_future(), 0.001)
        except TimeoutError:
            now_s += 4
        return "done"

    async def others() -> None:
        nonlocal now_s
        now_s += 100

    async def scenario() -> None:
        other = asyncio.get_running_loop().create_task(others())
        assert await Timed(work(), lambda: now_s, spent.append) == "done"
        await other

    asyncio.run(scenario())
    assert sum(spent) == 9.0


def test_errors_and_cancellations_pass_through() -> None:
    async def failing() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    async def scenario() -> None:
        with pytest.raises(KeyError):
            await Timed(failing(), lambda: 0.0, lambda _: None)

        async def waiting() -> None:
            await Timed(asyncio.sleep(60), lambda: 0.0, lambda _: None)

        task = asyncio.get_running_loop().create_task(waiting())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


def test_a_count_that_no_topic_can_have_is_not_charged() -> None:
    """A typing error would keep its client from all changes for hours."""

    async def scenario(harness: GatewayHarness) -> None:
        quota = rows_of(({"user": ""}, {"controller_mutation_rate": 1.0}))
        harness.node._gateway.throttling._rows = lambda: quota

        def refuse(request: Any, payload: memoryview) -> coordinator_pb2.CreateTopicsResponse:
            answer = coordinator_pb2.CreateTopicsResponse()
            for topic in request.topics:
                answer.topics.add(name=topic.name, error_code=ErrorCode.INVALID_PARTITIONS)
            return answer

        harness.catalog.answers["CreateTopics"] = refuse
        client = harness.client()
        topic = {"name": "t", "replication_factor": 1, "assignments": [], "configs": []}
        for partitions in (2_000_000_000, 1):
            topics = [{**topic, "num_partitions": partitions}]
            answer = await client.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=100)
            assert int(answer.topics[0].error_code) == ErrorCode.INVALID_PARTITIONS, "not throttled"

    run(scenario)
