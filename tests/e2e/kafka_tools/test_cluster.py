"""`kafka-cluster`, `kafka-broker-api-versions`, `kafka-features`, `kafka-metadata-quorum` and `kafka-log-dirs`.

What kshare is not made of is said in a way that the tools understand: a metadata quorum of one
voter, and nothing whose version an administrator could change, so that command ends with "not supported", at once.
"""

from __future__ import annotations

import json
import re

import pytest

from support.clients.delivery import ONE_BY_ONE, produce, wait_for
from support.clusters.engines import brokers_of_upstream, is_attached
from support.kafka.tools import Printed, ToolPair

AT = ("--bootstrap-server", "ADDRESS")
API = re.compile(r"(\w+)\((\d+)\): (?:(\d+)(?: to (\d+))? \[usable: \d+\]|UNSUPPORTED),?")


@pytest.mark.parametrize(
    "command",
    [
        ("cluster-id", *AT),
        ("list-endpoints", *AT),
        ("list-endpoints", *AT, "--include-fenced-brokers"),
    ],
    ids=" ".join,
)
def test_cluster(pair: ToolPair, command: tuple[str, ...]) -> None:
    pair.same("kafka-cluster", *command, server=False, view=_cluster_id_away)


@pytest.mark.parametrize("command", [(), ("cluster-id",), ("nonsense", *AT)], ids=" ".join)
def test_commands_that_are_wrong(pair: ToolPair, command: tuple[str, ...]) -> None:
    kshare, kafka = pair.in_processes("kafka-cluster", *command, server=False)
    assert kshare == kafka
    assert kshare.exit_code == 1


def _cluster_id_away(printed: Printed) -> Printed:
    return printed._replace(lines=tuple(re.sub(r"(Cluster ID:) \S+", r"\1 ID", line) for line in printed.lines))


def test_a_gateway_is_not_unregistered(pair: ToolPair) -> None:
    """It is known by its lease."""
    kshare, _ = pair.run("kafka-cluster", "unregister", "--id", "7", *AT, server=False)
    assert kshare == Printed(0, ("The target cluster does not support the broker unregistration API.",))


def test_api_versions_stay_within_kafkas(pair: ToolPair) -> None:
    kshare, kafka = pair.run("kafka-broker-api-versions")
    assert kshare.lines[0] == kafka.lines[0] == "ADDRESS (id: 1 rack: null isFenced: false) -> ("
    ours, theirs = (_ranges(printed) for printed in (kshare, kafka))
    assert ours.keys() == theirs.keys()
    served = {name: versions for name, versions in ours.items() if versions}
    assert len(served) > 55
    for name, versions in served.items():
        theirs_of_it = theirs[name] or NOT_SERVED_BY_THIS_KAFKA.get(name)
        assert theirs_of_it is not None, name
        assert versions[-1] <= theirs_of_it[-1], name
    newest_differ = {name for name, versions in served.items() if theirs[name] and versions[-1] != theirs[name][-1]}
    assert newest_differ == set()


NOT_SERVED_BY_THIS_KAFKA: dict[str, range] = {}


def _ranges(printed: Printed) -> dict[str, range]:
    """Empty where an API is not served."""
    found = {}
    for line in printed.lines:
        if match := API.fullmatch(line):
            name, _, first, last = match.groups()
            found[name] = range(int(first), int(last or first) + 1) if first else range(0)
    return found


def test_features(pair: ToolPair) -> None:
    """Of those that kshare has the levels in force are Kafka's, but for share.version, which has dead letters too."""
    kshare, kafka = pair.run("kafka-features", *AT, "describe", server=False)
    ours, theirs = ({row[1]: row for row in printed.rows()} for printed in (kshare, kafka))
    assert list(ours) == ["group.version", "share.version", "transaction.version"]
    for name, row in ours.items():
        levels, kafkas = (each[each.index("FinalizedVersionLevel:") + 1] for each in (row, theirs[name]))
        assert (levels, kafkas) == (("2", "1") if name == "share.version" else (kafkas, kafkas))
    for asked in (("version-mapping",), ("feature-dependencies", "--feature", "share.version=1")):
        pair.same("kafka-features", *AT, *asked, server=False)


@pytest.mark.parametrize("command", ["upgrade", "downgrade"])
def test_features_are_those_of_the_release(pair: ToolPair, command: str) -> None:
    kshare, _ = pair.run("kafka-features", *AT, command, "--feature", "share.version=9", server=False)
    assert kshare.exit_code == 1
    assert kshare.has("does not support UPDATE_FEATURES")


