"""Apache Kafka's own command-line tools (4.3.1), unchanged, against the four processes."""

from __future__ import annotations

import re
import uuid

import pytest

from support.clients.administration import broker_addresses
from support.kafka.java_programs import run_tool


@pytest.mark.timeout(240)
def test_a_share_group_from_its_topic_to_its_description(bootstrap: str) -> None:
    topic, group = f"tools-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    topics = "org.apache.kafka.tools.TopicCommand"
    run_tool(bootstrap, topics, "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=3600000")
    described = run_tool(bootstrap, topics, "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert re.search(r"Configs: (min\.insync\.replicas=\d,)?retention\.ms=3600000", described), described
    assert topic in run_tool(bootstrap, topics, "--list").split()

    configs = ("kafka.admin.ConfigCommand", "--entity-type", "groups", "--entity-name", group)
    run_tool(bootstrap, *configs, "--alter", "--add-config", "share.auto.offset.reset=earliest")
    assert "share.auto.offset.reset=earliest" in run_tool(bootstrap, *configs, "--describe")

    run_tool(bootstrap, "org.apache.kafka.tools.ConsoleProducer", "--topic", topic, typed="one\ntwo\nthree\n")
    consumed = run_tool(
        bootstrap,
        "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
        *("--topic", topic, "--group", group, "--max-messages", "3", "--timeout-ms", "30000"),
    )
    assert sorted(consumed.split()[:3]) == ["one", "three", "two"]

    groups = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
    assert group in run_tool(bootstrap, groups, "--list").split()
    state = run_tool(bootstrap, groups, "--describe", "--group", group, "--state").split()
    assert state[state.index(group) :][:5] in [
        [group, address, f"({broker})", "Empty", "0"] for broker, address in enumerate(broker_addresses(bootstrap), 1)
    ]
    offsets = run_tool(bootstrap, "org.apache.kafka.tools.GetOffsetShell", "--topic", topic)
    assert sum(int(line.split(":")[2]) for line in offsets.split()) == 3

    run_tool(bootstrap, topics, "--delete", "--topic", topic)
    assert topic not in run_tool(bootstrap, topics, "--list").split()
