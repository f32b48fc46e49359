"""Tools for features that kshare does not have: elections, reassignments, ACLs and delegation tokens.

A partition has one replica, and there is no authorizer: the answers are those of a Kafka with one broker and no
security, so the tools say the same.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.kafka.tools import Printed, ToolPair

AT = ("--bootstrap-server", "ADDRESS")


@pytest.mark.parametrize("election", ["PREFERRED", "UNCLEAN"])
def test_leader_election(pair: ToolPair, name: str, tmp_path: Path, election: str) -> None:
    pair.same("kafka-topics", "--create", "--topic", name, "--partitions", "2")
    elect = ("kafka-leader-election", *AT, "--election-type", election)
    pair.same(*elect, "--all-topic-partitions", server=False)
    assert pair.same(*elect, "--topic", name, "--partition", "1", server=False).exit_code == 0
    for missing in (("--topic", name, "--partition", "9"), ("--topic", f"{name}-missing", "--partition", "0")):
        assert pair.same(*elect, *missing, server=False).exit_code == 1
    plan = tmp_path / "partitions.json"
    plan.write_text(json.dumps({"partitions": [{"topic": name, "partition": 0}]}))
    pair.same(*elect, "--path-to-json-file", str(plan), server=False)


def test_there_are_no_reassignments(pair: ToolPair) -> None:
    assert pair.same("kafka-reassign-partitions", "--list").lines == ("No partition reassignments found.",)


@pytest.mark.parametrize(("broker", "step"), [(1, "--execute"), (1, "--verify"), (1, "--cancel"), (9, "--execute")])
def test_a_partition_stays_at_its_one_broker(pair: ToolPair, name: str, tmp_path: Path, broker: int, step: str) -> None:
    """`kshare partitions move` moves it to another leader, which is no broker."""
    pair.same("kafka-topics", "--create", "--topic", name, "--replica-assignment", "1")
    pair.wait_for_partitions(name, 1)
    plan = tmp_path / "plan.json"
    partition = {"topic": name, "partition": 0, "replicas": [broker], "log_dirs": ["any"]}
    plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))

    def view(printed: Printed) -> Printed:
        """Directories are the systems' own."""
        return printed._replace(lines=tuple(re.sub(r'"log_dirs":\[.*?\]', "", line) for line in printed.lines))

    pair.same("kafka-reassign-partitions", "--reassignment-json-file", str(plan), step, view=view)


ACL = ("--allow-principal", "User:a", "--operation", "Read", "--topic", "t")


@pytest.mark.parametrize(
    "command", [("--list",), ("--list", "--topic", "t"), ("--add", *ACL), ("--remove", *ACL, "--force")], ids=" ".join
)
def test_without_an_authorizer_there_are_no_acls(pair: ToolPair, command: tuple[str, ...]) -> None:
    refused = pair.same("kafka-acls", *command)
    assert refused.exit_code == 1
    assert refused.has("SecurityDisabledException")


@pytest.mark.parametrize(
    "command",
    [
        ("--describe",),
        ("--create", "--max-life-time-period", "-1"),
        ("--renew", "--renew-time-period", "-1", "--hmac", "YQ=="),
        ("--expire", "--expiry-time-period", "-1", "--hmac", "YQ=="),
    ],
    ids=" ".join,
)
def test_unauthenticated_clients_have_no_delegation_tokens(
    pair: ToolPair, command: tuple[str, ...], tmp_path: Path
) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("")
    refused = pair.same("kafka-delegation-tokens", *command, "--command-config", str(settings))
    assert refused.exit_code == 1
    assert refused.has("DelegationTokenDisabledException") or refused.has("UnsupportedByAuthenticationException")