OBSERVERS = [*range(2, brokers_of_upstream() + 1)]
"""Brokers of a cluster that vote for no controller."""


def test_the_metadata_quorum_has_one_voter(pair: ToolPair) -> None:
    """Offsets, epochs and times are each cluster's own; the voter's directory and its listener are Kafka's."""
    ours, theirs = (
        dict(line.split(":", 1) for line in printed.lines)
        for printed in pair.run("kafka-metadata-quorum", *AT, "describe", "--status", server=False)
    )
    assert list(ours) == list(theirs)
    same = ["LeaderId", "MaxFollowerLag", "MaxFollowerLagTimeMs"]
    assert [ours[name].strip() for name in same] == [theirs[name].strip() for name in same] == ["1", "0", "0"]
    assert int(ours["HighWatermark"]) > 0
    for role, expected in (("CurrentVoters", [1]), ("CurrentObservers", OBSERVERS)):
        replicas = [json.loads(each[role]) for each in (ours, theirs)]
        assert [sorted(replica["id"] for replica in each) for each in replicas] == [expected, expected]


def test_the_quorums_replication(pair: ToolPair) -> None:
    ours, theirs = (
        printed.rows() for printed in pair.run("kafka-metadata-quorum", *AT, "describe", "--replication", server=False)
    )
    assert ours[0] == theirs[0]
    lag, status = ours[0].index("Lag"), ours[0].index("Status")
    (voter, *observers), (kafkas, *of_kafka) = ours[1:], theirs[1:]
    assert (voter[0], voter[lag], voter[status]) == (kafkas[0], kafkas[lag], kafkas[status]) == ("1", "0", "Leader")
    shown = [sorted((row[0], row[status]) for row in rows) for rows in (observers, of_kafka)]
    assert shown == [[(str(broker), "Observer") for broker in OBSERVERS]] * 2


@pytest.mark.parametrize(
    "command",
    [
        ("kafka-cluster", "cluster-id"),
        ("kafka-metadata-quorum", "describe", "--status"),
        ("kafka-features", "describe"),
    ],
    ids=" ".join,
)
def test_a_broker_is_no_controller(pair: ToolPair, command: tuple[str, ...]) -> None:
    tool, *arguments = command
    if tool == "kafka-cluster":
        arguments = [*arguments, "--bootstrap-controller", "ADDRESS"]
    else:
        arguments = ["--bootstrap-controller", "ADDRESS", *arguments]
    assert pair.same(tool, *arguments, server=False).exit_code == 1


def test_log_dirs(pair: ToolPair, name: str) -> None:
    """The same partitions with the same sizes: a size is that of the record batches. The directory is a leader's.

    Which broker has a partition is each cluster's own choice.
    """
    pair.create_topic(name, 2)
    pair.each(lambda bootstrap: produce(bootstrap, name, ["a", "bb", "ccc"], settings=ONE_BY_ONE))

    def described(*options: str) -> list[dict[str, object]]:
        found = []
        for runs in pair.runs:
            text = runs.text("kafka-log-dirs", "--describe", *options)
            brokers = json.loads(text.splitlines()[-1])["brokers"]
            assert sorted(broker["broker"] for broker in brokers) == [1, *OBSERVERS]
            directories = [directory for broker in brokers for directory in broker["logDirs"]]
            assert [directory["error"] for directory in directories] == [None] * len(brokers)
            found.append({entry["partition"]: entry for each in directories for entry in each["partitions"]})
        return found

    every_broker = ",".join(map(str, (1, *OBSERVERS)))

    def is_same() -> bool:
        """Kafka makes the log of a partition some time after it knows of it."""
        kshare, kafka = described("--topic-list", f"{name},missing", "--broker-list", every_broker)
        assert kshare.keys() == {f"{name}-0", f"{name}-1"}
        return kshare == kafka

    def has_all() -> bool:
        kshare, kafka = described()
        assert kshare[f"{name}-0"] == kafka[f"{name}-0"]
        users = {partition for partition in kafka if not partition.startswith("__")}
        return users <= kshare.keys() if is_attached() else users == kshare.keys()

    wait_for(is_same, "the same logs of the topic")
    wait_for(has_all, "the same logs")
    assert pair.same("kafka-log-dirs", "--describe", "--broker-list", "9").exit_code == 1
