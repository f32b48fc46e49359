"""DescribeConfigs in front of a cluster: its topics have the one config that kshare keeps of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from support.gateway.harness import TOPIC_ID, GatewayHarness, topic
from support.upstream.scripted_broker import ScriptedBroker

TOPIC = 2
TOPIC_CONFIG, DEFAULT_CONFIG = 1, 5
ENABLE = "errors.deadletterqueue.group.enable"


def described(*resources: dict[str, Any], mode: str = "share", **configs_of_orders: str) -> dict[str, dict[str, Any]]:
    """Value and source of each config by topic; the cluster has retention.ms of "orders" and "other", and no "gone"."""

    def answer(_version: int, _frame: bytes) -> DescribeConfigsResponse:
        results = []
        for resource in resources:
            name = resource["resource_name"]
            retention = DescribeConfigsResourceResult(name="retention.ms", value="1", config_source=DEFAULT_CONFIG)
            is_shown = not resource.get("configuration_keys") or "retention.ms" in resource["configuration_keys"]
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name == "gone" else ErrorCode.NONE
            results.append(
                DescribeConfigsResult(
                    error_code=code,
                    resource_type=TOPIC,
                    resource_name=name,
                    configs=[retention] if is_shown and not code else [],
                )
            )
        return DescribeConfigsResponse(results=results)

    async def whole() -> Any:
        async with ScriptedBroker() as broker:
            host, _, port = broker.address.rpartition(":")
            configs = {
                "kshare.engine": "kafka",
                "kshare.upstream.bootstrap.servers": broker.address,
                "kshare.upstream.mode": mode,
            }
            address = BrokerAddress(host, int(port))
            harness = GatewayHarness(configs, open_upstream=lambda: Cluster([address], ClientSettings()))
            harness.catalog.topics["orders"] = topic("orders", TOPIC_ID, [1], **configs_of_orders)
            broker.answers[ApiKey.DESCRIBE_CONFIGS] = answer
            async with harness:
                asked = harness.client().ask(
                    ApiKey.DESCRIBE_CONFIGS,
                    4,
                    resources=list(resources),
                    include_synonyms=False,
                    include_documentation=False,
                )
                return await asyncio.wait_for(asked, 20)

    return {
        result.resource_name: {each.name: (each.value, int(each.config_source)) for each in result.configs}
        for result in asyncio.run(whole()).results
    }


def resource(name: str, *keys: str) -> dict[str, Any]:
    return {"resource_type": TOPIC, "resource_name": name, "configuration_keys": list(keys) or None}


@pytest.mark.parametrize("mode", ["share", "proxy"])
def test_a_topic_may_receive_dead_letters_unless_it_was_set_to_false(mode: str) -> None:
    found = described(resource("orders"), resource("other"), resource("gone"), mode=mode, **{ENABLE: "false"})
    retention = {"retention.ms": ("1", DEFAULT_CONFIG)}
    assert found == {
        "orders": {**retention, ENABLE: ("false", TOPIC_CONFIG)},
        "other": {**retention, ENABLE: ("true", DEFAULT_CONFIG)},
        "gone": {},
    }


def test_it_is_shown_where_the_request_names_it() -> None:
    found = described(resource("orders", "retention.ms"), resource("other", ENABLE))
    assert found == {"orders": {"retention.ms": ("1", DEFAULT_CONFIG)}, "other": {ENABLE: ("true", DEFAULT_CONFIG)}}
