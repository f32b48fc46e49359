"""Apache Kafka's own command-line tools (4.3.1), unchanged, against the four processes."""

from __future__ import annotations

import subprocess
import uuid

import pytest

from support.java import kafka_classpath, require_java

QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
TIMEOUT_S = 60


def run_tool(bootstrap: str, tool: str, *arguments: str, typed: str = "") -> str:
    """What the tool printed; AssertionError where it fails."""
    command = [require_java(), QUIET, "-cp", kafka_classpath(), tool, "--bootstrap-server", bootstrap, *arguments]
    result = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert result.returncode == 0, f"{tool} {arguments}: {result.stdout[-1500:]}{result.stderr[-3000:]}"
    return result.stdout


@pytest.mark.timeout(240)
def test_a_share_group_from_its_topic_to_its_description(bootstrap: str) -> None:
    topic, group = f"tools-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    topics = "org.apache.kafka.tools.TopicCommand"
    run_tool(bootstrap, topics, "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=3600000")
    described = run_tool(bootstrap, topics, "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "Configs: retention.ms=3600000" in described
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
    assert [group, bootstrap, "(1)", "Empty", "0"] == state[state.index(group) :][:5]
    offsets = run_tool(bootstrap, "org.apache.kafka.tools.GetOffsetShell", "--topic", topic)
    assert sum(int(line.split(":")[2]) for line in offsets.split()) == 3

    run_tool(bootstrap, topics, "--delete", "--topic", topic)
    assert topic not in run_tool(bootstrap, topics, "--list").split()
