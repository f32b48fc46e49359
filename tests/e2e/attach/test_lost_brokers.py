"""Brokers of the existing cluster are killed, started again, truncated, and away: what was confirmed stays so."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kshare_core.errors import ErrorCode
from support.clients.administration import create_placed_topic, create_topic, read_from_earliest
from support.clients.delivery import Reader, counts_of, produce, values_of
from support.clients.rolling_load import RollingLoad
from support.clients.several_coordinator_load import wait_until
from support.clusters.attached_roles import attached_to, of_brokers, paused, wait_until_in_sync
from support.clusters.restarted_roles import RestartedRoles
from support.kafka.apache_kafka import ApacheKafka
from support.kafka.existing_cluster import ExistingCluster

pytestmark = pytest.mark.attached_faults

PARTITIONS = 6
AWAY_S = 20.0
RECORDS = 200
"""Some two seconds of the load."""
GOES_ON_WITHIN_S = 30.0
RETRIABLE = {
    int(code)
    for code in (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    )
}


def existing_cluster(folder: Path, brokers: int) -> ExistingCluster:
    folder.mkdir()
    return ExistingCluster(folder, brokers=brokers, settings=of_brokers(brokers))


def is_controller(existing: ExistingCluster, broker: ApacheKafka) -> bool:
    return broker is existing.brokers[0]


def end_and_start(existing: ExistingCluster, load: RollingLoad, broker: ApacheKafka, end: Callable[[], None]) -> None:
    """Work goes on while the broker is away, except without the only controller: no leaders are elected then."""
    end()
    if not is_controller(existing, broker):
        load.wait_for_more(RECORDS, GOES_ON_WITHIN_S)
    broker.launch()
    broker.wait_until_up()
    wait_until_in_sync(existing)
    load.wait_for_more(RECORDS, GOES_ON_WITHIN_S)


@pytest.mark.quiet
@pytest.mark.timeout(400)
def test_each_of_three_brokers_is_killed_and_then_rolled(tmp_path: Path) -> None:
    with (
        existing_cluster(tmp_path / "existing", 3) as existing,
        RestartedRoles(tmp_path / "roles", attached_to(existing)) as roles,
        RollingLoad(roles.bootstraps, PARTITIONS, existing_cluster=existing.bootstrap, replication_factor=3) as load,
    ):
        for broker in reversed(existing.brokers):
            number = existing.brokers.index(broker) + 1
            load.during(f"kill broker {number}", partial(end_and_start, existing, load, broker, broker.kill))
            load.during(f"roll broker {number}", partial(end_and_start, existing, load, broker, broker.stop))
        load.finish()
        print(load.table())


@pytest.mark.quiet
@pytest.mark.timeout(200)
def test_the_cluster_stands_still_for_longer_than_every_lease(tmp_path: Path) -> None:
    """Producers connect to the broker itself. After it stood still librdkafka may raise its producer epoch and write a
    record again, which then is in the log twice. Its classic consumer may hang for more than a minute: there is none.
    """
    with (
        existing_cluster(tmp_path / "existing", 1) as existing,
        RestartedRoles(tmp_path / "roles", attached_to(existing), share_coordinators=1, leaders=1) as roles,
    ):
        create_topic(existing.bootstrap, "held", 1)
        read_from_earliest(roles.bootstraps[0], "holders")
        produce(existing.bootstrap, "held", ["one", "two"])
        with (
            Reader(roles.bootstraps[0], "holders", "held") as reader,
            RollingLoad(
                roles.bootstraps,
                PARTITIONS,
                existing_cluster=existing.bootstrap,
                ordinary_consumers=False,
                may_be_stored_twice=True,
            ) as load,
        ):
            assert values_of(reader.take()) == ["one", "two"]

            def stand_still() -> None:
                with paused(existing):
                    ends_at = time.monotonic() + AWAY_S
                    assert_nothing_is_confirmed(reader)
                    while time.monotonic() < ends_at:
                        assert reader.poll(1.0) == [], "what is not confirmed is not delivered"
                load.wait_for_more(RECORDS, GOES_ON_WITHIN_S)

            load.during("stand still", stand_still)
            produce(existing.bootstrap, "held", ["three"])
            assert_comes_again(reader, ["one", "two"])
            load.finish()
            print(load.table())


def assert_nothing_is_confirmed(reader: Reader) -> None:
    """The records that it holds are accepted, and that is answered with an error that a client may try again at."""
    for message in reader.held:
        reader.consumer.acknowledge(message)
    try:
        codes = set(reader.commit().values())
    except KafkaException as problem:
        codes = {problem.args[0].code()}
    assert codes and codes <= RETRIABLE, codes


def assert_comes_again(reader: Reader, values: list[str]) -> None:
    """An acceptance with an error may have taken effect nevertheless, then they do not come; never but with a count."""
    deadline = time.monotonic() + GOES_ON_WITHIN_S
    came: dict[str, int] = {}
    while "three" not in came:
        assert time.monotonic() < deadline, came
        messages = reader.poll()
        came.update(zip(values_of(messages), counts_of(messages), strict=True))
        if messages:
            reader.settle()
    assert {value: came[value] for value in values if value in came} in ({}, dict.fromkeys(values, 2)), came


@pytest.mark.timeout(200)
def test_a_topic_that_an_unclean_election_truncates(tmp_path: Path) -> None:
    """Records that were accepted are lost; those that take their offsets are others, and come to the group.

    The lost ones are on a broker that its follower has not read from since they were written.
    """
    with (
        existing_cluster(tmp_path / "existing", 3) as existing,
        RestartedRoles(tmp_path / "roles", attached_to(existing), share_coordinators=1, leaders=1) as roles,
    ):
        _, leader, follower = existing.brokers
        bootstrap = existing.brokers[0].bootstrap
        unclean = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        create_placed_topic(bootstrap, "unclean", [[2, 3]], unclean)
        wait_until_in_sync(existing, "unclean")
        read_from_earliest(roles.bootstraps[0], "workers")
        kept, lost = numbered("kept", 100), numbered("lost", 60)
        with Reader(roles.bootstraps[0], "workers", "unclean") as reader:
            produce(bootstrap, "unclean", kept)
            assert values_of(reader.accept(len(kept))) == kept
            follower.kill()
            produce(bootstrap, "unclean", lost)
            assert values_of(reader.accept(len(lost))) == lost
            leader.kill()
            follower.launch()
            follower.wait_until_up()
            others = numbered("other", 120)
            wait_until(lambda: leader_of(bootstrap, "unclean") == 3, 60, "the follower leads")
            produce(bootstrap, "unclean", others)
            came: list[str] = []
            deadline = time.monotonic() + 60
            while len(came) < len(others):
                assert time.monotonic() < deadline, came[-3:]
                messages = reader.poll()
                assert counts_of(messages) == [1] * len(messages), "no state of a lost record is another's"
                came += values_of(messages)
                if messages:
                    reader.settle()
            leader.launch()
            leader.wait_until_up()
            wait_until_in_sync(existing, "unclean")
            last = numbered("last", 10)
            produce(bootstrap, "unclean", last)
            came += values_of(reader.accept(len(last)))
            assert came == [*others, *last]


def numbered(name: str, count: int) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


def leader_of(bootstrap: str, topic: str) -> int:
    return (
        AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=10).topics[topic].partitions[0].leader
    )
